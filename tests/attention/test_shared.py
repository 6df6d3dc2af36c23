"""Biases that are products and serve all items of a batch: formed once a block, some heads after the others."""

import pytest
import torch

import posenc
from posenc import attend, explain, positions
from posenc.attention import plan, shared
from strategies import normal, randomise

N, HEADS, LANES = 70, 4, 8
TOLERANCES = {torch.float64: 1e-12, torch.float32: 3e-6, torch.float16: 3e-3, torch.bfloat16: 2e-2}


class Rows(posenc.Bias):
    """A product that leaves the scale as it is, so that terms of content may stand beside it."""

    factors_ahead = True

    def __init__(self):
        super().__init__(n_heads=HEADS)
        self.row = torch.nn.Parameter(normal(HEADS, N, LANES, seed=8).float())

    def at(self, h, q, k):
        return (self.row[h, q.long()] * self.row[h, k.long()]).sum(-1)

    def factors(self, placed, k_placed):
        return tuple(self.row[:, p.parts[0].long()][None] for p in (placed, k_placed))


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(plan, "SHORT", 16)
    monkeypatch.setattr(shared, "LEAST", 1)


@pytest.fixture
def runs(monkeypatch):
    """In how many parts each call ran that was taken here."""
    seen = []

    def run(call, one, n_rows):
        parts = []
        out = real(call, lambda part: parts.append(part) or one(part), n_rows)
        seen.append(len(parts))
        return out

    real = shared.run
    monkeypatch.setattr(shared, "run", run)
    return seen


def tupe(dtype=torch.float32, **options):
    made = randomise(posenc.TUPE(n_heads=HEADS, head_dim=LANES, max_len=2 * N, **options), 1)
    return made.to(dtype)


def tensors(batch, heads, dtype, *, q_len=N - 20, k_len=N, width=5):
    shapes = (batch, HEADS, q_len, LANES), (batch, heads, k_len, LANES), (batch, heads, k_len, width)
    return [normal(*shape, seed=i).to(dtype) for i, shape in enumerate(shapes)]


@pytest.mark.parametrize("width", [5, LANES, 20])
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize(("heads", "batch", "in_parts"), [(4, 2, True), (4, 50, False), (2, 3, True), (1, 2, True)])
@pytest.mark.parametrize("causal", [True, False])
def test_the_law_in_every_dtype(width, dtype, heads, batch, in_parts, causal, runs):
    encoding, pos = tupe(torch.float64 if dtype == torch.float64 else torch.float32), positions.arange(N)
    q, k, v = tensors(batch, heads, dtype, width=width)
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    placed = [encoding.place(p, dtype=exact) for p in (pos[20:], pos)]
    with torch.no_grad():
        found = attend(q, k, v, encoding, *placed, causal=causal, backend="blocked")
        wide = [t.double() for t in (q, k, v)]
        wanted = attend(*wide, encoding.double(), pos[20:], pos, causal=causal, backend="reference-float64")
    assert found.dtype == dtype
    assert (found.double() - wanted).abs().max() < TOLERANCES[dtype] * max(1.0, float(wanted.abs().max()))
    assert len(runs) == 1
    assert (runs[0] > 1) == in_parts


MASKED = {
    "documents": ({"document_ids": torch.arange(N) // 30}, True),
    "documents of each item": ({"document_ids": torch.arange(N).expand(2, N) // torch.tensor([[30], [20]])}, False),
    "a window": ({"window": 20}, True),
    "keys shown to all": ({"mask": (torch.arange(N) < N - 9)[None, None, None]}, True),
    "keys shown by item": ({"mask": torch.arange(N) < torch.tensor([N - 9, N - 30])[:, None, None, None]}, False),
    "a mask of pairs": ({"mask": normal(1, 1, N, N, seed=5) > -1}, True),
    "a mask of scores": ({"mask": normal(1, HEADS, N, N, seed=6)}, True),
    "a mask of each item": ({"mask": normal(2, 1, N, N, seed=7) > -1}, False),
}


@pytest.mark.parametrize("name", MASKED)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("encoding", [tupe(), tupe(untie_cls=False), "with T5"], ids=["tupe", "tied", "with T5"])
def test_masks_and_where_each_item_has_its_own(name, causal, encoding, runs):
    (options, together), pos = MASKED[name], positions.arange(N)
    if encoding == "with T5":
        encoding = posenc.Compose(tupe(), randomise(posenc.T5(n_heads=HEADS), 2))
    call = *tensors(2, 2, torch.float64, q_len=N), encoding.double(), pos
    with torch.no_grad():
        found = attend(*call, causal=causal, backend="blocked", **options)
        wanted = attend(*call, causal=causal, backend="reference", **options)
    assert (found - wanted).abs().max() < 1e-11
    assert bool(runs) == together


def test_what_is_not_shared_or_learns_runs_elsewhere(runs):
    each, one = positions.arange(N) + torch.tensor([[0], [3]]), positions.arange(N)
    two = tensors(2, 4, torch.float32, q_len=N)
    fire, shaw = randomise(posenc.FIRE(n_heads=HEADS), 1), randomise(posenc.Shaw(head_dim=LANES), 1)
    with torch.no_grad():
        attend(*tensors(1, 4, torch.float32, q_len=N), tupe(), one, backend="blocked")
        attend(*two, tupe(), each, backend="blocked")
        attend(*two, fire, one, backend="blocked")
        found = attend(*two, posenc.Compose(Rows(), shaw), one, backend="blocked")
        wanted = attend(*two, posenc.Compose(Rows(), shaw), one, backend="reference")
        assert (found - wanted).abs().max() < 1e-5
    attend(*two, tupe(), one, backend="blocked").sum().backward()
    assert runs == []
    with torch.no_grad():
        attend(*two, tupe(), one[None], backend="blocked")
        attend(*two, Rows(), one, backend="blocked")
    assert len(runs) == 2


def test_queries_that_see_nothing_get_zeros():
    q, k, v = tensors(3, 4, torch.float32, q_len=N, k_len=30)
    with torch.no_grad():
        found = attend(q, k, v, tupe(), positions.arange(N), positions.arange(30), backend="blocked")
    assert bool((found[:, :, : N - 30] == 0).all())
    assert bool((found[:, :, N - 30 :].isfinite() & (found[:, :, N - 30 :] != 0)).all())


@pytest.mark.parametrize(("batch", "q_len", "k_len"), [(0, 3, 3), (2, 0, 5), (2, 4, 0), (2, 0, 0)])
def test_of_nothing_nothing_is_formed(batch, q_len, k_len):
    call = *tensors(batch, 4, torch.float32, q_len=q_len, k_len=k_len), tupe(), torch.arange(q_len), torch.arange(k_len)
    with torch.no_grad():
        found = attend(*call, causal=False, backend="blocked")
        assert all(one.memory >= 0 for one in explain(*call, causal=False))
    assert torch.equal(found, torch.zeros(batch, HEADS, q_len, 5))


@pytest.mark.parametrize(("dtype", "batch"), [(torch.float32, 16), (torch.bfloat16, 16), (torch.bfloat16, 4)], ids=str)
def test_more_items_take_no_more_biases(dtype, batch, monkeypatch):
    """What is told grows with what of results is formed at once, and not with scores."""
    monkeypatch.setattr(plan, "SHORT", 256)
    encoding, pos = posenc.TUPE(n_heads=8, head_dim=64, max_len=512), positions.arange(512)
    q = torch.empty(batch, 8, 512, 64, dtype=dtype)
    with torch.no_grad():
        (told,) = (one for one in explain(q, q, q, encoding, pos, causal=False) if one.backend == "blocked")
    assert told.verdict == "taken"
    assert told.memory < 1.5 * q.nbytes
