"""ReRoPE, leaky ReRoPE, Self-Extend and dual chunk attention against loops over pairs of tokens, and their passes."""

import cmath
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import posenc
from posenc import Compose, Encoding, OnAxes
from posenc.attention import whole
from posenc.attention.call import Call
from posenc.attention.checked import make_call
from posenc.attention.piecewise import PiecewisePasses
from posenc.piecewise import Piecewise
from strategies import check, normal, refuses
from watch import Largest


def distance(encoding: Any, i: int, j: int) -> float:
    """The papers' distances, in words of one pair; a key ahead has that of looking back, turned around."""
    if j > i:
        return -distance(encoding, j, i)
    if isinstance(encoding, posenc.DualChunk):
        length = encoding.chunk - encoding.local
        chunks = i // length - j // length
        if chunks == 0:
            return i - j
        seen_from = min(i % length + length, encoding.chunk) if chunks == 1 else encoding.chunk
        return seen_from - j % length
    window = encoding.window
    if i - j < window:
        return i - j
    if isinstance(encoding, posenc.ReRoPE):
        return window
    if isinstance(encoding, posenc.LeakyReRoPE):
        return window + (i - j - window) / float(encoding.factor)
    return i // encoding.group - j // encoding.group + window - window // encoding.group


def turned(encoding: Any, q: Tensor, k: Tensor, d: float) -> float:
    """Su 2021: the pairs of lanes are complex numbers, and the score is that of the query turned by the distance."""
    n = len(q) // 2
    lanes = [(i, i + n) if encoding.pairing == "half" else (2 * i, 2 * i + 1) for i in range(n)]
    total = 0.0
    for i, (a, b) in enumerate(lanes):
        of_q, of_k = complex(float(q[a]), float(q[b])), complex(float(k[a]), float(k[b]))
        total += (of_q * cmath.exp(1j * d * encoding.base ** (-i / n)) * of_k.conjugate()).real
    return total


MAPS = [
    posenc.ReRoPE(head_dim=4, window=3),
    posenc.ReRoPE(head_dim=4, window=1, pairing="interleaved"),
    posenc.LeakyReRoPE(head_dim=4, window=3, factor=4.0, base=100.0),
    posenc.SelfExtend(head_dim=4, window=5, group=3),
    posenc.SelfExtend(head_dim=4, window=2, group=4, pairing="interleaved"),
    posenc.DualChunk(head_dim=4, chunk=7, local=2),
    posenc.DualChunk(head_dim=4, chunk=6, local=5, base=50.0),
    posenc.DualChunk(head_dim=4, chunk=3, local=0, pairing="interleaved"),
]
maps = pytest.mark.parametrize("encoding", MAPS, ids=lambda e: f"{e.name}-{list(e.options().values())[1:3]}")


def law(encoding: Encoding, q: Tensor, k: Tensor, pos: Tensor, k_pos: Tensor) -> Tensor:
    """The contract's one law."""
    placed, k_placed = (encoding.place(p, dtype=torch.float64) for p in (pos, k_pos))
    product = q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT * encoding.score_scale(q.shape[-1])
    bias = encoding.bias(q, k, placed, k_placed)
    assert bias is not None
    return product + bias


@maps
@given(data=st.data())
@check(20)
def test_scores(encoding: Piecewise, data: st.DataObject) -> None:
    pos, k_pos = (data.draw(st.lists(st.integers(-30, 100), min_size=1, max_size=5)) for _ in "qk")
    q, k = normal(2, 4, len(pos), 4, seed=1), normal(2, 2, len(k_pos), 4, seed=2)
    got = law(encoding, q, k, torch.tensor(pos), torch.tensor(k_pos))
    for b, h, i, j in torch.cartesian_prod(*(torch.arange(n) for n in got.shape)).tolist():
        wanted = turned(encoding, q[b, h, i], k[b, h // 2, j], distance(encoding, pos[i], k_pos[j])) / 2
        assert float(got[b, h, i, j]) == pytest.approx(wanted, abs=1e-12)


@maps
def test_distances(encoding: Piecewise) -> None:
    pos = torch.tensor([[0, 7, 3, 12], [40, 41, 5, -6]])
    got = encoding.distances(pos).tolist()
    for row, at in zip(got, pos.tolist(), strict=True):
        assert row == [[pytest.approx(distance(encoding, i, j)) for j in at] for i in at]
    assert encoding.distances(pos[0], pos[1, :2]).shape == (4, 2)


def test_the_distances_of_dual_chunk_attention_as_printed() -> None:
    """Chunk 12, local 4, query 15."""
    dual = posenc.DualChunk(head_dim=4, chunk=12, local=4)
    wanted = [12, 11, 10, 9, 8, 7, 6, 5, 7, 6, 5, 4, 3, 2, 1, 0]
    assert dual.distances(torch.tensor([15]), torch.arange(16)).tolist() == [wanted]
    far = dual.distances(torch.tensor([37]), torch.tensor([0, 7, 8, 31, 32, 37]))
    assert far.tolist() == [[12, 5, 12, 5, 5, 0]]


def test_distances_by_hand() -> None:
    pos, last = torch.arange(10), torch.tensor([9])
    assert posenc.ReRoPE(head_dim=2, window=4).distances(last, pos).tolist() == [[4, 4, 4, 4, 4, 4, 3, 2, 1, 0]]
    leaky = posenc.LeakyReRoPE(head_dim=2, window=4, factor=2.0)
    assert leaky.distances(last, pos).tolist() == [[6.5, 6.0, 5.5, 5.0, 4.5, 4.0, 3.0, 2.0, 1.0, 0.0]]
    # the paper's figure 3: sequences of 10, groups of 2, neighbours up to 4
    extended = posenc.SelfExtend(head_dim=2, window=4, group=2)
    assert extended.distances(last, pos).tolist() == [[6, 6, 5, 5, 4, 4, 3, 2, 1, 0]]
    for encoding in (leaky, extended, posenc.ReRoPE(head_dim=2, window=4)):
        assert torch.equal(encoding.distances(pos), -encoding.distances(pos).mT)


@maps
def test_any_slice_of_rows_and_keys(encoding: Piecewise) -> None:
    q, k, pos = normal(2, 2, 17, 4), normal(2, 2, 17, 4, seed=1), torch.arange(17) + 5
    placed = encoding.place(pos.expand(2, -1), dtype=torch.float64)
    whole = encoding.bias(q, k, placed, placed)
    rows = encoding.place(pos[9:13], dtype=torch.float64)
    part = encoding.bias(q[:, :, 9:13], k[:, :, 2:11], rows, placed.rows(2, 11))
    torch.testing.assert_close(part, whole[:, :, 9:13, 2:11], rtol=0, atol=1e-14)


def test_within_the_window_it_is_rope() -> None:
    q, k, v = (normal(1, 2, 30, 8, seed=i) for i in range(3))
    pos = torch.arange(30) + 1000
    wide = [posenc.ReRoPE(head_dim=8, window=30), posenc.SelfExtend(head_dim=8, window=30, group=4)]
    wide += [posenc.LeakyReRoPE(head_dim=8, window=3, factor=1.0), posenc.DualChunk(head_dim=8, chunk=2000, local=10)]
    for encoding in wide:
        got = posenc.attend(q, k, v, encoding, pos, causal=False)
        wanted = posenc.attend(q, k, v, posenc.RoPE(head_dim=8), pos, causal=False)
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)


def test_raw_keys_are_cached() -> None:
    encoding = MAPS[3]
    q, k = normal(1, 2, 5, 4), normal(1, 2, 5, 4, seed=1)
    placed = encoding.place(torch.arange(5))
    for inverse in (False, True):
        got = encoding.rotate(q, k, placed, inverse=inverse)
        assert got[0] is q
        assert got[1] is k
    scaled = posenc.RoPE(head_dim=4, score_factor=2.0)
    assert Piecewise(scaled).score_scale(4) == 1.0


def test_queries_may_be_lengthened_first() -> None:
    """Su's ReRoPE lengthens queries by log n; the mapped products then are those of the longer queries."""
    rerope, longer = MAPS[0], posenc.QueryTemperature(law="log_n", original_max_len=2)
    q, k, v = (normal(1, 2, 9, 4, seed=i) for i in range(3))
    pos = torch.arange(9)
    factor = [max(1.0, math.log(p + 1) / math.log(2)) for p in range(9)]
    wanted = posenc.attend(q * torch.tensor(factor)[:, None].double(), k, v, rerope, pos)
    for members in ((longer, rerope), (rerope, longer), (Compose(longer, posenc.Sinusoidal(d_model=4)), rerope)):
        got = posenc.attend(q, k, v, Compose(*members), pos)
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-6)
    with refuses(ValueError, "at most one member may map distances", "got ['ReRoPE', 'SelfExtend']"):
        Compose(MAPS[0], MAPS[3])


LONG = [
    posenc.ReRoPE(head_dim=4, window=40),
    posenc.LeakyReRoPE(head_dim=4, window=300, factor=4.0),
    posenc.SelfExtend(head_dim=4, window=70, group=7),
    posenc.DualChunk(head_dim=4, chunk=60, local=20),
    posenc.DualChunk(head_dim=4, chunk=280, local=3),
]


def literal(encoding: Any, q: Tensor, k: Tensor, pos: range, k_pos: range) -> Tensor:
    """The scores of all pairs by the loop's distances: every pair of lanes as complex numbers."""
    d = torch.tensor([[distance(encoding, i, j) for j in k_pos] for i in pos]).double()
    n = q.shape[-1] // 2
    angle = d[..., None] * encoding.base ** (-torch.arange(n).double() / n)
    of_q, of_k = (torch.complex(t[..., :n], t[..., n:]) for t in (q, k.repeat_interleave(q.shape[1] // k.shape[1], 1)))
    return torch.einsum("bhin,ijn,bhjn->bhij", of_q, torch.polar(torch.ones_like(angle), angle), of_k.conj()).real / 2


def softmax(scores: Tensor, v: Tensor, causal: bool, window: int | None) -> Tensor:
    q_len, k_len = scores.shape[-2:]
    here, there = torch.arange(k_len - q_len, k_len)[:, None], torch.arange(k_len)
    seen = torch.ones(q_len, k_len).bool() if not causal else there <= here
    if window is not None:
        seen = seen & ((here - there).abs() < window)
    empty = ~seen.any(-1, keepdim=True)
    weights = scores.masked_fill(~seen, -torch.inf).masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)
    return weights @ v.repeat_interleave(scores.shape[1] // v.shape[1], 1)


CALLS = [
    (560, 560, True, None, 4),  # more than two blocks of queries
    (300, 300, False, None, 4),
    (290, 600, True, 350, 6),
    (6, 700, True, None, 2),
    (300, 280, True, 30, 4),  # the first queries see nothing
]


@pytest.mark.sample(8)
@pytest.mark.parametrize("encoding", LONG, ids=lambda e: f"{e.name}-{list(e.options().values())[1]}")
@pytest.mark.parametrize(("q_len", "k_len", "causal", "window", "width"), CALLS)
def test_merged_passes(
    encoding: Piecewise, q_len: int, k_len: int, causal: bool, window: int | None, width: int
) -> None:
    """Values and gradients of all tensors against one softmax over the scores of the loop."""
    shapes = (1, 4, q_len, 4), (1, 2, k_len, 4), (1, 2, k_len, width)
    q, k, v = (normal(*shape, seed=i).requires_grad_() for i, shape in enumerate(shapes))
    pos, k_pos = range(k_len - q_len + 30, k_len + 30), range(30, k_len + 30)
    wanted = softmax(literal(encoding, q, k, pos, k_pos), v, causal, window)
    placed, k_placed = (encoding.place(torch.tensor(list(p)), dtype=torch.float64) for p in (pos, k_pos))
    options: dict[str, Any] = {"causal": causal, "window": window, "backend": "piecewise"}
    got = posenc.attend(q, k, v, encoding, placed, k_placed, **options)
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)
    gradient = normal(*got.shape, seed=9)
    for ours, theirs in zip(*(torch.autograd.grad(t, (q, k, v), gradient) for t in (got, wanted)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)


def call(encoding: Encoding, n: int = 300, dtype: torch.dtype = torch.float32, **options: Any) -> Call:
    q, k, v = (normal(2, h, n, 4, seed=h + i, dtype=dtype) for i, h in enumerate((4, 2, 2)))
    given = {"pos": torch.arange(n), "k_pos": None, "rotated": False, "causal": True, "mask": None, "window": None}
    given |= {"document_ids": None, "scale": None, "dropout_p": 0.0, "backend": "piecewise"} | options
    return make_call(*(given.pop(name, t) for name, t in zip("qkv", (q, k, v), strict=True)), encoding, **given)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_each_precision(dtype: torch.dtype) -> None:
    """All is done in float32 and rounded once: half of a unit in the last place, and less in the mean of squares."""
    for encoding in LONG:
        reference = whole.Reference(exact=True)
        exact = reference.run(reference.widened(call(encoding, dtype=dtype)))
        got = PiecewisePasses().run(call(encoding, dtype=dtype))
        assert got.dtype == dtype
        error = (got - exact).square().mean().sqrt() / exact.square().mean().sqrt()
        assert float(error) < max(0.3 * torch.finfo(dtype).eps, 1e-6)


def test_autocast_rounds_as_it_does_elsewhere() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = PiecewisePasses().run(call(LONG[0]))
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.float(), PiecewisePasses().run(call(LONG[0])), atol=0.03, rtol=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("encoding", LONG, ids=lambda e: f"{e.name}-{list(e.options().values())[1]}")
def test_no_pass_forms_its_scores(encoding: Piecewise) -> None:
    made = call(encoding, n=3000)
    made.q.requires_grad_()
    with Largest() as largest:
        PiecewisePasses().run(made).sum().backward()
    assert largest.numbers <= max(made.q.numel(), 2 * 256 * 1100)  # a mask of a block, for both heads of a group
    assert largest.numbers < 3000 * 3000 / 10


def test_what_nobody_sees_may_be_anything() -> None:
    made = call(LONG[0], n=280, window=30, q=normal(2, 4, 300, 4, dtype=torch.float32), pos=torch.arange(300),
                k_pos=torch.arange(280))  # fmt: skip
    assert PiecewisePasses().rejects(made) is None
    out = PiecewisePasses().run(made)
    assert not out[:, :, :20].any()
    made.q[:, :, :20] = torch.nan
    q = made.q.requires_grad_()
    again = PiecewisePasses().run(made)
    assert torch.equal(again, out)
    assert torch.autograd.grad(again.sum(), q)[0].isfinite().all()


def test_passes_are_found_within_other_encodings() -> None:
    backend, sines = PiecewisePasses(), posenc.Sinusoidal(d_model=16)
    alone = backend.run(call(LONG[0]))
    with torch.no_grad():
        reported = backend.memory(call(LONG[0]))
    assert reported == 4 * (2 * (2 * 4 + 2 * 2) + 2 * 2) * 300 * 4 + 4 * 2 * 4 * 256 * 256
    assert backend.memory(call(posenc.NoPE())) == 0
    for around in (Compose(sines, LONG[0]), posenc.Mapped(LONG[0], lambda pos: pos + 7)):
        assert backend.rejects(call(around)) is None
        torch.testing.assert_close(backend.run(call(around)), alone, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("encoding", "options", "words"),
    [
        (posenc.RoPE(head_dim=4), {}, "RoPE is not an index map"),
        (Compose(LONG[0], posenc.ALiBi(n_heads=4)), {}, "Compose is not an index map, or it adds other terms"),
        (Compose(LONG[0], posenc.CoPE(head_dim=4)), {}, "Compose is not an index map, or it adds other terms"),
        (LONG[0], {"mask": torch.ones(300, 300).bool()}, "which a mask would split"),
        (LONG[0], {"document_ids": torch.zeros(300).long()}, "which document_ids would split"),
        (LONG[0], {"dropout_p": 0.1}, "got dropout_p=0.1"),
        (LONG[0], {"scale": 0.3}, "scale replaces the factor of q·k"),
        (LONG[0], {"v": normal(2, 2, 300, 4)}, "one dtype; got torch.float32, torch.float32, torch.float64"),
        (LONG[0], {"pos": torch.arange(600).view(2, 300)}, "positions differ between rows of the batch"),
        (LONG[0], {"pos": torch.arange(300) / 2}, "positions are fractional"),
        (LONG[0], {"pos": torch.arange(300).flip(0)}, "the keys' positions do not rise"),
    ],
)
def test_what_passes_cannot_do(encoding: Encoding, options: dict[str, Any], words: str) -> None:
    refusal = PiecewisePasses().rejects(call(encoding, **options))
    assert refusal is not None
    assert words in refusal
    assert refusal.endswith(".")


def test_what_is_refused() -> None:
    with refuses(ValueError, "ReRoPE: window must be at least 1; got window=0"):
        posenc.ReRoPE(head_dim=4, window=0)
    with refuses(ValueError, "LeakyReRoPE: factor must be a finite number above zero; got factor=0.0"):
        posenc.LeakyReRoPE(head_dim=4, factor=0.0)
    with refuses(ValueError, "SelfExtend: group must be at least 1; got group=0"):
        posenc.SelfExtend(head_dim=4, group=0)
    with refuses(ValueError, "DualChunk: local must be below chunk", "got chunk=4 and local=4"):
        posenc.DualChunk(head_dim=4, chunk=4, local=4)
    with refuses(ValueError, "DualChunk: local must be at least 0; got local=-1"):
        posenc.DualChunk(head_dim=4, chunk=4, local=-1)
    encoding, q = MAPS[0], normal(1, 2, 3, 6)
    placed = encoding.place(torch.arange(3))
    with refuses(ValueError, "ReRoPE: q and k must have head_dim=4 dimensions; got shape (1, 2, 3, 6)"):
        encoding.bias(q, q, placed, placed)
    for method in (lambda e: e.maps(torch.arange(3)), lambda e: e.bounds()):
        with pytest.raises(NotImplementedError, match="Piecewise must define"):
            method(Piecewise(posenc.RoPE(head_dim=4)))
    assert OnAxes(MAPS[0], (0,), n_axes=2).turns_in_bias
