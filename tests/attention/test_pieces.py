"""Biases that are put together of pieces: the sum of these in any order and shape, forwards and backwards."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

import posenc
from posenc import positions
from posenc.attention import heads, plan
from posenc.families import Piece, join
from strategies import normal

HEADS, N, LANES = 4, 50, 8
FIRST, END = 20, 37  # positions between which keys have more
BESIDE = {"alone": [], "t5": [posenc.T5(n_heads=HEADS).double()], "fire": [posenc.FIRE(n_heads=HEADS).double()]}


class Patches(posenc.ContentBias):
    """Terms that lie over each other: of each pair, query, key, or head alone, learned and not."""

    name = "patches"

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(normal(HEADS, 1, 1, seed=3))
        self.of_heads = nn.Parameter(normal(HEADS, seed=4))
        self.register_buffer("fixed", normal(N, seed=5))

    def bias(self, q, k, placed, k_placed):
        k, pos = k.repeat_interleave(HEADS // k.shape[1], 1), k_placed.pos
        total = self.of_heads[:, None, None] + self.fixed[k_placed.pos] + (k.sum(-1) * self.gain[:, 0])[:, :, None]
        total = total + (q[..., :1] * self.gain) * (pos >= FIRST)
        return total + torch.tanh(q @ k.mT) * self.gain * ((pos >= FIRST) & (pos < END))


class InPieces(Patches):
    """The same, and how it is put together."""

    def bias(self, q, k, placed, k_placed):
        return join(self.pieces(q, k, placed, k_placed))

    def pieces(self, q: Tensor, k: Tensor, placed: posenc.Placed, k_placed: posenc.Placed) -> Sequence[Piece]:
        n = k.shape[2]
        k = k.repeat_interleave(HEADS // k.shape[1], 1)
        third, end = (int((k_placed.pos < edge).sum()) for edge in (FIRST, END))
        return [
            Piece(third, end, torch.tanh(q @ k[:, :, third:end].mT) * self.gain),
            Piece(0, n, self.of_heads[:, None, None]),
            Piece(0, n, self.fixed[k_placed.pos]),
            Piece(third, n, q[..., :1] * self.gain),
            Piece(0, third, (k[:, :, :third].sum(-1) * self.gain[:, 0])[:, :, None]),
            Piece(third, n, (k[:, :, third:].sum(-1) * self.gain[:, 0])[:, :, None]),
        ]


def sides(kv_heads: int, batch: int) -> list[Tensor]:
    shapes = (batch, HEADS, 30, LANES), (batch, kv_heads, N, LANES), (batch, kv_heads, N, 5)
    return [normal(*shape, seed=seed).requires_grad_() for seed, shape in enumerate(shapes)]


class Some(posenc.ContentBias):
    """A bias of given pieces, none of which need have a number for each pair."""

    name = "some"

    def __init__(self, pieces) -> None:
        super().__init__()
        self.learned, self.of = nn.Parameter(normal(HEADS, 1, 1, seed=3)), pieces

    def bias(self, q, k, placed, k_placed):
        return join(self.pieces(q, k, placed, k_placed)).expand(*q.shape[:3], k.shape[2])

    def pieces(self, q, k, placed, k_placed):
        n, of_k = k.shape[2], k.repeat_interleave(HEADS // k.shape[1], 1)[:, :, None, :, 0]
        half = int((k_placed.pos < N // 2).sum())  # blocks see some of the keys
        ends = {0: 0, 0.5: half, 1: n}
        return [Piece(ends[a], ends[b], t) for a, b, t in self.of(self.learned, q, of_k, half)]


FEW = {
    "a query": lambda w, q, k, half: [(0, 1, q[..., :1])],
    "a key": lambda w, q, k, half: [(0, 1, w * k)],
    "a head": lambda w, q, k, half: [(0, 1, w)],
    "one number": lambda w, q, k, half: [(0, 1, w.sum()), (0, 1, q[..., :1])],
    "one number beside pairs": lambda w, q, k, half: [(0, 1, w.sum()), (0, 1, q[..., :1] * k)],
    "halves of keys": lambda w, q, k, half: [(0, 0.5, k[..., :half]), (0.5, 1, w * k[..., half:])],
    "halves of queries": lambda w, q, k, half: [(0, 0.5, q[..., :1]), (0.5, 1, w * q[..., 1:2])],
    "a query and a head": lambda w, q, k, half: [(0, 1, q[..., :1]), (0, 1, w)],
}
CALLS = {
    "causal": {},
    "bidirectional": {"causal": False},
    "window": {"window": 9},
    "padding": {"mask": (torch.arange(N) > 3)[None, None, None]},
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("q_len", [N, 2])
@pytest.mark.parametrize("name", FEW)
def test_no_piece_need_have_a_number_for_each_pair(name, q_len, call):
    encoding, pos = Some(FEW[name]).double(), positions.arange(N)
    q, k, v = normal(2, HEADS, q_len, LANES), normal(2, 2, N, LANES, seed=1), normal(2, 2, N, 5, seed=2)
    q, k, v = (t.requires_grad_() for t in (q, k, v))
    found = []
    for backend in ("blocked", "reference"):
        out = posenc.attend(q, k, v, encoding, pos[-q_len:], pos, backend=backend, **CALLS[call])
        with torch.no_grad():
            free = posenc.attend(q, k, v, encoding, pos[-q_len:], pos, backend=backend, **CALLS[call])
        learn = [q, k, v, encoding.learned]
        grads = torch.autograd.grad(out, learn, torch.cos(out.detach()), allow_unused=True)
        found.append([out, free, *(torch.zeros(1) if t is None else t for t in grads)])
    for mine, wanted in zip(*found, strict=True):
        assert (mine - wanted).abs().max() < 1e-11


@pytest.mark.parametrize("at_once", [0, 2**22])
@pytest.mark.parametrize(("kv_heads", "batch"), [(4, 1), (2, 1), (4, 2), (1, 3)])
@pytest.mark.parametrize("beside", BESIDE)
def test_pieces_give_what_their_sum_gives(kv_heads, batch, beside, at_once, monkeypatch):
    monkeypatch.setattr(plan, "SHORT", 16)
    monkeypatch.setattr(heads, "AT_ONCE", at_once)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)  # a part has a head for each
    pos, tensors = positions.arange(N), sides(kv_heads, batch)
    found = []
    for kind, backend in ((Patches, "reference"), (InPieces, "blocked")):
        encoding = posenc.Compose(kind().double(), *BESIDE[beside])
        out = posenc.attend(*tensors, encoding, pos[-30:], pos, backend=backend)
        with torch.no_grad():
            free = posenc.attend(*tensors, encoding, pos[-30:], pos, backend=backend)
        learn = [*tensors, *encoding.parameters()]
        found.append([out, free, *torch.autograd.grad(out, learn, torch.cos(out.detach()))])
    for wanted, mine in zip(*found, strict=True):
        assert (wanted - mine).abs().max() < 1e-11


def test_a_bias_of_its_own_has_promised_no_pieces():
    class Other(InPieces):
        def bias(self, q, k, placed, k_placed):
            return super().bias(q, k, placed, k_placed) * 0.0

    pos, tensors = positions.arange(N), sides(4, 1)
    found, wanted = (
        posenc.attend(*tensors, encoding, pos[-30:], pos) for encoding in (Other().double(), posenc.NoPE())
    )
    assert (found - wanted).abs().max() < 1e-12


def literal(pieces: Sequence[Piece], shape: tuple[int, ...]) -> Tensor:
    total = torch.zeros(shape, dtype=torch.float64)
    for first, end, term in pieces:
        for j in range(first, end):
            total[..., j] += term[..., j - first if term.shape[-1] > 1 else 0]
    return total


PIECES = {
    "one": [Piece(0, 6, normal(2, 3, 4, 6))],
    "three": [Piece(0, 2, normal(2, 3, 4, 1)), Piece(2, 5, normal(2, 3, 4, 3)), Piece(5, 6, normal(3, 1, 1))],
    "over each other": [Piece(1, 6, normal(4, 5)), Piece(0, 4, normal(2, 3, 4, 1)), Piece(0, 2, normal(1, 3, 1, 2))],
    "none": [Piece(0, 0, normal(2, 3, 4, 0)), Piece(0, 6, normal(2, 1, 4, 6)), Piece(6, 6, normal(3, 1, 0))],
    "many": [Piece(0, 6, normal(2, 3, 4, 6, seed=i)) for i in range(4)],
}


@pytest.mark.parametrize("into", [False, True])
@pytest.mark.parametrize("name", PIECES)
def test_joined_pieces_are_their_sum(name, into):
    pieces = PIECES[name]
    out = torch.full((2, 3, 4, 6), torch.nan, dtype=torch.float64) if into else None
    found = join(pieces, out)
    wanted = literal(pieces, (2, 3, 4, 6))
    assert (found - wanted).abs().max() < 1e-14
    assert out is None or found is out


def test_of_no_keys_nothing_is_joined():
    assert join([Piece(0, 0, normal(2, 3, 4, 0)), Piece(0, 0, normal(3, 1, 0))]).shape == (2, 3, 4, 0)


@pytest.mark.parametrize(("ends", "keys"), [([(0, 2), (3, 5)], "2 to 3"), ([(1, 4)], "0 to 1"), ([], "0 to 0")])
def test_keys_that_no_piece_has_are_named(ends, keys):
    with pytest.raises(ValueError, match=f"leave no key out, .* none has keys {keys}"):
        join([Piece(a, b, normal(2, 3, 4, 1)) for a, b in ends])


@pytest.mark.parametrize("n", [2, 4])
def test_a_term_of_other_keys_than_its_piece_is_refused(n):
    with pytest.raises(ValueError, match="keys 1 to 4 adds a number for each of these 3"):
        join([Piece(0, 1, normal(2, 3, 4, 1)), Piece(1, 4, normal(2, 3, 4, n))])
