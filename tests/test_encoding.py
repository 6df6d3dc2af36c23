"""The contract: placed positions as a pytree, neutral doors, casts, and what constructors store."""

import copy
import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.func import vmap

import posenc
import strategies
from posenc import Compose, Encoding, OnAxes, Placed
from posenc.placed import map_tensors, tensors
from strategies import check, normal, refuses

EXAMPLES = [example for name in posenc.names() for example in posenc.card(name).examples()]
TWO_AXES = OnAxes(posenc.RoPE(head_dim=8), (1,), n_axes=2)
SOME = [posenc.RoPE(head_dim=8), posenc.ALiBi(n_heads=2), TWO_AXES, Compose(TWO_AXES), Encoding()]


def sequence(encoding: Encoding, n: int, batch: int | None = None, seed: int = 0) -> Tensor:
    shape = (*([batch] if batch else []), n, *([2] if encoding.n_axes == 2 else []))
    return torch.randint(0, 100, shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("encoding", SOME, ids=lambda e: e.name)
@given(n=st.integers(0, 5), more=st.integers(0, 5), kinds=st.sampled_from(["11", "12", "21", "22"]))
@check(20)
def test_cat_and_last(encoding: Encoding, n: int, more: int, kinds: str) -> None:
    """Appending what is placed is placing what is appended; a plain sequence joins every row of a batch."""
    pos, new = (
        sequence(encoding, length, 3 if kind == "2" else None, seed)
        for seed, (length, kind) in enumerate(zip((n, more), kinds, strict=True))
    )
    together = encoding.place(pos).cat(encoding.place(new))
    dim = 1 if "2" in kinds else 0
    batch = (p.expand(3, *p.shape) if dim and kind == "1" else p for p, kind in zip((pos, new), kinds, strict=True))
    whole = torch.cat(tuple(batch), dim)
    assert torch.equal(together.pos, whole)
    wanted = encoding.place(whole)
    assert len(tensors(together)) == len(tensors(wanted))
    assert all(torch.equal(a, b) for a, b in zip(tensors(together), tensors(wanted), strict=True))
    assert together.seq_dim == dim
    tail = encoding.place(whole.narrow(dim, n, more))
    assert all(torch.equal(a, b) for a, b in zip(tensors(together.last(more)), tensors(tail), strict=True))


@pytest.mark.parametrize("encoding", SOME, ids=lambda e: e.name)
@pytest.mark.parametrize("batch", [None, 1, 2, 3])
def test_rows_of_some_items_are_those_of_their_positions(encoding: Encoding, batch: int | None) -> None:
    """A sequence that all items share, alone or as a batch of one, is every item's."""
    pos = sequence(encoding, 7, batch)
    for items in (slice(None), slice(1, 2), slice(0, 2)):
        kept = pos[:, 2:5] if batch else pos[2:5]
        wanted = encoding.place(kept[items] if batch and batch > 1 else kept)
        got = tensors(encoding.place(pos).rows(2, 5, items))
        assert all(torch.equal(a, b) for a, b in zip(got, tensors(wanted), strict=True))


def test_placed_is_a_pytree_and_frozen() -> None:
    placed = Compose(TWO_AXES, OnAxes(posenc.ALiBi(n_heads=2), (0,), n_axes=2)).place(sequence(TWO_AXES, 4, 2))
    rebuilt = vmap(lambda row: row)(placed)
    assert isinstance(rebuilt, Placed)
    assert rebuilt.n_axes == 2
    assert [p.n_axes for p in rebuilt.parts] == [2, 2]
    assert [p.seq_dim for p in (rebuilt, *rebuilt.parts, rebuilt.parts[0].parts[0])] == [1, 1, 1, 1]
    assert all(torch.equal(a, b) for a, b in zip(tensors(rebuilt), tensors(placed), strict=True))
    moved = map_tensors(lambda t: t.to("meta"), placed)
    assert {t.device.type for t in tensors(moved)} == {"meta"}
    assert [p.n_axes for p in (moved, *moved.parts)] == [2, 2, 2]
    with pytest.raises(dataclasses.FrozenInstanceError):
        placed.pos = placed.pos + 1  # type: ignore[misc]


def test_placed_can_be_copied() -> None:
    placed = posenc.RoPE(head_dim=4).place(torch.arange(3))
    assert all(torch.equal(a, b) for a, b in zip(tensors(copy.deepcopy(placed)), tensors(placed), strict=True))


@pytest.mark.compiles
@pytest.mark.parametrize("encoding", SOME[:3], ids=lambda e: e.name)
def test_placed_goes_into_and_out_of_an_export(encoding: Encoding) -> None:
    class Step(torch.nn.Module):
        def forward(self, past: Placed, placed: Placed) -> Placed:
            return past.cat(placed)

    past, new = encoding.place(sequence(encoding, 6)), encoding.place(sequence(encoding, 2))
    program = torch.export.export(Step(), (past, new))
    got = program.module()(past, new)
    assert isinstance(got, Placed)
    assert all(torch.equal(a, b) for a, b in zip(tensors(got), tensors(past.cat(new)), strict=True))


@pytest.mark.compiles
def test_placed_goes_into_a_compiled_function() -> None:
    rope = posenc.RoPE(head_dim=8)
    fast = torch.compile(lambda q, p: rope.rotate_q(q, p), backend="eager", fullgraph=True, dynamic=True)
    for n in (3, 8):
        q, placed = normal(1, 2, n, 8), rope.place(torch.arange(n), dtype=torch.float64)
        torch.testing.assert_close(fast(q, placed), rope.rotate_q(q, placed))


def test_every_door_is_neutral() -> None:
    nope, pos = Encoding(), torch.arange(3)
    placed = nope.place(pos)
    q, k, x = normal(2, 4, 3, 8), normal(2, 2, 3, 8), normal(2, 3, 16)
    assert nope.embed(x, placed) is x
    assert all(a is b for a, b in zip(nope.rotate(q, k, placed), (q, k), strict=True))
    assert all(a is b for a, b in zip(nope.rotate(q, k, placed, inverse=True), (q, k), strict=True))
    assert nope.bias(q, k, placed, placed) is None
    assert nope.score_scale(16) == 0.25
    assert nope.resolve(10) is nope
    assert nope.layer(5, placed) == (nope, placed)
    assert not nope.state_dict()
    assert (nope.n_axes, nope.reads_x, nope.family) == (1, False, "none")


def test_rotate_writes_into_cache_slots() -> None:
    rope, pos = posenc.RoPE(head_dim=8), torch.arange(4)
    q, k = normal(1, 4, 4, 8), normal(1, 2, 4, 8)
    cache, q_out = torch.zeros(1, 2, 10, 8), torch.zeros(1, 4, 4, 8, dtype=torch.float64)
    placed = rope.place(pos, dtype=torch.float64)
    wanted_q, wanted_k = rope.rotate(q, k, placed)
    got_q, got_k = rope.rotate(q, k, placed, out=(q_out, cache[:, :, 3:7]))
    assert got_q is q_out
    assert torch.equal(q_out, wanted_q)
    assert torch.equal(cache[:, :, 3:7], wanted_k.float())
    assert got_k.data_ptr() == cache[:, :, 3:].data_ptr()
    assert not cache[:, :, :3].any()
    assert not cache[:, :, 7:].any()


def test_slots_of_another_shape_are_refused_and_stay() -> None:
    rope, q, k = posenc.RoPE(head_dim=8), normal(1, 4, 4, 8), normal(1, 2, 4, 8)
    slots = torch.zeros(3, 2, 4, 8)  # into which a copy would broadcast
    with refuses(ValueError, "RoPE: out must have the shapes of q and k", "(3, 2, 4, 8) for k"):
        rope.rotate(q, k, rope.place(torch.arange(4)), out=(torch.zeros_like(q), slots))
    assert not slots.any()


def test_an_unknown_way_back_is_refused() -> None:
    class Spins(Encoding):
        def rotate_q(self, q: Tensor, placed: Placed) -> Tensor:
            return -q

    spins, q = Spins(), normal(1, 1, 2, 4)
    with refuses(TypeError, "Spins: cannot rotate back", "_unrotate(q, k, placed, k_placed)"):
        spins.rotate(q, q, spins.place(torch.arange(2)), inverse=True)


@pytest.mark.parametrize("encoding", EXAMPLES, ids=str)
def test_options_and_repr(encoding: Any) -> None:
    shown = repr(encoding)
    assert shown.startswith(type(encoding).__name__ + "(")
    wanted = {k: v for k, v in encoding.options().items() if v is not None and not isinstance(v, Tensor)}
    assert all(f"{name}={value!r}" in shown for name, value in wanted.items())
    assert encoding.name == type(encoding).__name__


def test_options_leave_catch_all_arguments_out() -> None:
    class Wraps(posenc.ALiBi):
        def __init__(self, *, n_heads: int, **options: Any) -> None:
            super().__init__(n_heads=n_heads, **options)

    assert Wraps(n_heads=2).options() == {"n_heads": 2}
    assert repr(Wraps(n_heads=2)) == "Wraps(n_heads=2)"


FREQUENCIES = [
    posenc.RoPE(head_dim=8, trainable=True),
    posenc.Sinusoidal(d_model=8, trainable=True, inv_freq=[1 / 3, 0.7, 0.1, 2.0]),
    Compose(posenc.RoPE(head_dim=8, trainable=True), posenc.ALiBi(n_heads=2)),
]


@pytest.mark.parametrize("encoding", FREQUENCIES, ids=lambda e: e.name)
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_learned_frequencies_stay_in_float32(encoding: Encoding, half: torch.dtype) -> None:
    (before,) = (p.detach().clone() for p in encoding.parameters())
    host = torch.nn.ModuleList([copy.deepcopy(encoding), torch.nn.Linear(2, 2)]).to(half)
    (after,) = host[0].parameters()
    assert after.dtype == torch.float32
    assert torch.equal(after, before)
    assert host[1].weight.dtype == half
    assert next(copy.deepcopy(encoding).double().parameters()).dtype == torch.float64
    assert next(copy.deepcopy(encoding).to("meta", half).parameters()).device.type == "meta"


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_learned_frequencies_are_made_in_float32(half: torch.dtype) -> None:
    """Loaders set the default dtype to that of the checkpoint while they construct."""
    torch.set_default_dtype(half)
    try:
        made = [
            posenc.RoPE(head_dim=8, trainable=True),
            posenc.Sinusoidal(d_model=8, trainable=True, inv_freq=[1 / 3, 0.7, 0.1, 2.0]),
        ]
    finally:
        torch.set_default_dtype(torch.float32)
    assert [e.inv_freq.dtype for e in made] == [torch.float32, torch.float32]
    assert made[1].inv_freq.tolist() == pytest.approx([1 / 3, 0.7, 0.1, 2.0], rel=1e-7)


def test_given_frequencies_are_as_exact_as_their_parameter() -> None:
    for exact in (posenc.RoPE(head_dim=2, trainable=True, inv_freq=[1 / 3]).double(),):
        exact.reset_parameters()
        assert exact.inv_freq.tolist() == [1 / 3]


def test_learned_tables_follow_the_cast() -> None:
    assert posenc.Learned(d_model=4, max_len=4).bfloat16().weight.dtype == torch.bfloat16
    assert posenc.T5(n_heads=4).half().weight.dtype == torch.float16


@pytest.mark.parametrize("name", posenc.names())
@given(data=st.data())
@check(8)
def test_construction_on_the_meta_device(name: str, data: st.DataObject) -> None:
    """Large models are built on the meta device and materialised: nothing may need data until then."""
    options = data.draw(strategies.options(name))
    with torch.device("meta"):
        hollow = posenc.create(name, **options)
    fresh = posenc.create(name, **options)
    hollow = hollow.to_empty(device="cpu")
    for module in (hollow, fresh):
        torch.manual_seed(5)
        module.reset_parameters()
    assert list(hollow.state_dict()) == list(fresh.state_dict())
    for a, b in zip(hollow.parameters(), fresh.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("encoding", EXAMPLES, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64])
def test_tables_are_float32_or_float64(encoding: Encoding, dtype: torch.dtype) -> None:
    with refuses(ValueError, f"{encoding.name}: place() works in float32 or float64", f"got dtype={dtype}"):
        encoding.place(torch.arange(3), dtype=dtype)
