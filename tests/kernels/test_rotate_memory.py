"""Where turns are written: fresh memory, given memory, in place; nothing beside it, and nothing that overlaps."""

import time
from typing import Any

import pytest
import torch
from torch import Tensor

import posenc
from kernels.rotations import BACKENDS, LAYOUTS, PAIRINGS, bits_equal, exact, kind_name, memory, tables
from posenc import positions
from strategies import normal, refuses

KINDS = [torch.bfloat16, torch.float32, torch.float64]
N = 11


def rope_and_places(pairing: Any = "half", *, batch: int | None = None) -> tuple[posenc.RoPE, posenc.Placed]:
    rope = posenc.RoPE(head_dim=42, rotary_dim=36, rotary_side="last", pairing=pairing)
    pos = positions.arange(N, start=3)
    return rope, rope.place(pos if batch is None else pos + torch.arange(batch)[:, None])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("dtype", KINDS, ids=kind_name)
def test_any_memory_to_any_memory(dtype: torch.dtype, pairing: Any, backend: str) -> None:
    """Strides of every layout on both sides; canaries around what is written, and what is read stays as it was."""
    rope, placed = rope_and_places(pairing, batch=2)
    x, y = normal(2, 6, N, 42, dtype=dtype), normal(2, 3, N, 42, seed=1, dtype=dtype)
    wanted = [exact(t, *tables(placed), pairing=pairing, side="last") for t in (x, y)]
    for of_q in LAYOUTS:
        for i, of_out in enumerate(LAYOUTS):
            q, k = memory(x, of_q), memory(y, LAYOUTS[i - 1])
            out = memory(torch.zeros_like(x), of_out), memory(torch.zeros_like(y), LAYOUTS[i - 2])
            slots = out[0].tensor, out[1].tensor
            got = rope.rotate(q.tensor, k.tensor, placed, out=slots, backend=backend)
            assert got[0] is slots[0]
            assert got[1] is slots[1]
            for given, put, w in zip((q, k), out, wanted, strict=True):
                w.holds(put.tensor, torch.float32)
                assert given.untouched()
                assert put.untouched_around()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("dtype", KINDS, ids=kind_name)
def test_in_place(dtype: torch.dtype, pairing: Any, backend: str) -> None:
    rope, placed = rope_and_places(pairing)
    x, y = normal(2, 6, N, 42, dtype=dtype), normal(2, 3, N, 42, seed=1, dtype=dtype)
    wanted = [exact(t, *tables(placed), pairing=pairing, side="last") for t in (x, y)]
    for layout in LAYOUTS:
        q, k = memory(x, layout), memory(y, layout)
        if layout == "odd":  # the same memory by another name
            out = torch.as_strided(q.tensor, x.shape, q.tensor.stride()), k.tensor.view(y.shape)
            rope.rotate(q.tensor, k.tensor, placed, out=out, backend=backend)
        else:
            rope.rotate_(q.tensor, k.tensor, placed, backend=backend)
        for given, w in zip((q, k), wanted, strict=True):
            w.holds(given.tensor, torch.float32)
            assert given.untouched_around()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("pairing", PAIRINGS)
def test_parts_of_one_projection_turn_in_place(pairing: Any, backend: str) -> None:
    """Queries and keys lie between each other, row by row, with values between them; none of it is an overlap."""
    rope, placed = rope_and_places(pairing)
    fused = normal(2, N, 6 + 2 + 2, 42, dtype=torch.bfloat16)
    before = fused.clone()
    q, k, v = (t.transpose(1, 2) for t in fused.split((6, 2, 2), dim=2))
    rope.rotate_(q, k, placed, backend=backend)
    for now, was in ((q, before[:, :, :6]), (k, before[:, :, 6:8])):
        exact(was.transpose(1, 2), *tables(placed), pairing=pairing, side="last").holds(now, torch.float32)
    assert bits_equal(v, before[:, :, 8:].transpose(1, 2))


@pytest.mark.parametrize("backend", BACKENDS)
def test_fresh_memory_is_laid_out_as_what_turns(backend: str) -> None:
    rope, placed = rope_and_places()
    for layout in LAYOUTS:
        q, k = (memory(normal(2, h, N, 42, dtype=torch.float32), layout) for h in (6, 3))
        got = rope.rotate(q.tensor, k.tensor, placed, backend=backend)
        for given, y in zip((q, k), got, strict=True):
            if backend not in ("auto", "formula") and layout in ("plain", "transposed", "odd"):
                assert y.stride() == given.tensor.stride()
            assert y.stride(-1) == 1
            assert y.untyped_storage().data_ptr() != given.whole.untyped_storage().data_ptr()
            assert given.untouched()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("pairing", PAIRINGS)
def test_slots_of_a_cache(pairing: Any, backend: str) -> None:
    """Keys go where a cache has room for them, at its own strides; each step sees one more token."""
    rope = posenc.RoPE(head_dim=32, pairing=pairing)
    cache = torch.full((2, 3, 20, 32), torch.nan, dtype=torch.bfloat16)
    keys, queries = normal(2, 3, 20, 32, dtype=torch.bfloat16), normal(2, 6, 20, 32, seed=1, dtype=torch.bfloat16)
    for begin, end in ((0, 7), (7, 8), (8, 9), (9, 19)):
        placed, q = rope.place(positions.arange(end - begin, start=begin)), queries[:, :, begin:end]
        slots, q_out = cache[:, :, begin:end], torch.empty_like(q)
        _, k = rope.rotate(q, keys[:, :, begin:end], placed, out=(q_out, slots), backend=backend)
        assert k is slots
        assert bool(cache[:, :, end:].isnan().all())
        exact(q, *tables(placed), pairing=pairing).holds(q_out, torch.float32)
    whole = rope.place(positions.arange(19))
    exact(keys[:, :, :19], *tables(whole), pairing=pairing).holds(cache[:, :, :19], torch.float32)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", KINDS, ids=kind_name)
def test_expanded_queries_and_keys_are_read(dtype: torch.dtype, backend: str) -> None:
    """One text for all of a batch, one head for all heads: strides are 0, and the turns have memory of their own."""
    rope, placed = rope_and_places(batch=3)
    q, k = normal(1, 4, N, 42, dtype=dtype), normal(3, 1, N, 42, seed=1, dtype=dtype)
    for x, y in ((q.expand(3, -1, -1, -1), k.expand(-1, 2, -1, -1)), (q[:, :1].expand(3, 4, -1, -1), k)):
        got = rope.rotate(x, y, placed, backend=backend)
        for turned, given in zip(got, (x, y), strict=True):
            exact(given, *tables(placed), pairing="half", side="last").holds(turned, torch.float32)
            assert 0 not in turned.stride()
        slots = torch.empty(x.shape, dtype=dtype), torch.empty(y.shape, dtype=dtype)
        rope.rotate(x, y, placed, out=slots, backend=backend)
        exact(x, *tables(placed), pairing="half", side="last").holds(slots[0], torch.float32)
    one = normal(1, 4, 1, 42, dtype=dtype).expand(3, 4, N, 42)  # one token at all places
    exact(one, *tables(placed), pairing="half", side="last").holds(
        rope.rotate(one, k, placed, backend=backend)[0], torch.float32
    )


@pytest.mark.parametrize("backend", ["formula", "auto"])
def test_lanes_that_do_not_lie_side_by_side(backend: str) -> None:
    rope, placed = rope_and_places()
    q, k = normal(2, 4, 42, N, dtype=torch.float32).mT, normal(2, 2, N, 84, dtype=torch.float32)[..., ::2]
    wanted = [exact(t, *tables(placed), pairing="half", side="last") for t in (q, k)]
    for w, y in zip(wanted, rope.rotate(q, k, placed, backend=backend), strict=True):
        w.holds(y, torch.float32)
    rope.rotate_(q, k, placed, backend=backend)
    for w, y in zip(wanted, (q, k), strict=True):
        w.holds(y, torch.float32)


def plain(batch: int = 1, heads: int = 2, *, of: Tensor | None = None) -> Tensor:
    return torch.zeros(batch, heads, N, 42) if of is None else of.clone()


@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_that_cannot_be_written_is_refused_untouched(backend: str) -> None:
    rope, placed = rope_and_places()
    pool = normal(8 * N * 42 + 42, dtype=torch.float32)
    before = pool.clone()

    def at(begin: int, heads: int = 2) -> Tensor:
        return pool[begin : begin + heads * N * 42].view(1, heads, N, 42)

    q, k, far = at(0), at(2 * N * 42), at(4 * N * 42)
    who = "RoPE: "
    with refuses(ValueError, who, "out[0] overlaps q", "overwritten before they are read"):
        rope.rotate(q, k, placed, out=(at(42), far), backend=backend)
    with refuses(ValueError, who, "out[0] overlaps k"):
        rope.rotate(q, k, placed, out=(k, far), backend=backend)
    with refuses(ValueError, who, "out[1] overlaps q"):
        rope.rotate(q, k, placed, out=(far, q), backend=backend)
    with refuses(ValueError, "RoPE: out[0] overlaps out[1]"):
        rope.rotate(q, k, placed, out=(far, at(4 * N * 42 + 1)), backend=backend)
    with refuses(ValueError, "RoPE: out[0] overlaps"):
        rope.rotate_(q, q, placed, backend=backend)
    with refuses(ValueError, "RoPE: out[0] overlaps"):
        rope.rotate_(q, at(N * 42), placed, backend=backend)
    for heads in (q[:, :1].expand(-1, 2, -1, -1), pool[: 3 * N * 42].as_strided((1, 2, N, 42), (0, 21, 42, 1))):
        with refuses(ValueError, who, "cannot write q into expanded or overlapping memory", "got shape"):
            rope.rotate_(heads, far, placed, backend=backend)
        with refuses(ValueError, who, "cannot write k into expanded or overlapping memory"):
            rope.rotate_(far, heads, placed, backend=backend)
    assert bits_equal(pool, before)


def test_one_token_or_one_head_of_any_stride_is_no_overlap() -> None:
    """A dimension of one has a stride that says nothing."""
    rope = posenc.RoPE(head_dim=8)
    placed = rope.place(positions.arange(1, start=3))
    q, k = normal(3, 4, 1, 8, dtype=torch.float32), torch.zeros(100).as_strided((1, 1, 1, 8), (0, 0, 0, 1))
    rope.rotate_(q.as_strided((3, 4, 1, 8), (32, 8, 0, 1)), k, placed)
    wanted = exact(normal(3, 4, 1, 8, dtype=torch.float32), *tables(placed), pairing="half")
    wanted.holds(q, torch.float32)


@pytest.mark.slow  # a time of the clock
def test_whether_memory_overlaps_is_known_quickly() -> None:
    """In general that is a hard problem of whole numbers; strides of tensors must not make it one."""
    rope = posenc.RoPE(head_dim=128)
    placed = rope.place(positions.arange(1000))
    fused = torch.zeros(3, 1003, 41, 131)[:, :1000, :, 1:129].transpose(1, 2)
    begin = time.perf_counter()
    rope.rotate_(fused[:, 1:36], fused[:, 36:41], placed)
    rope.rotate_(fused[:, 1::2], fused[:, ::2], placed)
    rope.rotate_(fused[:, 1::2], fused[:, ::4], placed)
    assert time.perf_counter() - begin < 5


@pytest.mark.parametrize("backend", BACKENDS)
def test_versions_count_what_is_written(backend: str) -> None:
    rope, placed = rope_and_places()
    q, k, cache = plain(), plain(), torch.zeros(1, 2, 2 * N, 42)
    slots, was = cache[:, :, :N], cache._version
    rope.rotate(q, k, placed, out=(torch.empty_like(q), slots), backend=backend)
    assert cache._version > was
    assert (q._version, k._version) == (0, 0)
    rope.rotate_(q, k, placed, backend=backend)
    assert min(q._version, k._version) > 0
    with torch.inference_mode():
        was = q._version
        rope.rotate_(q, k, placed, backend=backend)
        assert q._version > was


@pytest.mark.parametrize("backend", BACKENDS)
def test_inference_mode(backend: str) -> None:
    rope, placed = rope_and_places()
    x = normal(1, 2, N, 42, dtype=torch.float32)
    wanted = exact(x, *tables(placed), pairing="half", side="last")
    with torch.inference_mode():
        inside = x.clone()
        got, _ = rope.rotate(x, inside, placed, backend=backend)
        wanted.holds(got, torch.float32)
        rope.rotate_(inside, torch.empty_like(inside), placed, backend=backend)
        wanted.holds(inside, torch.float32)
        placed_inside = rope.place(placed.pos)
    wanted.holds(rope.rotate(x, x.clone(), placed_inside, backend=backend)[0], torch.float32)


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_queries_and_keys_of_one_sequence_that_are_rotated_in_one_go(pairing: Any) -> None:
    rope, placed = rope_and_places(pairing)
    q, k = (normal(1, heads, N, 42, dtype=torch.float32) for heads in (4, 2))
    with torch.no_grad():
        for x, got in zip((q, k), rope.rotate(q, k, placed), strict=True):
            assert got.is_contiguous()
            exact(x, *tables(placed), pairing=pairing, side="last").holds(got, torch.float32)


def test_a_parameter_may_be_added_to_one_rotated_token() -> None:
    rope, placed = rope_and_places()
    q, k = normal(2, 1, 2, N, 42, dtype=torch.float32)
    own = torch.zeros(42, requires_grad=True)
    rotated, _ = rope.rotate(q, k, placed)
    rotated += own
    rotated.sum().backward()
    assert own.grad is not None
    assert own.grad.eq(2 * N).all()


@pytest.mark.parametrize("learned", [False, True])
def test_given_memory_where_gradients_flow(learned: bool) -> None:
    """Autograd copies into it, so the checks are the same and so are the gradients."""
    encoding = posenc.RoPE(head_dim=8, trainable=learned)
    pos = positions.arange(N)
    x = normal(1, 2, N, 8, dtype=torch.float32).requires_grad_(not learned)
    k = normal(1, 1, N, 8, seed=1, dtype=torch.float32)
    slots = torch.zeros(1, 2, N, 8), torch.zeros(1, 1, N, 8)
    q_out, _ = encoding.rotate(x, k, encoding.place(pos), out=slots)
    assert q_out is slots[0]
    assert q_out.requires_grad
    exact(x, *tables(encoding.place(pos)), pairing="half").holds(q_out.detach(), torch.float32)
    weights = normal(1, 2, N, 8, seed=2, dtype=torch.float32)
    of = x if not learned else encoding.inv_freq
    got = torch.autograd.grad((slots[0] * weights).sum(), of)[0]
    again = torch.autograd.grad((encoding.rotate(x, k, encoding.place(pos))[0] * weights).sum(), of)[0]
    assert torch.equal(got, again)


def test_given_memory_that_autograd_follows_is_not_written_behind_its_back() -> None:
    rope, placed = rope_and_places()
    source = normal(1, 2, N, 42, dtype=torch.float32).requires_grad_()
    out = source * 1.0  # has a history, which the turn replaces
    q, k = plain(), plain()
    rope.rotate(q, k, placed, out=(out, torch.empty_like(k)))
    grad = torch.autograd.grad(out.sum(), source, allow_unused=True)[0]
    assert grad is None or bool((grad == 0).all())
    with pytest.raises(RuntimeError, match="leaf"):
        rope.rotate(q, k, placed, out=(source, torch.empty_like(k)))
