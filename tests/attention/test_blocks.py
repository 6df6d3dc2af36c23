"""Attention in blocks: equal to the reference, forwards and backwards, with blocks so small that there are many."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import posenc
from attention.subjects import (
    HEADS,
    IDS,
    LANES,
    MASKS,
    NAMES,
    OF_CELLS,
    PLACES,
    TABLES,
    N,
    last,
    made,
    nth_place,
    small_blocks,
    tensors,
)
from posenc import attend, positions
from posenc.attention import blocked, explain, spans
from posenc.attention.checked import make_call
from strategies import check, normal
from watch import Largest

M = 1200  # tokens: many blocks, and far more scores than any of them has


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch)


@pytest.mark.parametrize("place", range(len(PLACES)))
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", NAMES)
def test_every_backend_equals_the_reference(name: str, mask: str, place: int) -> None:
    encoding, options = made(name), dict(MASKS[mask])
    q_len = options.pop("q_len", 70)  # a cache of twenty, where the mask lets it
    q, k, v = tensors(q_len)
    wanted_of = [q, k, v, *encoding.parameters()]
    pos = nth_place(place, name, encoding)
    call = (q, k, v, encoding, *(encoding.place(p, dtype=torch.float64) for p in (last(pos, q_len, encoding), pos)))
    wanted = attend(*call, backend="reference", **options)
    pull = normal(*wanted.shape, seed=8)
    exact = torch.autograd.grad(wanted, wanted_of, pull, allow_unused=True, retain_graph=True)
    ran = set()
    for verdict in explain(*call, **options):
        if verdict.verdict not in ("taken", "would run") or verdict.backend.startswith("reference"):
            continue
        ran.add(verdict.backend)
        got = attend(*call, backend=verdict.backend, **options)
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-11, msg=lambda m, w=verdict.backend: f"{w}: {m}")
        with torch.no_grad():
            free = attend(*call, backend=verdict.backend, **options)
        torch.testing.assert_close(free, wanted, rtol=0, atol=1e-11, msg=lambda m, w=verdict.backend: f"{w}, free: {m}")
        found = torch.autograd.grad(got, wanted_of, pull, allow_unused=True, retain_graph=True)
        for mine, theirs in zip(found, exact, strict=True):
            mine, theirs = (torch.zeros(()) if t is None else t for t in (mine, theirs))
            bound = 1e-10 * max(1.0, float(theirs.abs().max()))
            assert float((mine - theirs).abs().max()) <= bound, verdict.backend
    assert "blocked" in ran


def test_masks_that_learn_get_their_gradients() -> None:
    q, k, v = tensors(N)
    mask = normal(HEADS, N, N, seed=6).requires_grad_()
    found = []
    for backend in ("reference", "blocked"):
        out = attend(q, k, v, posenc.ALiBi(n_heads=HEADS), positions.arange(N), mask=mask, backend=backend)
        found.append(torch.autograd.grad(out.square().sum(), [mask, q])[0])
    for got in found[1:]:
        torch.testing.assert_close(got, found[0], rtol=0, atol=1e-11)


@given(st.data())
@check(60)
def test_blocks_show_each_query_its_keys_and_no_others(data: st.DataObject) -> None:
    """Who sees whom by blocks is who sees whom by the literal matrix."""
    k_len = data.draw(st.integers(1, 60))
    q_len = data.draw(st.integers(1, k_len))
    options: dict[str, Any] = {"causal": data.draw(st.booleans()), "window": data.draw(st.none() | st.integers(1, 20))}
    if data.draw(st.booleans()):
        lengths = data.draw(st.lists(st.integers(1, 30), min_size=1, max_size=5))
        row = [i for i, n in enumerate(lengths) for _ in range(n)][:k_len]
        options["document_ids"] = torch.tensor(row + [9] * (k_len - len(row)))
    if data.draw(st.booleans()):
        first, last = sorted((data.draw(st.integers(0, k_len)), data.draw(st.integers(0, k_len))))
        options["mask"] = ((torch.arange(k_len) >= first) & (torch.arange(k_len) < last))[None, None, None]
    q, k = normal(1, 1, q_len, 2), normal(1, 1, k_len, 2)
    everything = {"mask": None, "document_ids": None, **options}
    pos = positions.arange(k_len)
    call = make_call(
        q, k, k, posenc.NoPE(), pos[k_len - q_len :], pos, False, everything["causal"], everything["mask"],
        everything["window"], everything["document_ids"], None, 0.0, "auto",
    )  # fmt: skip
    allowed = call.allowed()
    wanted = torch.ones(q_len, k_len, dtype=torch.bool) if allowed is None else allowed.expand(1, 1, q_len, k_len)[0, 0]
    seen = torch.zeros(q_len, k_len, dtype=torch.int64)
    part = spans.Spans(call)
    rows = data.draw(st.integers(1, 70))
    for block in part.blocks(rows):
        assert block.size[0] <= rows
        inside = part.allowed(block)
        shown = torch.ones(block.size, dtype=torch.bool) if inside is None else inside.expand(1, 1, *block.size)[0, 0]
        seen[block.rows, block.keys] += shown
    assert torch.equal(seen, wanted.long())


def test_blocks_have_fewer_queries_where_documents_are_short() -> None:
    """Others than their own keys would be computed: a long document has the blocks of a text."""
    q, pos = normal(1, 1, 80, 2), positions.arange(80)
    ids = torch.repeat_interleave(torch.arange(7), torch.tensor([5, 9, 4, 40, 6, 7, 9]))
    call = make_call(q, q, q, posenc.NoPE(), pos, pos, False, True, None, None, ids, None, 0.0, "auto")
    sizes = [(block.begin, block.end, block.first) for block in spans.Spans(call).blocks(20)]
    assert sizes == [(0, 8, 0), (8, 18, 5), (18, 38, 18), (38, 58, 18), (58, 60, 58), (60, 70, 58), (70, 80, 64)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        *[(name, {}) for name in NAMES if name not in ("rope", *TABLES, *OF_CELLS)],
        ("nope", {"window": 100}),
        ("alibi", {"document_ids": torch.arange(M) // 300}),
        ("t5", {"mask": (torch.arange(M) >= 40)[None, None, None]}),
        ("rope", {"mask": (torch.arange(M) % 7 > 0)[None, None, None]}),
        ("kerple", {"causal": False}),
        ("nope", {"dropout_p": 0.1}),
    ],
    ids=str,
)
def test_no_backend_but_the_reference_makes_a_matrix_of_scores(name: str, options: dict[str, Any]) -> None:
    n = M
    encoding, pos = made(name).float(), positions.arange(n)
    q, k, v = (normal(1, HEADS, n, LANES, seed=s).float().requires_grad_() for s in range(3))
    verdicts = explain(q, k, v, encoding, encoding.place(pos), **options)
    names = [v.backend for v in verdicts if v.verdict in ("taken", "would run")]
    for backend in [b for b in names if not b.startswith("reference")]:
        with Largest() as seen:
            attend(q, k, v, encoding, encoding.place(pos), backend=backend, **options).sum().backward()
        assert seen.numbers < n * n, backend
    with Largest() as seen:
        attend(q, k, v, encoding, encoding.place(pos), backend="reference", **options)
    assert seen.numbers >= n * n  # so that it would be seen


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_CELLS)
def test_nor_of_an_image(name: str) -> None:
    pos, shapes = positions.grid(30, 40), {"n_heads": HEADS, "window": (30, 40)}
    shapes = {"head_dim": LANES, "size": (30, 40)} if name == "decomposed_2d" else shapes
    encoding = posenc.registry.create(name, **shapes)
    q, k, v = (normal(1, HEADS, M, LANES, seed=s).float().requires_grad_() for s in range(3))
    with Largest() as seen:
        attend(q, k, v, encoding, pos, causal=False).sum().backward()
    assert seen.numbers < M * M


@pytest.mark.slow
@pytest.mark.parametrize("name", ["transformer_xl", "shaw"])
def test_products_are_formed_for_some_heads_at_a_time(name: str) -> None:
    n = M
    encoding, pos = made(name).float(), positions.arange(n)
    q, k, v = (normal(1, HEADS, n, LANES, seed=s).float().requires_grad_() for s in range(3))
    for learns in (False, True):
        with Largest() as seen, torch.set_grad_enabled(learns):
            out = attend(q, k, v, encoding, pos, backend="blocked")
            _ = out.sum().backward() if learns else None
        assert seen.numbers < HEADS * plan.SHORT * n


@pytest.mark.parametrize("name", ["deberta", "fire"])
@pytest.mark.parametrize("backend", ["blocked", "reference"])
def test_a_transform_of_the_values_alone(name: str, backend: str) -> None:
    options = {"head_dim": LANES, "n_buckets": 4, "max_distance": 8} if name == "deberta" else {}
    encoding, pos = posenc.registry.create(name, n_heads=HEADS, **options).double(), positions.arange(N)
    q, k, v = (t.detach() for t in tensors(1))
    many = normal(3, *v.shape, seed=3)

    def step(values: Tensor) -> Tensor:
        return attend(q, k, values, encoding, encoding.place(pos[-1:]), encoding.place(pos), backend=backend)

    found = torch.vmap(step)(many)
    torch.testing.assert_close(found, torch.stack([step(values) for values in many]))


@pytest.mark.sample(20)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", ["t5", "shaw", "deberta", "cope"])
def test_a_transform_with_masks(name: str, mask: str) -> None:
    encoding, options, pos = made(name), dict(MASKS[mask]), positions.arange(N)
    q_len = options.pop("q_len", 70)
    q, k, v = (t.detach() for t in tensors(q_len))
    many = torch.stack((v, 2 * v))
    placed = [encoding.place(p, dtype=torch.float64) for p in (pos[-q_len:], pos)]
    found = torch.vmap(lambda values: attend(q, k, values, encoding, *placed, **options))(many)
    wanted = attend(q, k, v, encoding, *placed, backend="reference", **options)
    torch.testing.assert_close(found, torch.stack((wanted, 2 * wanted)), rtol=0, atol=1e-10)


def test_a_transform_of_documents() -> None:
    encoding, (q, k, v) = made("t5"), (t.detach() for t in tensors(N))
    ids = torch.stack((IDS, IDS.flip(0)))

    def step(ids: Tensor) -> Tensor:
        return attend(q, k, v, encoding, positions.arange(N), document_ids=ids)

    torch.testing.assert_close(torch.vmap(step)(ids), torch.stack([step(row) for row in ids]), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["alibi", "t5", "shaw", "tupe", "fox", "cope"])
def test_dropout_drops_the_same_weights_backwards(name: str) -> None:
    """Differences of the loss along a direction are what the gradients of all say, with the same seed."""
    encoding, pos = made(name), positions.arange(N)
    learned = {f"encoding.{n}": p.detach() for n, p in encoding.named_parameters()}
    given = [*(t.detach() for t in tensors(N)), *learned.values()]

    class Loss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoding = encoding

        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            torch.manual_seed(1)
            placed = self.encoding.place(pos, dtype=torch.float64)
            out = attend(q, k, v, self.encoding, placed, dropout_p=0.3, backend="blocked")
            return out.square().sum()

    def loss(q: Tensor, k: Tensor, v: Tensor, *tables: Tensor) -> Tensor:
        found: Tensor = torch.func.functional_call(Loss(), dict(zip(learned, tables, strict=True)), (q, k, v))
        return found

    here = [t.clone().requires_grad_() for t in given]
    slopes = torch.autograd.grad(loss(*here), here)
    steps = [normal(*t.shape, seed=i) for i, t in enumerate(given)]
    ends = [loss(*(t + s * step for t, step in zip(given, steps, strict=True))) for s in (1e-6, -1e-6)]
    measured = (ends[0] - ends[1]) / 2e-6
    found = sum((slope * step).sum() for slope, step in zip(slopes, steps, strict=True))
    torch.testing.assert_close(found, measured, rtol=1e-6, atol=0)


def test_a_tensor_beside_the_parameters_is_refused_where_its_gradient_would_be_lost() -> None:
    bias = posenc.T5(n_heads=HEADS).double()
    weight = normal(32, HEADS).requires_grad_()
    del bias.weight
    bias.weight = 2 * weight  # type: ignore[assignment]
    q, k, v = tensors(N)
    verdicts = {v.backend: v.verdict for v in explain(q, k, v, bias, positions.arange(N))}
    assert "T5.weight carries gradients but is not a parameter" in verdicts["blocked"]
    out = attend(q, k, v, bias, positions.arange(N))
    assert torch.autograd.grad(out.square().sum(), weight)[0].abs().max() > 0


def test_a_subclass_that_changes_the_bias_inherits_no_promise() -> None:
    class Reversed(posenc.ALiBi):
        def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
            return -super().at(h, q, k) * q  # no function of the distance

    q, k, v = tensors(N)
    encoding, pos = Reversed(n_heads=HEADS), positions.arange(N)
    got, wanted = (attend(q, k, v, encoding, pos, backend=b) for b in ("blocked", "reference"))
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-11)


class Kept(posenc.ContentBias):
    """A term on the scores that its encoding keeps, as a buffer or a parameter; `of` says which."""

    def __init__(self, of: str) -> None:
        super().__init__()
        bias = normal(1, HEADS, N, N, seed=3)
        self.bias_: Tensor
        if of == "buffer":
            self.register_buffer("bias_", bias)
        else:
            self.register_parameter("bias_", torch.nn.Parameter(bias))

    def bias(self, q: Tensor, k: Tensor, placed: posenc.Placed, k_placed: posenc.Placed) -> Tensor:
        return self.bias_.detach()


@pytest.mark.parametrize("of", ["buffer", "parameter"])
def test_what_an_encoding_keeps_is_not_written_to(of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LONG", "SHORT", "LEAST"):
        monkeypatch.setattr(blocked, name, N)  # so that one block is all of it
    encoding = Kept(of)
    before = encoding.bias_.detach().clone()
    q, k, v = (normal(1, HEADS, N, LANES, seed=i) for i in range(3))
    pos = positions.arange(N)
    with torch.no_grad():
        got = attend(q, k, v, encoding, pos, backend="blocked")
    torch.testing.assert_close(got, attend(q, k, v, encoding, pos, backend="reference"))
    assert torch.equal(encoding.bias_, before)
