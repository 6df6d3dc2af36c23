"""A token of NaN or infinity spoils the queries that may see it, and no others: in every backend, both ways."""

from types import SimpleNamespace

import pytest
import torch

import posenc
from bench_calls import look_at_nothing
from posenc import attention, positions
from posenc.attention import finite

N = 150  # more than one block of 64, and documents shorter than that
IDS = torch.arange(N) // 20
MASK = torch.rand(1, 4, N, N, generator=torch.Generator().manual_seed(0)) < 0.6
CALLS = {
    "causal": {},
    "window": {"window": 9},
    "window both ways": {"window": 9, "causal": False},
    "documents": {"document_ids": IDS},
    "documents by row": {"document_ids": torch.stack((IDS, torch.arange(N) // 31)), "causal": False},
    "documents in turns": {"document_ids": torch.arange(N) % 3},
    "mask": {"mask": MASK, "causal": False},
    "floating mask": {"mask": torch.zeros(1, 4, N, N).masked_fill(~MASK, -torch.inf)},
    "padding": {"mask": (torch.arange(N) > 70).expand(2, 1, 1, N)},
}
ENCODINGS = {
    "nope": posenc.Encoding(),
    "rope": posenc.RoPE(head_dim=8),
    "alibi": posenc.ALiBi(n_heads=4),
    "t5": posenc.T5(n_heads=4),
    "shaw": posenc.Shaw(head_dim=8, max_distance=5),
    "tupe": posenc.TUPE(n_heads=4, head_dim=8, max_len=N),
    "cope": posenc.CoPE(head_dim=8, max_count=16),
}


def allowed(causal=True, window=None, mask=None, document_ids=None):
    i, j = torch.arange(N)[:, None], torch.arange(N)
    seen = torch.ones(2, 4, N, N, dtype=torch.bool)
    if causal:
        seen &= j <= i
    if window is not None:
        seen &= (i - j).abs() < window
    if mask is not None:
        seen &= mask if mask.dtype == torch.bool else mask == 0
    if document_ids is not None:
        ids = document_ids.expand(2, N)
        seen &= (ids[:, :, None] == ids[:, None])[:, None]
    return seen


def drawn(dtype=torch.float64):
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(2, heads, N, 8, generator=generator, dtype=torch.float64).to(dtype) for heads in (4, 2, 2)]


@pytest.fixture
def unseen(monkeypatch):
    look_at_nothing(monkeypatch.setattr)


@pytest.mark.sample(24)
@pytest.mark.parametrize("options", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("encoding", ENCODINGS.values(), ids=ENCODINGS)
def test_where_values_are_not_looked_at_it_is_the_same(encoding, options, unseen):
    test_who_sees_it_is_spoiled_and_nobody_else(encoding, options, "v", torch.nan)


@pytest.mark.sample(10)
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's own
@pytest.mark.parametrize("options", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("name", ["rope", "t5", "cope"])
def test_within_transforms_it_is_the_same(name, options):
    encoding, (q, k, v), pos = ENCODINGS[name], drawn(), positions.arange(N)
    spoiled = v.clone()
    spoiled[0, 1, 75, 3] = torch.nan
    wanted = posenc.attend(q, k, spoiled, encoding, pos, **options)

    def attend(q, v):
        return posenc.attend(q, k, v, encoding, pos, **options)

    mapped = torch.vmap(attend, in_dims=(None, 0))(q, torch.stack((v, spoiled)))
    torch.testing.assert_close(mapped[1], wanted, rtol=0, atol=1e-12, equal_nan=True)
    blind = wanted.isnan()
    assert 0 < int(blind.sum()) < blind.numel()
    found = [
        torch.func.grad(lambda q, v=values: attend(q, v).masked_fill(blind, 0.0).square().sum())(q)
        for values in (v, spoiled)
    ]
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-11)


@pytest.mark.sample(32)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("where", ["k", "v"])
@pytest.mark.parametrize("options", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("encoding", ENCODINGS.values(), ids=ENCODINGS)
def test_who_sees_it_is_spoiled_and_nobody_else(encoding, options, where, bad):
    q, k, v = drawn()
    spoiled = {"k": k.clone(), "v": v.clone()}
    spoiled[where][0, 1, 75, 3] = bad  # one number of one head of the keys, for two heads of queries
    sees = torch.zeros(2, 4, N, dtype=torch.bool)
    heads = slice(0, 4) if encoding.rescores else slice(2, 4)
    sees[0, heads] = allowed(**options)[0, heads, :, 75]
    pos = positions.arange(N)
    said = attention.explain(q, k, v, encoding, pos, **options)
    tried = [one.backend for one in said if one.verdict in ("taken", "would run") and one.backend != "flex"]
    assert "reference" in tried
    for backend in tried:
        clean = posenc.attend(q, k, v, encoding, pos, backend=backend, **options)
        got = posenc.attend(q, spoiled["k"], spoiled["v"], encoding, pos, backend=backend, **options)
        assert bool(got[sees].isnan().all())
        assert (got[~sees] - clean[~sees]).abs().max() < 1e-12


@pytest.mark.sample(12)
@pytest.mark.parametrize("options", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("encoding", ENCODINGS.values(), ids=ENCODINGS)
def test_a_query_of_nan_spoils_its_own_row(encoding, options):
    q, k, v = drawn()
    spoiled = q.clone()
    spoiled[0, 2, 75, 3] = torch.nan
    pos, own = positions.arange(N), torch.zeros(2, 4, N, dtype=torch.bool)
    own[0, 2, 75] = True
    for learns in (False, True):
        given = [t.requires_grad_(learns) for t in (q, spoiled, k, v)]
        said = attention.explain(*given[1:], encoding, pos, **options)
        tried = [one.backend for one in said if one.verdict in ("taken", "would run") and one.backend != "flex"]
        assert "reference" in tried
        for backend in tried:
            clean = posenc.attend(given[0], *given[2:], encoding, pos, backend=backend, **options).detach()
            got = posenc.attend(*given[1:], encoding, pos, backend=backend, **options).detach()
            assert bool(got[own].isnan().all()), backend
            assert (got[~own] - clean[~own]).abs().max() < 1e-12, backend


@pytest.mark.parametrize("options", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("backend", ["blocked", "reference"])
def test_gradients_of_the_others_are_as_ever(backend, options):
    encoding, pos, found = posenc.T5(n_heads=4), positions.arange(N), []
    for bad in (0.5, torch.nan):
        q, k, v = drawn()
        k[0, 1, 75, 3] = v[0, 1, 75] = bad
        leaves = [t.requires_grad_() for t in (q, k, v, encoding.weight)]
        out = posenc.attend(q, k, v, encoding, pos, backend=backend, **options)
        found.append((out, leaves))
    blind = found[1][0].isnan()
    results = [torch.autograd.grad(out.masked_fill(blind, 0.0).square().sum(), leaves) for out, leaves in found]
    for wanted, got in zip(*results, strict=True):
        assert (got - wanted).abs().max() < 1e-11


def test_a_query_of_nan_leaves_the_gradients_of_those_beside_it_alone():
    """Where keys are hidden, rows of products share their memory."""
    encoding = posenc.TransformerXL(d_model=6, n_heads=4, head_dim=8)
    q, k, v = (torch.randn(1, 4, N, 8, generator=torch.Generator().manual_seed(i)) for i in range(3))
    q[:, :, 40] = torch.nan
    q.requires_grad_()
    out = posenc.attend(q, k, v, encoding, positions.arange(N), backend="blocked")
    (found,) = torch.autograd.grad(out[:, :, :40].sum(), q)
    assert found.isnan().any(-1)[0, 0].nonzero().flatten().tolist() == [40]


def test_large_numbers_are_no_infinity():
    q, k, v = drawn(torch.float32)
    v[:] = 2e35  # a sum of 4,800 is infinite in float32
    out = posenc.attend(q, k, v, posenc.ALiBi(n_heads=4), positions.arange(N))
    assert bool(out.isfinite().all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_in_every_dtype(dtype):
    q, k, v = drawn(dtype)
    v[:, :, 75] = torch.nan
    out = posenc.attend(q, k, v, posenc.ALiBi(n_heads=4), positions.arange(N), backend="blocked")
    assert bool(out[:, :, :75].isfinite().all())
    assert bool(out[:, :, 75:].isnan().all())


@pytest.mark.parametrize("backend", ["sdpa", "blocked", "reference"])
@pytest.mark.parametrize("options", [{"mask": torch.tensor([[True, False]] * 2)}, {}], ids=["mask", "causal"])
@pytest.mark.parametrize("learns", [False, True])
def test_numbers_that_only_autocast_makes_infinite(learns, options, backend):
    q, k, v = (t[:1, :2, :2].float().requires_grad_(learns) for t in drawn())
    large = torch.tensor([[0.0], [1e6]])  # of the second token
    with torch.autocast("cpu", dtype=torch.float16):
        out = posenc.attend(q, k + large, v + large, posenc.NoPE(), torch.arange(2), backend=backend, **options)
    sees_the_first = out[:, :, : 2 if options else 1].float()
    torch.testing.assert_close(sees_the_first, v[:, :, :1].expand_as(sees_the_first), rtol=2**-10, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_looking_takes_no_copy(dtype):
    k, v = torch.randn(2, 1, 2, 4096, 32).to(dtype)
    call = SimpleNamespace(q=k, k=k, v=v, out_dtype=dtype)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as seen:
        assert finite._tame(call)
    assert max(event.cpu_memory_usage for event in seen.events()) < k.nbytes / 8


@pytest.mark.parametrize("huge", [1e30, 3e38])
@pytest.mark.parametrize("name", ["rope", "t5", "shaw"])
@pytest.mark.parametrize("backend", ["sdpa", "blocked", "reference"])
def test_huge_numbers_where_no_query_sees_them(backend, name, huge):
    """Finite, but their products are not: they change neither the result nor its gradients."""
    encoding, found = ENCODINGS[name].float(), []
    for filled in (0.0, huge):
        given = [t[:, :, :40].clone() for t in drawn(torch.float32)]
        for t in given[1:]:
            t[:, :, :9] = filled
        for t in given:
            t.requires_grad_()
        mask = torch.arange(40).expand(1, 1, 1, 40) >= 9
        out = posenc.attend(*given, encoding, positions.arange(40), mask=mask, causal=False, backend=backend)
        found.append([out, *torch.autograd.grad(out.square().sum(), given)])
    torch.testing.assert_close(found[1], found[0])


def test_a_bias_without_numbers_for_hidden_pairs():
    """A logarithm of the distance to earlier keys has none for later ones."""

    class Logarithm(posenc.Bias):
        def at(self, h, q, k):
            return -torch.log1p((q - k).double())

    q, k, v = drawn()
    pos = positions.arange(N)
    bias = -torch.log1p((pos[:, None] - pos).double().where(pos <= pos[:, None], torch.inf))
    scores = q @ k.repeat_interleave(2, 1).mT * 8**-0.5 + bias
    wanted = scores.softmax(-1) @ v.repeat_interleave(2, 1)
    for mask in (None, torch.ones(1, 1, 1, N, dtype=torch.bool)):
        torch.testing.assert_close(posenc.attend(q, k, v, Logarithm(n_heads=4), pos, mask=mask), wanted)
