"""Biases that are products, without gradients: blocks of scores by two products, in every dtype and layout."""

import pytest
import torch

import posenc
from posenc import attention, positions
from posenc.attention import products, scratch

N, HEADS, LANES = 70, 4, 8
TOLERANCES = {torch.float64: 1e-12, torch.float32: 3e-6, torch.float16: 3e-3, torch.bfloat16: 2e-2}
LAYOUTS = {
    "heads first": lambda t: t,
    "tokens first": lambda t: t.transpose(1, 2).contiguous().transpose(1, 2),
    "lanes first": lambda t: t.mT.contiguous().mT,
    "part of a longer cache": lambda t: torch.cat([t, torch.full_like(t, torch.nan)], 2)[:, :, : t.shape[2]],
}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(products, "ROWS", 16)
    monkeypatch.setattr(products, "STRETCH", 40)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)  # they share the rows of one product
    monkeypatch.setattr(scratch, "SHARE", 1)


def made(*, learned=None):
    torch.manual_seed(3)
    tupe = posenc.TUPE(n_heads=HEADS, head_dim=LANES, max_len=N)
    for p in tupe.parameters():
        torch.nn.init.normal_(p)
    return tupe.to(learned)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize(("heads", "batch"), [(4, 2), (2, 2), (1, 1)])
@pytest.mark.parametrize("causal", [True, False])
def test_the_law_in_every_dtype_and_layout(layout, dtype, heads, batch, causal):
    tupe = made(learned=torch.float64 if dtype == torch.float64 else None)
    pos = positions.arange(N) if batch == 1 else positions.arange(N).expand(batch, N)  # of each item its own
    shapes = (batch, HEADS, N - 20, LANES), (batch, heads, N, LANES), (batch, heads, N, 5)
    q, k, v = (LAYOUTS[layout](torch.randn(shape, dtype=torch.float64).to(dtype)) for shape in shapes)
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    placed = [tupe.place(p, dtype=exact) for p in (pos[..., 20:], pos)]
    with torch.no_grad():
        found = posenc.attend(q, k, v, tupe, *placed, causal=causal, backend="blocked")
        wide = [t.double() for t in (q, k, v)]
        wanted = posenc.attend(*wide, tupe.double(), pos[..., 20:], pos, causal=causal, backend="reference-float64")
    assert found.dtype == dtype
    assert (found.double() - wanted).abs().max() < TOLERANCES[dtype] * max(1.0, float(wanted.abs().max()))


@pytest.mark.parametrize("short", [N, N + 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("causal", [True, False])
def test_keys_of_a_short_text_some_after_the_others(short, dtype, causal, monkeypatch):
    """Of one head, whose keys each thread would copy; of a long text those of no block, however few these are."""
    monkeypatch.setattr(products, "SHORT", short)
    monkeypatch.setattr(products, "COLUMNS", 32)  # of 70, which are no multiple
    monkeypatch.setattr(products, "PARTS", HEADS)
    columns = []
    monkeypatch.setattr(torch, "mm", lambda a, b, out: columns.append(b.shape[1]) or torch.matmul(a, b, out=out))
    tupe, pos = made(), positions.arange(N)
    q, k, v = torch.randn(3, 1, HEADS, N, LANES).to(dtype)
    with torch.no_grad():
        found = posenc.attend(q, k, v, tupe, pos, causal=causal, backend="blocked")
        wide = [t.double() for t in (q, k, v)]
        wanted = posenc.attend(*wide, tupe.double(), pos, causal=causal, backend="reference-float64")
    assert max(columns, default=0) == (32 if short > N else 0)
    assert (found.double() - wanted).abs().max() < TOLERANCES[dtype] * max(1.0, float(wanted.abs().max()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_blocks_are_taken_rather_than_lanes_and_take_less(dtype):
    n = 4_096
    tupe = posenc.TUPE(n_heads=8, head_dim=64, max_len=n)
    q = torch.empty(1, 8, n, 64, dtype=dtype)
    with torch.no_grad():
        said = {one.backend: one for one in attention.explain(q, q, q, tupe, positions.arange(n))}
    assert said["blocked"].verdict == "taken"
    why = "blocks are faster" if dtype == torch.float32 else "would be rounded"
    assert why in said["lanes"].verdict
    assert said["blocked"].memory < 3 * q.nbytes
    learning = {one.backend: one for one in attention.explain(q, q, q, tupe, positions.arange(n))}
    assert learning["lanes" if dtype == torch.float32 else "blocked"].verdict == "taken"
    assert learning["blocked"].memory > said["blocked"].memory


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("heads", [4, 2])
def test_beside_a_bias_whose_memory_is_in_another_order(order, heads):
    pos = torch.stack([positions.arange(20), positions.arange(20) + 1])
    both = posenc.Compose(*[posenc.FIRE(n_heads=HEADS), made()][::order]).double()
    q, k, v = (torch.randn(2, h, 20, LANES).double() for h in (HEADS, heads, heads))
    with torch.no_grad():
        found, wanted = (posenc.attend(q, k, v, both, pos, backend=name) for name in ("blocked", "reference"))
    assert (found - wanted).abs().max() < 1e-9


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of torch's kernel itself
def test_within_a_transform_of_the_keys_lanes_are_taken_as_before():
    tupe, q, ks = made(), torch.randn(1, HEADS, N, LANES), torch.randn(3, 1, HEADS, N, LANES)
    seen = []

    def run(k):
        pos = tupe.place(positions.arange(N))
        seen.extend(one.backend for one in attention.explain(q, k, q, tupe, pos) if one.verdict == "taken")
        return posenc.attend(q, k, q, tupe, pos)

    with torch.no_grad():
        found = torch.func.vmap(run)(ks)
    wanted = torch.stack([posenc.attend(q, k, q, tupe, positions.arange(N), backend="reference") for k in ks])
    assert seen == ["lanes"]
    assert (found - wanted).abs().max() < 1e-5


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of torch's kernel itself
def test_within_a_transform_of_the_positions_nothing_is_said_of_blocks():
    tupe, q, pos = (
        made(),
        torch.randn(1, HEADS, N - 9, LANES),
        torch.stack([positions.arange(N - 9) + i for i in (0, 5)]),
    )
    said = []

    def run(p):
        said.extend(one.verdict for one in attention.explain(q, q, q, tupe, p))
        return posenc.attend(q, q, q, tupe, p)

    with torch.no_grad():
        found = torch.func.vmap(run)(pos)
    wanted = torch.stack([posenc.attend(q, q, q, tupe, p, backend="reference") for p in pos])
    assert not any("blocks are faster" in verdict for verdict in said)
    assert (found - wanted).abs().max() < 1e-5


def test_square_calls_have_blocks_of_more_queries():
    tupe = made(learned=torch.float64)
    q, k, v = torch.randn(3, 1, HEADS, N, LANES, dtype=torch.float64)
    pos = positions.arange(N)
    with torch.no_grad():
        placed = tupe.place(pos, dtype=torch.float64)
        found = posenc.attend(q, k, v, tupe, placed, placed, causal=True, backend="blocked")
        wanted = posenc.attend(q, k, v, tupe, pos, pos, causal=True, backend="reference-float64")
    assert (found - wanted).abs().max() < 1e-12 * float(wanted.abs().max())


def test_queries_that_see_nothing_get_zeros_in_memory_that_held_something(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda t, *size, **kind: t.new_full(*size, torch.nan, **kind))
    tupe = made()
    q, k, v = torch.randn(1, HEADS, N, LANES), *torch.randn(2, 1, HEADS, 30, LANES)
    with torch.no_grad():
        found = posenc.attend(q, k, v, tupe, positions.arange(N), positions.arange(30), causal=True, backend="blocked")
    assert bool((found[:, :, : N - 30] == 0).all())
    assert bool(found[:, :, N - 30 :].isfinite().all())
    assert bool((found[:, :, N - 30 :] != 0).any(-1).all())
