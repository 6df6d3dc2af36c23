"""DeBERTa's attention as transformers computes it, and forget gates as x-transformers does, forwards and backwards."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

import posenc
from peers.agreement import assert_same, leaf
from posenc import positions

pytest.importorskip("transformers")
pytest.importorskip("x_transformers")

from transformers import DebertaConfig, DebertaV2Config
from transformers.models.deberta.modeling_deberta import DisentangledSelfAttention as FirstAttention
from transformers.models.deberta.modeling_deberta import build_relative_position as first_distances
from transformers.models.deberta_v2.modeling_deberta_v2 import (
    DisentangledSelfAttention,
    build_relative_position,
    make_log_bucket_position,
)
from x_transformers.x_transformers import DataDependentAlibi

SIZES = [(256, 512), (32, 128), (64, 512), (128, 4096), (8, 20), (16, 40), (6, 10), (4, 9), (4, 4), (7, 20), (9, 30)]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


class Attend(nn.Module):
    """`attend` as a module, so that an encoding's tables can be given as functions of a peer's weights."""

    def __init__(self, encoding):
        super().__init__()
        self.encoding = encoding

    def forward(self, q, k, v, pos):
        return posenc.attend(q, k, v, self.encoding, pos, causal=False, backend="reference")


def attend(encoding, tables, q, k, v):
    given = {f"encoding.{name}": table for name, table in tables.items()}
    return functional_call(Attend(encoding), given, (q, k, v, positions.arange(q.shape[2])))


def split(x, n_heads):
    """(..., seq, heads · d) to (..., heads, seq, d)."""
    return x.unflatten(-1, (n_heads, -1)).transpose(-3, -2)


@pytest.mark.parametrize(("n_buckets", "max_distance"), SIZES)
def test_deberta_buckets_are_those_of_transformers(n_buckets, max_distance):
    """Theirs take float32 logarithms, ours compare whole numbers: no distance falls on the other side of an edge."""
    distance = torch.arange(-20_000, 20_001)
    theirs = make_log_bucket_position(distance, n_buckets, max_distance).long() + n_buckets
    ours = posenc.DeBERTa(n_heads=1, head_dim=1, n_buckets=n_buckets, max_distance=max_distance)
    assert torch.equal(ours.row(distance), theirs.clamp(0, 2 * n_buckets - 1))


@pytest.mark.parametrize("terms", [("c2p", "p2c"), ("c2p",), ("p2c",)])
@pytest.mark.parametrize("shared", [True, False])
def test_deberta_is_deberta_v2(terms, shared):
    """A text longer than the distances that are distinguished, so that both ends of the tables serve."""
    config = DebertaV2Config(
        hidden_size=24,
        num_attention_heads=3,
        position_buckets=8,
        max_relative_positions=20,
        relative_attention=True,
        pos_att_type=list(terms),
        share_att_key=shared,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    peer = DisentangledSelfAttention(config).eval()
    x, rel_embeddings, n = leaf(2, 50, 24), leaf(16, 24), 50
    distances = build_relative_position(x, x, bucket_size=8, max_position=20)
    theirs, _ = peer(x, torch.ones(2, 1, n, n), relative_pos=distances, rel_embeddings=rel_embeddings)
    ours = posenc.DeBERTa(n_heads=3, head_dim=8, n_buckets=8, max_distance=20, terms=terms)
    project = {
        "c2p": ("key_table", peer.key_proj if shared else getattr(peer, "pos_key_proj", None)),
        "p2c": ("query_table", peer.query_proj if shared else getattr(peer, "pos_query_proj", None)),
    }
    tables = {project[term][0]: split(project[term][1](rel_embeddings), 3) for term in terms}
    q, k, v = (split(linear(x), 3) for linear in (peer.query_proj, peer.key_proj, peer.value_proj))
    mine = attend(ours, tables, q, k, v).transpose(1, 2).flatten(-2)
    assert_same(mine, theirs, [x, rel_embeddings, *peer.parameters()], atol=5e-6)


@pytest.mark.parametrize("n", [5, 30])
def test_deberta_with_repeated_ends_is_deberta_v1(n):
    """Version 1 has no buckets: with twice as many, ours are exact as far as its table goes; then its end repeats."""
    reach = 6
    config = DebertaConfig(
        hidden_size=24,
        num_attention_heads=3,
        max_relative_positions=reach,
        relative_attention=True,
        pos_att_type=["c2p", "p2c"],
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    peer = FirstAttention(config).eval()
    nn.init.normal_(peer.q_bias)
    nn.init.normal_(peer.v_bias)
    x, rel_embeddings = leaf(2, n, 24), leaf(2 * reach, 24)
    theirs, _ = peer(x, torch.ones(2, 1, n, n), relative_pos=first_distances(x, x), rel_embeddings=rel_embeddings)
    repeated = rel_embeddings[(torch.arange(4 * reach) - reach).clamp(0, 2 * reach - 1)]
    tables = {
        "key_table": split(peer.pos_proj(repeated), 3),
        "query_table": split(peer.pos_q_proj(repeated), 3),
    }
    q, k, v = split(peer.in_proj(x), 3).chunk(3, dim=-1)
    q, v = (t + split(bias[None, None], 3) for t, bias in ((q, peer.q_bias), (v, peer.v_bias)))
    ours = posenc.DeBERTa(n_heads=3, head_dim=8, n_buckets=2 * reach, max_distance=100)
    mine = attend(ours, tables, q, k, v).transpose(1, 2).flatten(-2)
    assert_same(mine, theirs, [x, rel_embeddings, peer.in_proj.weight, peer.pos_proj.weight, peer.pos_q_proj.weight])


def test_fox_is_data_dependent_alibi():
    """Theirs adds all up in float32, so that the first tokens of a text agree."""
    peer = DataDependentAlibi(dim=24, heads=4)
    linear = peer.to_forget_gates[0]
    ours = posenc.FoX(d_model=24, n_heads=4)
    ours.weight, ours.b = linear.weight, linear.bias
    x, q, k, v = leaf(2, 30, 24), leaf(2, 4, 30, 8), leaf(2, 4, 30, 8), leaf(2, 4, 30, 8)
    theirs = peer(x)
    placed = ours.place(positions.arange(30), x)
    inputs = [x, ours.weight, ours.b]
    assert_same(ours.bias(q, k, placed, placed), theirs, inputs, atol=5e-6)
    mine = posenc.attend(q, k, v, ours, placed, backend="reference")
    seen = torch.ones(30, 30, dtype=torch.bool).tril()
    scores = (q @ k.mT * 8**-0.5 + theirs).masked_fill(~seen, -torch.inf)
    assert_same(mine, scores.softmax(-1) @ v, [q, k, v, *inputs], atol=5e-6)
