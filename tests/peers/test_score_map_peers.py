"""CoPE as x-transformers makes it, alone and within its attention; forwards and backwards."""

import pytest
import torch
from torch.func import functional_call

import posenc
from peers.agreement import assert_same, leaf

x_transformers = pytest.importorskip("x_transformers.x_transformers")
attend = pytest.importorskip("x_transformers.attend")


class Ours(torch.nn.Module):
    """Attention with our CoPE, or its map alone, as a module whose table can be given."""

    def __init__(self, cope):
        super().__init__()
        self.cope = cope

    def forward(self, *tensors, pos, k_pos=None, mask=None):
        if mask is None:
            return posenc.attend(*tensors, self.cope, pos, k_pos)
        placed = self.cope.place(pos)
        return self.cope.rescore(*tensors, placed, placed, mask)


def pair(max_count: int):
    """Ours and theirs with one table, which is a leaf: theirs has a row a count, ours a column."""
    torch.manual_seed(0)
    cope, table = Ours(posenc.CoPE(head_dim=8, max_count=max_count)), leaf(max_count, 8)
    theirs = x_transformers.CoPE(dim=8, heads=4, max_pos=max_count)  # without talking heads, with interpolation
    del theirs.pos_emb
    theirs.pos_emb = table

    def ours(*tensors, **options):
        return functional_call(cope, {"cope.weight": table.mT}, tensors, options)

    return ours, theirs, table


@pytest.mark.parametrize("max_count", [1, 3, 16])
def test_cope(max_count):
    ours, theirs, table = pair(max_count)
    q, k = leaf(2, 4, 9, 8), leaf(2, 4, 9, 8)
    seen = torch.ones(9, 9).tril().bool()
    scores = q @ k.mT * 8**-0.5
    got = ours(scores, q, k, pos=torch.arange(9), mask=seen)[..., seen]
    masked = scores.masked_fill(~seen, -torch.finfo(scores.dtype).max)
    assert_same(got, (scores + theirs(q, masked))[..., seen], (q, k, table))


def test_cope_in_attention():
    """Their Attend scales the scores, masks, adds what CoPE makes of both, and takes the softmax."""
    ours, theirs, table = pair(5)
    q, k, v = (leaf(2, 4, 12, 8) for _ in "qkv")
    got = ours(q, k, v, pos=torch.arange(12))
    wanted, _ = attend.Attend(causal=True, heads=4, cope=theirs)(q, k, v)
    assert_same(got, wanted, (q, k, v, table))


def test_cope_with_a_cache():
    """Their attention aligns a cache at the end, as ours does."""
    ours, theirs, table = pair(4)
    q, k, v = leaf(1, 4, 3, 8), leaf(1, 4, 10, 8), leaf(1, 4, 10, 8)
    got = ours(q, k, v, pos=torch.arange(7, 10), k_pos=torch.arange(10))
    wanted, _ = attend.Attend(causal=True, heads=4, cope=theirs)(q, k, v)
    assert_same(got, wanted, (q, k, v, table))
