"""Products and lanes formed for some heads after the others are what they are for all at once."""

import pytest
import torch

import posenc
from posenc import positions
from posenc.attention import fused, heads, lanes, shared

N = 40


@pytest.fixture
def parts(monkeypatch):
    """How many heads each part had, where short texts are cut as well."""
    found, cut = [], heads._parts
    monkeypatch.setattr(lanes, "LONG", 0)
    monkeypatch.setattr(shared, "LEAST", 0)

    def watched(call, size):
        for rows, part in cut(call, size):
            found.append(part.q.shape[1])
            yield rows, part

    monkeypatch.setattr(heads, "_parts", watched)
    return found


SIZES = [(8, 8), (8, 2), (6, 1), (3, 3), (1, 1), (12, 4)]
CASES = [("tupe", "blocked", *sizes, masked) for sizes in SIZES for masked in ("no", "by head", "padding")]
CASES += [("alibi", "lanes", *sizes, "no") for sizes in SIZES]
# heads share no lanes of keys
CASES += [(name, "lanes", *sizes, "no") for name in ("tupe", "fox") for sizes in SIZES if sizes[0] == sizes[1]]


@pytest.mark.parametrize(("name", "backend", "n_heads", "n_kv_heads", "masked"), CASES)
def test_parts_are_the_whole(name, backend, n_heads, n_kv_heads, masked, parts):
    torch.manual_seed(0)
    dims = posenc.Dims(d_model=8 * n_heads, n_heads=n_heads, head_dim=8, max_len=N)
    encoding = posenc.create(name, dims=dims)
    q = torch.randn(2, n_heads, N, 8, dtype=torch.float64)
    k, v = (torch.randn(2, n_kv_heads, N, 8, dtype=torch.float64) for _ in range(2))
    options = {}
    if masked == "by head":
        options["mask"] = torch.rand(2, n_heads, N, N) < 0.7
    elif masked == "padding":
        options["mask"] = (torch.arange(N) > 5).expand(2, 1, 1, N)
    with torch.no_grad():
        x = [torch.randn(2, N, 8 * n_heads, dtype=torch.float64)] if name == "fox" else []
        pos = encoding.place(positions.arange(N), *x, dtype=torch.float64)
        wanted = posenc.attend(q, k, v, encoding, pos, backend="reference", **options)
        got = posenc.attend(q, k, v, encoding, pos, backend=backend, **options)
    assert (got - wanted).abs().max() < 1e-11
    assert sum(parts) == n_heads or n_heads == 1
    assert len(parts) > 1 or n_heads <= torch.get_num_threads()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("n_heads", "n_kv_heads"), SIZES)
def test_what_is_turned_round_is_of_some_heads(n_heads, n_kv_heads, dtype, monkeypatch):
    """A vector over distances wants queries in reverse: few heads at a time take little memory for these."""
    found, real = [], fused.forward

    def forward(q, k, *args, **options):
        found.append(q.shape[1])
        return real(q, k, *args, **options)

    monkeypatch.setattr(fused, "forward", forward)
    monkeypatch.setattr(fused, "AT_ONCE", 1)
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, n, N, 8, dtype=dtype) for n in (n_heads, n_kv_heads, n_kv_heads))
    encoding = posenc.ALiBi(n_heads=n_heads)
    wanted = posenc.attend(q, k, v, encoding, positions.arange(N), backend="reference-float64")
    got = posenc.attend(q, k, v, encoding, positions.arange(N), backend="distance")
    torch.testing.assert_close(got, wanted, atol=1e-11 if dtype == torch.float64 else 0.02, rtol=0.01)
    group = n_heads // n_kv_heads
    at_once = max(group, -(-torch.get_num_threads() // group) * group)  # a head for each thread
    assert max(found) <= at_once
    assert sum(found) == n_heads


@pytest.mark.parametrize("tiles", [False, True])
def test_heads_of_which_keys_are_copied_are_few_and_have_longer_blocks(tiles, monkeypatch):
    """In half precision where the processor has tiles; float32 and others run as many heads at once as is quick."""
    found, real = [], fused.forward

    def forward(q, k, *args, **options):
        found.append(tuple(q.shape[1:3]))
        return real(q, k, *args, **options)

    monkeypatch.setattr(fused, "forward", forward)
    monkeypatch.setattr(fused, "tiles", lambda: tiles)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    encoding = posenc.KERPLE(n_heads=4)
    for dtype, causal in ((torch.bfloat16, True), (torch.bfloat16, False), (torch.float32, True)):
        q = torch.zeros(1, 4, 4096, 8, dtype=dtype)
        found.clear()
        with torch.no_grad():
            posenc.attend(q, q, q, encoding, positions.arange(4096), causal=causal, backend="distance")
        if dtype == torch.bfloat16:
            assert found[0] == ((2, 512) if tiles else (4, 768) if causal else (4, 1024))
        else:
            assert found[0] == ((2, 768) if tiles else (4, 768))


def test_with_gradients_all_heads_run_at_once(parts):
    encoding = posenc.ALiBi(n_heads=4)
    q = torch.randn(1, 4, N, 8, requires_grad=True)
    posenc.attend(q, q, q, encoding, positions.arange(N), backend="lanes").sum().backward()
    assert parts == []


@pytest.mark.parametrize("side", ["queries", "keys"])
def test_one_side_alone_may_have_positions_for_each_item(side):
    torch.manual_seed(0)
    tupe = posenc.TUPE(n_heads=4, head_dim=8, max_len=2 * N)
    q, k, v = (torch.randn(2, 4, N, 8, dtype=torch.float64) for _ in range(3))
    pos, each = positions.arange(N), torch.stack((torch.arange(N), torch.arange(N) + 7))
    given = (each, pos) if side == "queries" else (pos, each)
    with torch.no_grad():
        wanted, got = (posenc.attend(q, k, v, tupe, *given, backend=name) for name in ("reference", "blocked"))
    assert (got - wanted).abs().max() < 1e-11


@pytest.mark.parametrize("width", [4, 24, 40], ids=["narrower than q", "as lanes make q", "wider than that"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_few_and_many_lanes_together_and_values_of_any_width(width, dtype, parts):
    torch.manual_seed(0)
    many = posenc.TUPE(n_heads=4, head_dim=8, max_len=N)
    encoding = posenc.ALiBi(n_heads=4) if dtype == torch.bfloat16 else posenc.Compose(many, posenc.ALiBi(n_heads=4))
    q, k = (torch.randn(2, 4, N, 8).to(dtype) for _ in range(2))
    v, pos = torch.randn(2, 4, N, width).to(dtype), positions.arange(N, start=1000 * (dtype == torch.bfloat16))
    with torch.no_grad():
        wanted = posenc.attend(q, k, v, encoding, pos, backend="reference-float64")
        got = posenc.attend(q, k, v, encoding, pos, backend="lanes")
    assert got.shape == wanted.shape
    assert (got - wanted).abs().max() < (3e-6 if dtype == torch.float32 else 3e-2)
    assert sum(parts) == 4


def test_lanes_are_estimated_for_the_heads_of_a_part_and_for_no_more_than_there_are(monkeypatch):
    q, encoding, pos = torch.empty(1, 8, 4096, 64), posenc.ALiBi(n_heads=8), positions.arange(4096)

    def estimated():
        return next(v.memory for v in posenc.explain(q, q, q, encoding, pos) if v.backend == "lanes")

    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    with torch.no_grad():
        two = estimated()
        monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
        assert estimated() == 4 * two  # of eight heads, all of which run at once then
    assert estimated() > 4 * two  # with gradients
