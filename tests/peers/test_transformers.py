"""Attention and rotation as transformers' own modules compute them, forwards and backwards."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

import posenc
from peers.agreement import assert_same, leaf
from posenc import positions

pytest.importorskip("transformers")

from transformers import LlamaConfig, MptConfig, RoFormerConfig, Wav2Vec2BertConfig, XLNetConfig
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as turn_gptj
from transformers.models.gptj.modeling_gptj import create_sinusoidal_positions
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.mpt.modeling_mpt import MptAttention, build_mpt_alibi_tensor
from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLVisionConfig
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLVisionRotaryEmbedding, apply_rotary_pos_emb_vision
from transformers.models.roformer.modeling_roformer import RoFormerSelfAttention, RoFormerSinusoidalPositionalEmbedding
from transformers.models.t5.modeling_t5 import T5Attention
from transformers.models.t5.modeling_t5 import T5Config as T5Configuration
from transformers.models.wav2vec2_bert.modeling_wav2vec2_bert import Wav2Vec2BertSelfAttention
from transformers.models.wav2vec2_conformer.modeling_wav2vec2_conformer import (
    Wav2Vec2ConformerConfig,
    Wav2Vec2ConformerRelPositionalEmbedding,
    Wav2Vec2ConformerSelfAttention,
    _apply_relative_position_encoding,
)
from transformers.models.xlnet.modeling_xlnet import XLNetModel, XLNetRelativeAttention


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def split(x, n_heads):
    """(batch, seq, heads · d) to (batch, heads, seq, d)."""
    return x.unflatten(-1, (n_heads, -1)).transpose(1, 2)


def test_rope_in_halves_is_llama():
    config = LlamaConfig(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=16)
    q, k, pos = leaf(2, 4, 9, 16), leaf(2, 2, 9, 16), torch.randint(500, (2, 9))
    cos, sin = LlamaRotaryEmbedding(config)(q, pos)
    rope = posenc.RoPE(head_dim=16)
    ours, theirs = rope.rotate(q, k, rope.place(pos)), apply_rotary_pos_emb(q, k, cos, sin)
    # their angles are float32: 500 radians to half a unit in the last place
    assert_same(ours[0], theirs[0], [q], atol=1e-4)
    assert_same(ours[1], theirs[1], [k], atol=1e-4)


def test_rope_interleaved_is_roformer():
    """The one with the paper; its table is computed in float64."""
    q, k = leaf(2, 4, 50, 16), leaf(2, 4, 50, 16)
    table = RoFormerSinusoidalPositionalEmbedding(50, 16).create_weight()[None, None]
    theirs = RoFormerSelfAttention(RoFormerConfig()).apply_rotary_position_embeddings(table, q, k)
    rope = posenc.RoPE(head_dim=16, pairing="interleaved")
    ours = rope.rotate(q, k, rope.place(positions.arange(50)))
    assert_same(ours[0], theirs[0], [q])
    assert_same(ours[1], theirs[1], [k])


def test_rope_interleaved_and_partial_is_gptj():
    q, pos = leaf(2, 4, 9, 32), torch.randint(300, (2, 9))
    sin, cos = create_sinusoidal_positions(300, 16)[pos].chunk(2, -1)
    theirs = turn_gptj(q.transpose(1, 2)[..., :16], sin, cos).transpose(1, 2)
    rope = posenc.RoPE(head_dim=32, rotary_dim=16, pairing="interleaved")
    ours = rope.rotate_q(q, rope.place(pos))
    assert_same(ours[..., :16], theirs, [q], atol=1e-4)
    assert torch.equal(ours[..., 16:], q[..., 16:])


def test_axial_rope_in_halves_is_qwen2_vl():
    """Their heads come after the tokens."""
    q, k, grid = leaf(54, 4, 32), leaf(54, 4, 32), positions.grid(6, 9)
    cos, sin = Qwen2VLVisionRotaryEmbedding(Qwen2VLVisionConfig(embed_dim=128, num_heads=4))(q, grid)
    theirs = apply_rotary_pos_emb_vision(q, k, cos, sin)
    rope = posenc.AxialRoPE(head_dim=32)
    ours = rope.rotate(q.transpose(0, 1)[None], k.transpose(0, 1)[None], rope.place(grid))
    assert_same(ours[0][0].transpose(0, 1), theirs[0], [q])
    assert_same(ours[1][0].transpose(0, 1), theirs[1], [k])


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
    assert_same(mine, theirs, [ours.weight])


@pytest.mark.parametrize("n_heads", [4, 8, 12, 20])
def test_alibi_is_bloom_up_to_a_constant_a_row(n_heads):
    """BLOOM adds slope times the key's position, which a softmax over causal keys cannot tell from ours."""
    theirs = build_alibi_tensor(torch.ones(1, 17, dtype=torch.long), n_heads, torch.float32).view(n_heads, 1, 17)
    q, k, v = (leaf(1, n_heads, 17, 8) for _ in range(3))
    seen = torch.ones(17, 17, dtype=torch.bool).tril()
    scores = q @ k.mT * 8**-0.5 + theirs
    mine = posenc.attend(q, k, v, posenc.ALiBi(n_heads=n_heads), positions.arange(17))
    assert_same(mine, scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v, [q, k, v], atol=5e-6)


@pytest.mark.parametrize(("n_heads", "bias_max"), [(4, 8.0), (6, 8.0), (12, 8.0), (4, 16.0), (6, 16.0)])
def test_alibi_is_mpt_up_to_a_constant_a_row(n_heads, bias_max):
    """MPT adds slope times the key's distance from the last token."""
    peer = MptAttention(MptConfig(d_model=8 * n_heads, n_heads=n_heads), layer_idx=0)
    x, unseen = leaf(2, 23, 8 * n_heads), ~torch.ones(23, 23, dtype=torch.bool).tril()
    theirs, _ = peer(x, build_mpt_alibi_tensor(n_heads, 23, bias_max), attention_mask=unseen)
    q, k, v = (split(part, n_heads) for part in peer.Wqkv(x).chunk(3, -1))
    ours = posenc.attend(q, k, v, posenc.ALiBi(n_heads=n_heads, bias_max=bias_max), positions.arange(23))
    assert_same(peer.out_proj(ours.transpose(1, 2).flatten(-2)), theirs, [x, peer.Wqkv.weight])


def test_transformer_xl_is_xlnet():
    config = XLNetConfig(vocab_size=10, d_model=32, n_layer=1, n_head=4, d_inner=8)
    peer = XLNetRelativeAttention(config).eval()
    ours = posenc.TransformerXL(d_model=32, n_heads=4, head_dim=8)
    for parameter in (*peer.parameters(), *ours.parameters()):
        nn.init.normal_(parameter)
    peer.r_w_bias, peer.r_r_bias = ours.u, ours.v
    q, k, v = (leaf(2, 4, 7, 8) for _ in range(3))
    distances = XLNetModel(config).relative_positional_encoding(qlen=7, klen=7, bsz=2)
    by_distance = torch.einsum("ibh,ndh->ibnd", distances, ours.weight)
    theirs = peer.rel_attn_core(*(t.permute(2, 0, 1, 3) for t in (q, k, v)), by_distance)
    mine = posenc.attend(q, k, v, ours, positions.arange(7), causal=False)
    assert_same(mine, theirs.permute(1, 2, 0, 3), [q, k, v, ours.u, ours.v, ours.weight], atol=5e-6)


def test_transformer_xl_with_alternating_sines_is_conformer():
    """Its linear_pos.weight is ours, unflattened into heads."""
    config = Wav2Vec2ConformerConfig(hidden_size=32, num_attention_heads=4, position_embeddings_type="relative")
    peer = Wav2Vec2ConformerSelfAttention(config).eval()
    nn.init.normal_(peer.pos_bias_u), nn.init.normal_(peer.pos_bias_v)
    ours = posenc.TransformerXL(d_model=32, n_heads=4, head_dim=8, order="alternating")
    weights = {"u": peer.pos_bias_u, "v": peer.pos_bias_v, "weight": peer.linear_pos.weight.unflatten(0, (4, 8))}
    ours.load_state_dict(weights, strict=True)
    q, k = leaf(2, 4, 7, 8), leaf(2, 4, 7, 8)
    moved, by_distance = _apply_relative_position_encoding(
        peer, q, k, Wav2Vec2ConformerRelPositionalEmbedding(config)(torch.zeros(1, 7, 32))
    )
    placed = ours.place(positions.arange(7))
    mine = q @ k.mT / 8**0.5 + ours.bias(q, k, placed, placed)
    assert_same(mine, moved @ k.mT / 8**0.5 + by_distance, [q, k], atol=5e-6)


@pytest.mark.parametrize(("behind", "ahead", "n"), [(6, 2, 15), (3, 3, 9), (64, 8, 20)])
def test_shaw_is_relative_key_of_wav2vec2_bert(behind, ahead, n):
    """Their rows go by key minus query, from the furthest behind: ours in reverse."""
    config = Wav2Vec2BertConfig(
        hidden_size=32,
        num_attention_heads=4,
        position_embeddings_type="relative_key",
        left_max_position_embeddings=behind,
        right_max_position_embeddings=ahead,
        attn_implementation="eager",
    )
    peer = Wav2Vec2BertSelfAttention(config).eval()
    ours = posenc.Shaw(head_dim=8, max_distance=behind, max_ahead=ahead)
    nn.init.normal_(ours.weight)
    x = leaf(2, n, 32)
    theirs, _ = functional_call(peer, {"distance_embedding.weight": ours.weight.flip(0)}, (x,))
    q, k, v = (split(linear(x), 4) for linear in (peer.linear_q, peer.linear_k, peer.linear_v))
    mine = posenc.attend(q, k, v, ours, positions.arange(n), causal=False)
    assert_same(peer.linear_out(mine.transpose(1, 2).flatten(-2)), theirs, [x, ours.weight, peer.linear_q.weight])
