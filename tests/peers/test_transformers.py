"""Agreement with transformers' own modules, forwards and backwards."""

import pytest
import torch
from torch import nn

import posenc
from posenc import positions

pytest.importorskip("transformers")

from transformers import LlamaConfig, XLNetConfig
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as turn_gptj
from transformers.models.gptj.modeling_gptj import create_sinusoidal_positions
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.t5.modeling_t5 import T5Attention
from transformers.models.t5.modeling_t5 import T5Config as T5Configuration
from transformers.models.xlnet.modeling_xlnet import XLNetModel, XLNetRelativeAttention


def heads(*shape: int):
    return torch.randn(*shape, requires_grad=True)


def assert_same(ours, theirs, inputs, atol=2e-6):
    """Compare values, then the gradients of a random sum."""
    torch.testing.assert_close(ours, theirs, atol=atol, rtol=1e-5)
    weight = torch.randn_like(ours)
    gradients = [torch.autograd.grad((out * weight).sum(), inputs, retain_graph=True) for out in (ours, theirs)]
    for mine, peer in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, peer, atol=10 * atol, rtol=1e-4)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def test_rope_in_halves_is_llama():
    config = LlamaConfig(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=16)
    q, k, pos = heads(2, 4, 9, 16), heads(2, 2, 9, 16), torch.randint(500, (2, 9))
    cos, sin = LlamaRotaryEmbedding(config)(q, pos)
    rope = posenc.RoPE(head_dim=16)
    ours, theirs = rope.rotate(q, k, rope.place(pos)), apply_rotary_pos_emb(q, k, cos, sin)
    # their angles are float32: 500 radians to half a unit in the last place
    assert_same(ours[0], theirs[0], [q], atol=1e-4)
    assert_same(ours[1], theirs[1], [k], atol=1e-4)


def test_rope_interleaved_and_partial_is_gptj():
    q, pos = heads(2, 4, 9, 32), torch.randint(300, (2, 9))
    sin, cos = create_sinusoidal_positions(300, 16)[pos].chunk(2, -1)
    theirs = turn_gptj(q.transpose(1, 2)[..., :16], sin, cos).transpose(1, 2)
    rope = posenc.RoPE(head_dim=32, rotary_dim=16, pairing="interleaved")
    ours = rope.rotate_q(q, rope.place(pos))
    assert_same(ours[..., :16], theirs, [q], atol=1e-4)
    assert torch.equal(ours[..., 16:], q[..., 16:])


@pytest.mark.parametrize("bidirectional", [False, True])
def test_t5_is_t5(bidirectional):
    config = T5Configuration(d_model=32, d_kv=8, num_heads=4, is_decoder=not bidirectional)
    peer = T5Attention(config, has_relative_attention_bias=True)
    ours = posenc.T5(n_heads=4, bidirectional=bidirectional)
    ours.weight = nn.Parameter(torch.randn(32, 4))
    peer.relative_attention_bias.weight = ours.weight
    theirs = peer.compute_bias(9, 400, past_seen_tokens=250)
    mine = ours.dense(positions.continued(250, 9), positions.arange(400))
    assert torch.equal(mine, theirs)
    gradients = [torch.autograd.grad((b**2).sum(), ours.weight)[0] for b in (mine, theirs)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("n_heads", [4, 8, 12, 20])
def test_alibi_is_bloom_up_to_a_constant_a_row(n_heads):
    """BLOOM adds slope times the key's position, which a softmax over causal keys cannot tell from ours."""
    theirs = build_alibi_tensor(torch.ones(1, 17, dtype=torch.long), n_heads, torch.float32).view(n_heads, 1, 17)
    ours = posenc.ALiBi(n_heads=n_heads).dense(positions.arange(17), causal=True)[0]
    seen = torch.ones(17, 17, dtype=torch.bool).tril()
    scores = torch.randn(n_heads, 17, 17)
    weights = (scores + theirs).masked_fill(~seen, -torch.inf).softmax(-1)
    torch.testing.assert_close((scores + ours).softmax(-1), weights, atol=2e-6, rtol=0)


def test_transformer_xl_is_xlnet():
    config = XLNetConfig(vocab_size=10, d_model=32, n_layer=1, n_head=4, d_inner=8)
    peer = XLNetRelativeAttention(config).eval()
    for parameter in peer.parameters():
        nn.init.normal_(parameter)
    ours = posenc.TransformerXL(d_model=32, n_heads=4, head_dim=8)
    with torch.no_grad():
        ours.u.copy_(peer.r_w_bias)
        ours.v.copy_(peer.r_r_bias)
        ours.weight.copy_(peer.r.permute(1, 2, 0))
    q, k, v = (heads(2, 4, 7, 8) for _ in range(3))
    distances = XLNetModel(config).relative_positional_encoding(qlen=7, klen=7, bsz=2)
    by_distance = torch.einsum("ibh,hnd->ibnd", distances, peer.r)
    theirs = peer.rel_attn_core(*(t.permute(2, 0, 1, 3) for t in (q, k, v)), by_distance)
    mine = posenc.attend(q, k, v, ours, positions.arange(7), causal=False)
    assert_same(mine, theirs.permute(1, 2, 0, 3), [q, k, v], atol=5e-6)
