"""Biases by position, and attention with them, as transformers and x-transformers compute them."""

import pytest
import torch
from torch import nn

import posenc
from peers.agreement import assert_same, leaf
from posenc import positions

pytest.importorskip("transformers")
pytest.importorskip("x_transformers")

from transformers import BloomConfig, FalconConfig
from transformers.models.bloom.modeling_bloom import BloomAttention
from transformers.models.bloom.modeling_bloom import build_alibi_tensor as build_bloom
from transformers.models.falcon.modeling_falcon import FalconAttention
from transformers.models.falcon.modeling_falcon import build_alibi_tensor as build_falcon
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention
from transformers.models.t5.modeling_t5 import T5Config as T5Configuration
from x_transformers.x_transformers import AlibiPositionalBias, DynamicPositionBias


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def masked(n):
    """What models add to scores so that no later key is seen."""
    return torch.full((n, n), torch.finfo(torch.float32).min).triu(1)


def by_hand(q, k, v, bias, scale):
    """Attention behind a causal mask, with a peer's bias."""
    return (scale * q @ k.mT + bias + masked(q.shape[-2])).softmax(-1) @ v


@pytest.mark.parametrize("n_heads", [1, 4, 12, 20, 71])
def test_alibi_by_key_is_blooms_tensor(n_heads):
    theirs = build_bloom(torch.ones(1, 300, dtype=torch.long), n_heads, torch.float32).view(1, n_heads, 1, 300)
    ours = posenc.ALiBi(n_heads=n_heads, sides="key").dense(positions.arange(1), positions.arange(300))
    torch.testing.assert_close(ours, theirs, rtol=2e-6, atol=0)  # their slopes are powers of a rounded base


@pytest.mark.parametrize("sides", ["key", "symmetric"])
def test_alibi_is_blooms_attention(sides):
    peer = BloomAttention(BloomConfig(hidden_size=48, n_head=6, hidden_dropout=0.0), layer_idx=0).eval()
    x = leaf(2, 21, 48)
    alibi = build_bloom(torch.ones(2, 21, dtype=torch.long), 6, torch.float32)
    theirs, _ = peer(x, torch.zeros(()), alibi, masked(21))
    q, k, v = peer.query_key_value(x).unflatten(-1, (6, 3, 8)).movedim(1, 3).unbind(3 - 1)
    ours = posenc.attend(q, k, v, posenc.ALiBi(n_heads=6, sides=sides), positions.arange(21), backend="reference")
    out = peer.dense(ours.transpose(1, 2).flatten(-2))
    assert_same(out, theirs, [x, peer.query_key_value.weight], atol=5e-6)


@pytest.mark.parametrize("n_heads", [3, 8, 71])
def test_alibi_by_key_in_falcons_precision_is_falcons_tensor(n_heads):
    """Bit by bit: slope, position and product are each rounded."""
    theirs = build_falcon(torch.ones(1, 3000, dtype=torch.long), n_heads, torch.float32).view(1, n_heads, 1, 3000)
    alibi = posenc.ALiBi(n_heads=n_heads, sides="key", precision="falcon-bfloat16")
    assert torch.equal(alibi.dense(positions.arange(1), positions.arange(3000)), theirs)
    exact = posenc.ALiBi(n_heads=n_heads, sides="key").dense(positions.arange(1), positions.arange(3000))
    assert (exact - theirs).abs().max() > 1


def test_alibi_is_falcons_attention():
    """Falcon adds the bias before it divides by the root of head_dim, 16 here."""
    config = FalconConfig(
        hidden_size=64, num_attention_heads=4, alibi=True, multi_query=False, new_decoder_architecture=False,
        attn_implementation="eager",
    )  # fmt: skip
    peer, x, n = FalconAttention(config, layer_idx=0).eval(), leaf(1, 500, 64), 500
    nn.init.normal_(peer.query_key_value.weight, std=0.2)
    theirs, _ = peer(x, build_falcon(torch.ones(1, n, dtype=torch.long), 4, torch.float32), masked(n))
    q, k, v = (t.transpose(1, 2) for t in peer._split_heads(peer.query_key_value(x)))
    slopes = [0.25**i / 4 for i in range(1, 5)]
    alibi = posenc.ALiBi(n_heads=4, slopes=slopes, sides="key", precision="falcon-bfloat16")
    ours = posenc.attend(q, k, v, alibi, positions.arange(n), backend="reference")
    assert_same(peer.dense(ours.transpose(1, 2).flatten(-2)), theirs, [x, peer.query_key_value.weight], atol=5e-6)


@pytest.mark.parametrize("n_heads", [2, 6, 12])
@pytest.mark.parametrize("bias_max", [8.0, 16.0])
def test_alibi_is_mpts_tensor(n_heads, bias_max):
    """MPT counts keys from the last, which the last query sees at their distance."""
    theirs = build_mpt_alibi_tensor(n_heads, 200, bias_max)[None]
    ours = posenc.ALiBi(n_heads=n_heads, bias_max=bias_max).dense(torch.tensor([199]), positions.arange(200))
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)
    by_key = posenc.ALiBi(n_heads=n_heads, bias_max=bias_max, sides="key")
    torch.testing.assert_close(by_key.dense(torch.tensor([0]), positions.arange(200) - 199), theirs, rtol=1e-6, atol=0)


@pytest.mark.parametrize(("with_slopes", "heads"), [(8, 8), (6, 6), (4, 7), (3, 7)])
@pytest.mark.parametrize("own", [False, True])
def test_alibi_of_some_heads_is_x_transformers(with_slopes, heads, own):
    slopes = [0.5 + i for i in range(with_slopes)] if own else None
    peer = AlibiPositionalBias(with_slopes, heads, slopes)
    ours = posenc.ALiBi(n_heads=heads, heads=with_slopes, slopes=slopes or "authors")
    torch.testing.assert_close(
        ours.dense(positions.arange(50) + 7, positions.arange(57))[0], peer(50, 57), rtol=1e-6, atol=0
    )
    q, k, v = (leaf(1, heads, 57, 8) for _ in range(3))
    out = posenc.attend(q, k, v, ours, positions.arange(57), backend="reference")
    assert_same(out, by_hand(q, k, v, peer(57, 57), 8**-0.5), [q, k, v], atol=5e-6)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("log_distance", [False, True])
@pytest.mark.parametrize("depth", [1, 3])
def test_dynamic_position_bias_is_x_transformers(depth, log_distance, norm):
    """Its first LayerNorm has no shift."""
    peer = DynamicPositionBias(12, heads=4, depth=depth, log_distance=log_distance, norm=norm)
    ours = posenc.DynamicPositionBias(
        n_heads=4, width=12, depth=depth, log_distance=log_distance, norm=norm, activation="silu"
    )
    *hidden, last = peer.mlp
    linears = [layer[0] for layer in hidden]
    with torch.no_grad():
        pairs = [(ours.w_in, linears[0].weight), (ours.b_in, linears[0].bias)]
        pairs += [(ours.w_out, last.weight), (ours.b_out, last.bias)]
        pairs += [(w, layer.weight) for w, layer in zip(ours.w_mid if depth > 1 else (), linears[1:], strict=True)]
        pairs += [(b, layer.bias) for b, layer in zip(ours.b_mid if depth > 1 else (), linears[1:], strict=True)]
        for i, layer in enumerate(hidden if norm else ()):
            nn.init.normal_(layer[1].gamma if i == 0 else layer[1].weight)
            ours.ln_g[i] = layer[1].gamma if i == 0 else layer[1].weight
        for mine, theirs in pairs:
            mine.copy_(theirs)
    q, k, v = (leaf(1, 4, 40, 8) for _ in range(3))
    mine, theirs = ours.dense(positions.arange(40)), peer(40, 40)
    torch.testing.assert_close(mine[0], theirs, atol=1e-5, rtol=1e-5)
    out, wanted = (
        posenc.attend(q, k, v, ours, positions.arange(40), backend="reference"),
        by_hand(q, k, v, theirs, 8**-0.5),
    )
    assert_same(out, wanted, [q, k, v], atol=5e-6)
    weight = torch.randn_like(out)
    own = torch.autograd.grad((out * weight).sum(), [ours.w_in, ours.w_out])
    for got, grad in zip(
        own, torch.autograd.grad((wanted * weight).sum(), [linears[0].weight, last.weight]), strict=True
    ):
        assert grad.any()
        torch.testing.assert_close(got, grad, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_t5_is_t5s_attention(bidirectional):
    """Scores are not divided by the root of head_dim."""
    config = T5Configuration(d_model=32, d_kv=8, num_heads=4, is_decoder=not bidirectional, dropout_rate=0.0)
    peer = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).eval()
    nn.init.normal_(peer.relative_attention_bias.weight)
    ours = posenc.T5(n_heads=4, bidirectional=bidirectional, score_scale=1.0)
    ours.weight = peer.relative_attention_bias.weight
    x, n = leaf(2, 150, 32), 150
    theirs = peer(x, mask=None if bidirectional else masked(n))[0]
    q, k, v = (linear(x).unflatten(-1, (4, 8)).transpose(1, 2) for linear in (peer.q, peer.k, peer.v))
    out = posenc.attend(q, k, v, ours, positions.arange(n), causal=not bidirectional, backend="reference")
    assert_same(peer.o(out.transpose(1, 2).flatten(-2)), theirs, [x, ours.weight, peer.q.weight], atol=2e-5)
