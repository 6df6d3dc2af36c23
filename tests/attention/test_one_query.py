"""One query with all keys, by torch's kernel and by two products: what the law says in float64, either way."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import posenc
from posenc import attention, positions
from posenc.attention import fused, one_query
from posenc.versions import SHARES_KEYS

ENCODINGS = {
    "rope": lambda: posenc.RoPE(head_dim=8),
    "alibi": lambda: posenc.ALiBi(n_heads=4),
    "t5": lambda: posenc.T5(n_heads=4, max_distance=20),
    "fire": lambda: posenc.FIRE(n_heads=4),
    "transformer_xl": lambda: posenc.TransformerXL(n_heads=4, head_dim=8, d_model=32),
    "both": lambda: posenc.Compose(posenc.RoPE(head_dim=8), posenc.ALiBi(n_heads=4)),
}
TOLERANCES = {torch.float64: 1e-12, torch.float32: 3e-6, torch.float16: 3e-3, torch.bfloat16: 2e-2}


@pytest.fixture
def products(monkeypatch):
    """All calls by products, in parts of few keys and items; what was computed so."""
    for name, value in (
        ("LEAST_KEYS", 7),
        ("AT_ONCE", 2**9),
        ("_may_pay", lambda *_: True),
        ("_wins", lambda *_: True),
    ):
        monkeypatch.setattr(one_query, name, value)

    def fail(*args):
        raise AssertionError("torch's kernel was taken")

    monkeypatch.setattr(fused, "step", fail)


def sides(n, dtype, *, batch=3, heads=4, width=8, v_width=8):
    generator = torch.Generator().manual_seed(n)
    shapes = (batch, 4, 1, width), (batch, heads, n, width), (batch, heads, n, v_width)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def check(encoding, q, k, v, pos=None, k_pos=None, **options):
    if q.dtype == torch.float64:
        encoding = encoding.double()
    k_pos = positions.arange(k.shape[2]) if k_pos is None else k_pos
    pos = k_pos[..., -1:] if pos is None else pos
    placed = [
        encoding.place(p, dtype=torch.float64 if q.dtype == torch.float64 else torch.float32) for p in (pos, k_pos)
    ]
    with torch.no_grad():
        found = posenc.attend(q, k, v, encoding, *placed, **options)
        exact = [encoding.place(p, dtype=torch.float64) for p in (pos, k_pos)]
        wanted = posenc.attend(
            *(t.double() for t in (q, k, v)), encoding.double(), *exact, backend="reference-float64", **options
        )
    assert found.dtype == q.dtype
    assert (found.double() - wanted).abs().max() < TOLERANCES[q.dtype] * max(1.0, float(wanted.abs().max()))


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("heads", [4, 2, 1])
def test_two_products_are_the_law(name, dtype, heads, products):
    torch.manual_seed(0)
    for n in (1, 2, 50):
        check(ENCODINGS[name](), *sides(n, dtype, heads=heads))


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_positions_of_each_item(dtype, products):
    k_pos = torch.stack([positions.arange(40), positions.arange(40) * 3, positions.arange(40) + 9])
    check(posenc.ALiBi(n_heads=4), *sides(40, dtype), k_pos=k_pos)
    check(posenc.RoPE(head_dim=8), *sides(40, dtype, heads=2), k_pos=k_pos)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("name", ["rope", "fire"])
def test_values_of_another_width_as_they_are(name, dtype, products):
    for v_width in (3, 8, 11):
        check(ENCODINGS[name](), *sides(50, dtype, v_width=v_width))


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("name", ["rope", "alibi"])
@pytest.mark.parametrize(("heads", "v_width"), [(4, 8), (2, 8), (4, 11), (2, 3)])
def test_caches_as_they_lie_in_memory(name, dtype, heads, v_width, monkeypatch):
    for name_of, value in (("LEAST_HALF", 0), ("LEAST_SHARED", 0), ("_wins", lambda *_: True)):
        monkeypatch.setattr(one_query, name_of, value)
    q, k, v = sides(50, dtype, heads=heads, v_width=v_width)
    longer = [torch.cat([t, torch.full_like(t, torch.nan)], 2)[:, :, :50] for t in (k, v)]
    tokens_first = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (k, v)]
    lanes_first = [t.mT.contiguous().mT for t in (k, v)]
    every_other = [t.repeat_interleave(2, -1)[..., ::2] for t in (k, v)]
    same = [t[:1].expand(3, -1, -1, -1) for t in (k, v)]
    for own in (longer, tokens_first, lanes_first, every_other, same):
        check(ENCODINGS[name](), q, *own)


class Largest(TorchDispatchMode):
    """Notes the bytes of the largest memory that is new."""

    def __init__(self, *known):
        super().__init__()
        self.known, self.nbytes = {t.untyped_storage().data_ptr() for t in known}, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **kwargs or {})
        for t in tree_leaves(out):
            if isinstance(t, torch.Tensor) and t.untyped_storage().data_ptr() not in self.known:
                self.nbytes = max(self.nbytes, t.untyped_storage().nbytes())
        return out


@pytest.mark.skipif(not SHARES_KEYS, reason="torch before 2.9 shares no keys among heads (docs/versions.md)")
@pytest.mark.parametrize("tokens_first", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("heads", [8, 2])
@pytest.mark.parametrize(("v_width", "wins"), [(64, True), (64, False), (32, True), (96, True)])
def test_a_large_cache_is_not_copied(dtype, heads, tokens_first, v_width, wins, monkeypatch):
    monkeypatch.setattr(one_query, "_wins", lambda *_: wins)
    n, encoding, pos = 2**14, posenc.ALiBi(n_heads=8), positions.arange(2**14)
    shapes = (2, 8, 1, 64), (2, heads, n, 64), (2, heads, n, v_width)
    q, k, v = (torch.zeros(shape, dtype=dtype) for shape in shapes)
    if tokens_first:
        k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (k, v))
    with torch.no_grad(), Largest(k, v) as seen:
        posenc.attend(q, k, v, encoding, pos[-1:], pos, backend="distance")
        told = {one.verdict: one.memory for one in attention.explain(q, k, v, encoding, pos[-1:], pos)}["taken"]
    rows = 2 * 8 * n * 4  # bytes
    assert seen.nbytes <= max(rows, 4 * one_query.AT_ONCE)
    assert seen.nbytes <= told


@pytest.mark.parametrize("tiles", [False, True])
def test_large_caches_are_read_by_products_and_small_ones_by_the_kernel(tiles, monkeypatch):
    """By the kernel as well, but where heads share keys, on a processor with tiles."""
    calls = []
    step = fused.step
    monkeypatch.setattr(fused, "step", lambda *args: calls.append("kernel") or step(*args))
    monkeypatch.setattr(fused, "tiles", lambda: tiles)
    monkeypatch.setattr(one_query, "_wins", lambda *_: True)
    for dtype, heads, n, kernel in (
        (torch.float32, 8, 2**13, True),
        (torch.float32, 8, 2**14, tiles),
        (torch.float32, 2, 2**11, True),
        (torch.float32, 2, 2**12, False),
        (torch.bfloat16, 8, 2**8, True),
        (torch.bfloat16, 8, 2**9, False),
    ):
        q, k, v = (torch.zeros(1, h, m, 64, dtype=dtype) for h, m in ((8, 1), (heads, n), (heads, n)))
        with torch.no_grad():
            posenc.attend(q, k, v, posenc.NoPE(), positions.arange(n)[-1:], positions.arange(n))
        assert calls == ["kernel"] * kernel
        calls.clear()


@pytest.mark.parametrize("backend", ["auto", "blocked", "reference"])
@pytest.mark.parametrize("q_len", [1, 3])
def test_a_bias_that_hides_all_keys_leaves_nothing(backend, q_len, products):
    class Blind(posenc.ALiBi):
        """Heads 0 and 1 see nothing."""

        def at(self, h, q, k):
            return torch.where(h < 2, -torch.inf, super().at(h, q, k))

    q, k, v = (torch.randn(2, 4, n, 8) for n in (q_len, 6, 6))
    with torch.no_grad():
        found = posenc.attend(
            q, k, v, Blind(n_heads=4), positions.arange(6)[-q_len:], positions.arange(6), backend=backend
        )
    assert found.isfinite().all()
    assert found[:, :2].abs().max() == 0
    assert (found[:, 2:].abs().amax(-1) > 0).all()


def test_under_autocast_scores_are_not_rounded(products):
    q, k, v = sides(50, torch.float32)
    encoding, pos = posenc.RoPE(head_dim=8), positions.arange(50)
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            found = posenc.attend(8 * q, k, v, encoding, pos[-1:], pos)
        turned = encoding.rotate(8 * q, k, encoding.place(pos[-1:]), encoding.place(pos))
        q, k, v = (t.bfloat16().double() for t in (*turned, v))
        wanted = posenc.attend(q, k, v, posenc.NoPE(), pos[-1:], pos, backend="reference")
    assert found.dtype == torch.bfloat16
    assert ((found.double() - wanted).abs() <= 2**-8 * wanted.abs() + 1e-4).all()


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of torch's kernel itself
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["rope", "alibi", "fire"])
def test_within_a_transform_of_the_positions(name, dtype, monkeypatch):
    for name_of, value in (("LEAST_HALF", 0), ("LEAST_SHARED", 0), ("_wins", lambda *_: True)):
        monkeypatch.setattr(one_query, name_of, value)
    q, k, v = sides(20, dtype, v_width=5)
    encoding, pos = ENCODINGS[name](), torch.stack([positions.arange(20), positions.arange(20) + 3])
    with torch.no_grad():
        found = torch.func.vmap(lambda p: posenc.attend(q, k, v, encoding, p[-1:], p))(pos)
        wanted = torch.stack([posenc.attend(q, k, v, encoding, p[-1:], p, backend="reference") for p in pos])
    assert (found.float() - wanted.float()).abs().max() < TOLERANCES[dtype]


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_a_bias_of_heads_without_a_batch(dtype, products):
    class Three(posenc.Encoding):
        """Its bias is (heads, q_len, k_len)."""

        name = "three"

        def bias(self, q, k, placed, k_placed):
            return torch.arange(4.0)[:, None, None] * torch.arange(k.shape[2]).expand(q.shape[2], -1) / 100

    check(Three(), *sides(50, dtype, batch=4))


def test_queries_of_no_width_see_all_keys_alike():
    q, k, v = torch.zeros(2, 4, 1, 0), torch.zeros(2, 4, 9, 0), torch.randn(2, 4, 9, 5)
    with torch.no_grad():
        found = posenc.attend(q, k, v, posenc.NoPE(), positions.arange(9)[-1:], positions.arange(9), scale=1.0)
    assert (found - v.mean(2, keepdim=True)).abs().max() < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("v_width", [8, 5])
def test_products_of_minus_infinity_alone_give_zeros(dtype, v_width, products):
    q, k = torch.full((1, 4, 1, 8), -1e20, dtype=dtype), torch.full((1, 4, 50, 8), 1e20, dtype=dtype)
    v, pos = torch.randn(1, 4, 50, v_width, dtype=dtype), positions.arange(50)
    with torch.no_grad():
        assert not posenc.attend(q, k, v, posenc.NoPE(), pos[-1:], pos).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_step_of_an_empty_batch(dtype):
    alibi, pos = posenc.ALiBi(n_heads=4), positions.arange(9)
    q, k, v = (torch.zeros(0, 4, n, width, dtype=dtype) for n, width in ((1, 8), (9, 8), (9, 5)))
    with torch.no_grad():
        assert posenc.attend(q, k, v, alibi, alibi.place(pos[-1:]), alibi.place(pos)).shape == (0, 4, 1, 5)


@pytest.mark.parametrize("wins", [False, True])
@pytest.mark.parametrize("heads", [4, 2])
def test_numbers_of_two_bytes_go_by_what_is_faster_here(wins, heads, monkeypatch):
    taken = []
    real = fused.step
    monkeypatch.setattr(one_query, "LEAST_HALF", 1)
    monkeypatch.setattr(one_query, "_wins", lambda dtype, shared, _: taken.append((dtype, shared)) or wins)
    monkeypatch.setattr(fused, "step", lambda *args: taken.append("kernel") or real(*args))
    check(posenc.ALiBi(n_heads=4), *sides(50, torch.bfloat16, heads=heads))
    assert taken == [(torch.bfloat16, heads == 2), *([] if wins else ["kernel"])]


@pytest.mark.parametrize("shared", [False, True])
def test_what_is_faster_is_asked_once_and_wherever_tensors_are_made(shared, monkeypatch):
    runs = []
    real = fused.step
    monkeypatch.setattr(fused, "step", lambda *args: runs.append(args[0].shape) or real(*args))
    one_query._wins.cache_clear()
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.device("meta"):
        first = one_query._wins(torch.float16, shared, 2)
    assert isinstance(first, bool)
    assert len(runs) == 4
    assert one_query._wins(torch.float16, shared, 2) is first
    assert len(runs) == 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_weights_are_normal_numbers_or_zero(dtype):
    """Products with others take several times as long on some processors: ALiBi's with a large cache."""
    lowest = torch.finfo(dtype).tiny
    bias = torch.tensor([1.0, 0.5 * lowest, 2 * lowest, 0.0], dtype=dtype).log()
    weights = one_query._weights(torch.zeros(1, 4, 1, dtype=dtype), bias[None, None, None], torch.zeros(1, 1, 1, 8))
    assert weights[0, 0, 0] == 1
    assert weights[0, 0, 1] == weights[0, 0, 3] == 0
    assert lowest < weights[0, 0, 2] < 3 * lowest


def test_explaining_computes_nothing(monkeypatch):
    monkeypatch.setattr(one_query, "LEAST_HALF", 1)
    monkeypatch.setattr(one_query, "_wins", lambda *_: pytest.fail("a trial was made"))
    q, k, v = sides(50, torch.bfloat16)
    with torch.no_grad():
        verdicts = attention.explain(q, k, v, posenc.ALiBi(n_heads=4), torch.tensor([49]), torch.arange(50))
    assert [one.backend for one in verdicts if one.verdict == "taken"] == ["distance"]
