"""Attention in blocks: equal to the reference, forwards and backwards, with blocks so small that there are many."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import posenc
from posenc import Compose, attend, positions
from posenc.attention import BACKENDS, explain, heads, plan, products, spans
from posenc.attention.call import make_call
from strategies import check, normal

N, HEADS, LANES = 90, 4, 8
IDS = torch.repeat_interleave(torch.tensor([3, 0, 7]), torch.tensor([15, 65, 10]))
LEFT = torch.arange(N) >= torch.tensor([[0], [30]])


class Gates(posenc.FoX):
    """FoX with tokens of its own, so that it is placed as others are."""

    def place(self, pos: Tensor, x: Tensor | None = None, **options: Any) -> posenc.Placed:
        x = normal(1, pos.shape[-1], 6, seed=9).to(self.weight.dtype)
        return super().place(pos, x, **options)


class Waves(posenc.Bias):
    """Of distances alone, and a product of many lanes as well: whoever serves it must take one of both."""

    by_distance, factors_ahead = True, True

    def __init__(self) -> None:
        super().__init__(n_heads=HEADS)
        self.freq = torch.nn.Parameter(torch.empty(HEADS, 3))

    def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
        total: Tensor = (self.freq[h] * (q - k)[..., None]).cos().sum(-1)
        return total

    def factors(self, placed: posenc.Placed, k_placed: posenc.Placed) -> tuple[Tensor, Tensor]:
        angles = (p.parts[0].double()[..., None, :, None] * self.freq[:, None] for p in (placed, k_placed))
        rows, keys = (torch.cat((angle.cos(), angle.sin()), -1) for angle in angles)
        return rows[(None,) * (4 - rows.ndim)], keys[(None,) * (4 - keys.ndim)]


def made(name: str) -> posenc.Encoding:
    """One encoding for each way in which scores are joined, with parameters that are not small."""
    kinds: dict[str, Any] = {
        "nope": posenc.NoPE,
        "rope": lambda: posenc.RoPE(head_dim=LANES),
        "alibi": lambda: posenc.ALiBi(n_heads=HEADS),
        "t5": lambda: posenc.T5(n_heads=HEADS),
        "kerple": lambda: posenc.KERPLE(n_heads=HEADS),
        "waves": Waves,
        "shaw": lambda: posenc.Shaw(head_dim=LANES),
        "transformer_xl": lambda: posenc.TransformerXL(d_model=6, n_heads=HEADS, head_dim=LANES),
        "fire": lambda: posenc.FIRE(n_heads=HEADS),
        "fox": lambda: Gates(d_model=6, n_heads=HEADS),
        "tupe": lambda: posenc.TUPE(n_heads=HEADS, head_dim=LANES, max_len=3 * N),
        "deberta": lambda: posenc.DeBERTa(n_heads=HEADS, head_dim=LANES, n_buckets=6, max_distance=9),
        "cope": lambda: posenc.CoPE(head_dim=LANES, max_count=7),
        "rerope": lambda: posenc.ReRoPE(head_dim=LANES, window=20),
        "two vectors, turned": lambda: Compose(
            posenc.KERPLE(n_heads=HEADS), posenc.RoPE(head_dim=LANES), posenc.T5(n_heads=HEADS)
        ),
        "product and vector": lambda: Compose(
            posenc.TUPE(n_heads=HEADS, head_dim=LANES, max_len=3 * N), posenc.T5(n_heads=HEADS)
        ),
        "vector and rows": lambda: Compose(posenc.T5(n_heads=HEADS), posenc.Shaw(head_dim=LANES)),
        "pieces and vector": lambda: Compose(
            posenc.DeBERTa(n_heads=HEADS, head_dim=LANES, n_buckets=6, max_distance=9, terms=("p2c",)),
            posenc.T5(n_heads=HEADS),
        ),
    }
    torch.manual_seed(5)
    encoding: posenc.Encoding = kinds[name]().double()
    for parameter in encoding.parameters():
        torch.nn.init.normal_(parameter)
    return encoding


NAMES = ["nope", "rope", "alibi", "t5", "kerple", "waves", "shaw", "transformer_xl", "fire", "fox", "tupe"]
NAMES += ["deberta", "cope", "rerope", "two vectors, turned"]
NAMES += ["product and vector", "vector and rows", "pieces and vector"]
TABLES = ("tupe", "product and vector")  # learned positions end
MASKS: dict[str, dict[str, Any]] = {
    "causal": {},
    "bidirectional": {"causal": False},
    "window": {"window": 7},
    "window both ways": {"window": 7, "causal": False},
    "documents": {"document_ids": IDS},
    "documents by row": {"document_ids": torch.stack((IDS, IDS.flip(0)))},
    "documents interleaved": {"document_ids": torch.arange(N) % 3},
    "left padding": {"mask": LEFT[:, None, None]},
    "left padding as numbers": {"mask": torch.zeros(2, 1, 1, N).double().masked_fill(~LEFT[:, None, None], -torch.inf)},
    "the first keys alone": {"mask": (torch.arange(N) < 6)[None, None, None]},  # far from most queries
    "right padding": {"mask": LEFT.flip(1)[:, None, None], "causal": False},
    "padding with a hole": {"mask": (LEFT & (torch.arange(N) // 5 != 9))[:, None, None], "window": 40},
    "a row that sees nothing": {"mask": (torch.arange(N) < 80)[:, None] & (torch.arange(N) > 5), "q_len": N},
    "numbers": {"mask": normal(N, N, seed=4), "q_len": N},
    "by head": {"mask": normal(2, HEADS, N, N, seed=4) > 0, "q_len": N},
}
PLACES = {
    "in order": positions.arange(N),
    "far": positions.arange(N, start=10_000),
    "packed": positions.packed(IDS),
    "left padded": positions.left_padded(LEFT),
    "spread": 2 * positions.arange(N),
    "scattered": (positions.arange(N) * 7919) % N,
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few queries, one head after the other, so that ninety tokens make many."""
    monkeypatch.setattr(heads, "AT_ONCE", 0)
    monkeypatch.setattr(plan, "LONG", 24)
    monkeypatch.setattr(plan, "SHORT", 16)
    monkeypatch.setattr(products, "ROWS", 16)
    monkeypatch.setattr(products, "STRETCH", 40)
    monkeypatch.setattr(spans, "SHORTEST", 10)


def tensors(q_len: int) -> list[Tensor]:
    shapes = ((2, HEADS, q_len, LANES), (2, 2, N, LANES), (2, 2, N, 5))
    return [normal(*shape, seed=seed).requires_grad_() for seed, shape in enumerate(shapes)]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", NAMES)
def test_every_backend_equals_the_reference(name: str, mask: str) -> None:
    encoding, options = made(name), dict(MASKS[mask])
    q_len = options.pop("q_len", 70)  # a cache of twenty, where the mask lets it
    q, k, v = tensors(q_len)
    wanted_of = [q, k, v, *encoding.parameters()]
    ran = set()
    for where, pos in PLACES.items():
        if name in TABLES and where == "far":
            continue  # learned positions end
        placed, k_placed = (encoding.place(p, dtype=torch.float64) for p in (pos[..., N - q_len :], pos))
        call = (q, k, v, encoding, placed, k_placed)
        wanted = attend(*call, backend="reference", **options)
        pull = normal(*wanted.shape, seed=8)
        exact = torch.autograd.grad(wanted, wanted_of, pull, allow_unused=True, retain_graph=True)
        for verdict in explain(*call, **options):
            if verdict.verdict not in ("taken", "would run") or verdict.backend.startswith("reference"):
                continue
            ran.add(verdict.backend)
            got = attend(*call, backend=verdict.backend, **options)
            what = f"{verdict.backend}, {where}"
            torch.testing.assert_close(got, wanted, rtol=0, atol=1e-11, msg=lambda m, w=what: f"{w}: {m}")
            with torch.no_grad():
                free = attend(*call, backend=verdict.backend, **options)
            torch.testing.assert_close(free, wanted, rtol=0, atol=1e-11, msg=lambda m, w=what: f"{w}, free: {m}")
            found = torch.autograd.grad(got, wanted_of, pull, allow_unused=True, retain_graph=True)
            for mine, theirs in zip(found, exact, strict=True):
                mine, theirs = (torch.zeros(()) if t is None else t for t in (mine, theirs))
                bound = 1e-10 * max(1.0, float(theirs.abs().max()))
                assert float((mine - theirs).abs().max()) <= bound, what
    assert "blocked" in ran


def test_masks_that_learn_get_their_gradients() -> None:
    q, k, v = tensors(N)
    mask = normal(HEADS, N, N, seed=6).requires_grad_()
    found = []
    for backend in ("reference", "blocked", "distance"):
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
    rows, more = data.draw(st.integers(1, 70)), data.draw(st.sampled_from((1, 2, 4)))
    longest = max((int(high - low) for low, high in zip(*part.ends, strict=True)), default=0)
    for block in part.blocks(rows, [], more=more):
        n, n_keys = block.size
        assert n <= rows or (n <= more * rows and n * n_keys <= rows * longest)
        inside = part.allowed(block)
        shown = torch.ones(block.size, dtype=torch.bool) if inside is None else inside.expand(1, 1, *block.size)[0, 0]
        seen[block.rows, block.keys] += shown
    assert torch.equal(seen, wanted.long())


def test_blocks_have_more_queries_where_keys_are_few() -> None:
    q, pos = normal(1, 1, 64, 2), positions.arange(64)
    call = make_call(q, q, q, posenc.NoPE(), pos, pos, False, True, None, None, None, None, 0.0, "auto")
    sizes = [block.size for block in spans.Spans(call).blocks(8, [], more=4)]
    assert sizes == [(16, 16), (16, 32), *((8, n) for n in (40, 48, 56, 64))]


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that is made."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        own = [t.untyped_storage().nbytes() // t.itemsize for t in tree_leaves(out) if isinstance(t, Tensor)]
        self.largest = max([self.largest, *own])
        return out


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *[(name, {}) for name in NAMES if name not in ("rope", *TABLES)],
        ("nope", {"window": 100}),
        ("alibi", {"document_ids": torch.arange(1200) // 300}),
        ("t5", {"mask": (torch.arange(1200) >= 40)[None, None, None]}),
        ("rope", {"mask": (torch.arange(1200) % 7 > 0)[None, None, None]}),
        ("kerple", {"causal": False}),
        ("nope", {"dropout_p": 0.1}),
    ],
    ids=str,
)
def test_no_backend_but_the_reference_makes_a_matrix_of_scores(name: str, options: dict[str, Any]) -> None:
    n = 1200
    encoding, pos = made(name).float(), positions.arange(n)
    q, k, v = (normal(1, HEADS, n, LANES, seed=s).float().requires_grad_() for s in range(3))
    verdicts = explain(q, k, v, encoding, encoding.place(pos), **options)
    names = [v.backend for v in verdicts if v.verdict in ("taken", "would run")]
    for backend in [b for b in names if not b.startswith("reference")]:
        with Largest() as seen:
            attend(q, k, v, encoding, encoding.place(pos), backend=backend, **options).sum().backward()
        assert seen.largest < n * n, backend
    with Largest() as seen:
        attend(q, k, v, encoding, encoding.place(pos), backend="reference", **options)
    assert seen.largest >= n * n  # so that it would be seen


@pytest.mark.parametrize("name", ["transformer_xl", "shaw"])
def test_products_are_formed_for_some_heads_at_a_time(name: str) -> None:
    n = 1200
    encoding, pos = made(name).float(), positions.arange(n)
    q, k, v = (normal(1, HEADS, n, LANES, seed=s).float().requires_grad_() for s in range(3))
    for learns in (False, True):
        with Largest() as seen, torch.set_grad_enabled(learns):
            out = attend(q, k, v, encoding, pos, backend="blocked")
            _ = out.sum().backward() if learns else None
        assert seen.largest < HEADS * plan.SHORT * n


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


def test_dropout_drops_the_same_weights_backwards() -> None:
    """Differences of the loss along a direction are what the gradient says, with the same seed."""
    q, k, v = (t.detach() for t in tensors(N))
    encoding, pos = made("alibi"), positions.arange(N)

    def loss(values: Tensor) -> Tensor:
        torch.manual_seed(1)
        return attend(q, k, values, encoding, pos, dropout_p=0.3, backend="blocked").square().sum()

    here = v.clone().requires_grad_()
    slope = torch.autograd.grad(loss(here), here)[0]
    step = normal(*v.shape, seed=3)
    measured = (loss(v + 1e-5 * step) - loss(v - 1e-5 * step)) / 2e-5
    torch.testing.assert_close((slope * step).sum(), measured, rtol=1e-6, atol=0)


def test_a_tensor_beside_the_parameters_is_refused_where_its_gradient_would_be_lost() -> None:
    bias = posenc.T5(n_heads=HEADS).double()
    weight = normal(32, HEADS).requires_grad_()
    del bias.weight
    bias.weight = 2 * weight  # type: ignore[assignment]
    q, k, v = tensors(N)
    verdicts = {v.backend: v.verdict for v in explain(q, k, v, bias, positions.arange(N))}
    assert "T5.weight carries gradients and is no parameter" in verdicts["blocked"]
    out = attend(q, k, v, bias, positions.arange(N))
    assert torch.autograd.grad(out.square().sum(), weight)[0].abs().max() > 0


def test_a_subclass_that_changes_the_bias_inherits_no_promise() -> None:
    class Reversed(posenc.ALiBi):
        def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
            return -super().at(h, q, k) * q  # no function of the distance

    q, k, v = tensors(N)
    verdicts = {v.backend: v.verdict for v in explain(q, k, v, Reversed(n_heads=HEADS), positions.arange(N))}
    assert "Reversed is no function of whole distances" in verdicts["distance"]
    assert "Reversed is no product" in verdicts["lanes"]
    assert list(verdicts) == list(BACKENDS)


def test_a_subclass_whose_far_vectors_differ_inherits_no_promise_that_they_are_one() -> None:
    class Fading(posenc.Shaw):
        by_distance = True  # which it says again

        def vectors(self, distance: Tensor, dtype: torch.dtype) -> Tensor:
            return super().vectors(distance, dtype) * 0.9 ** distance[:, None].to(dtype)

        def bias(self, q: Tensor, k: Tensor, placed: posenc.Placed, k_placed: posenc.Placed) -> Tensor:
            distance = placed.pos[:, None] - k_placed.pos
            return super().bias(q, k, placed, k_placed) * 0.9 ** distance.double()

    encoding = Fading(head_dim=LANES, max_distance=5).double()
    torch.nn.init.normal_(encoding.weight)
    q, k, v = tensors(N)
    with torch.no_grad():
        got, wanted = (attend(q, k, v, encoding, positions.arange(N), backend=b) for b in ("blocked", "reference"))
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
    monkeypatch.setattr(plan, "SHORT", N)  # so that one block is all of it
    encoding = Kept(of)
    before = encoding.bias_.detach().clone()
    q, k, v = (normal(1, HEADS, N, LANES, seed=i) for i in range(3))
    pos = positions.arange(N)
    with torch.no_grad():
        got = attend(q, k, v, encoding, pos, backend="blocked")
    torch.testing.assert_close(got, attend(q, k, v, encoding, pos, backend="reference"))
    assert torch.equal(encoding.bias_, before)
