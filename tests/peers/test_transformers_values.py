"""DeepSeek-V4 of transformers: keys that are values, rotated once, and outputs rotated back."""

import pytest
import torch

import posenc
from peers.agreement import assert_same
from posenc import Compose, positions

pytest.importorskip("transformers")

from transformers import DeepseekV4Config
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as v4

SIZES = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "head_dim": 16,
    "partial_rotary_factor": 0.5,
    "q_lora_rank": 12,
    "o_groups": 2,
    "o_lora_rank": 8,
    "num_hidden_layers": 1,
    "layer_types": ["sliding_attention"],
    "mlp_layer_types": ["moe"],
    "sliding_window": 5,
    "rope_theta": 500.0,
}
N = 9
LANES = {"head_dim": 16, "rotary_dim": 8, "rotary_side": "last", "pairing": "interleaved", "base": 500.0}


@pytest.fixture
def theirs():
    """Their attention without sinks, which are no part of position; and the tables of its positions."""
    torch.manual_seed(0)
    config = DeepseekV4Config(**SIZES)
    config._attn_implementation = "eager"
    attention = v4.DeepseekV4Attention(config, 0)
    torch.nn.init.constant_(attention.sinks, -1e4)
    return attention, v4.DeepseekV4RotaryEmbedding(config)


def run(attention, angles, x, pos, mask, **options):
    tables = {kind: angles(x, position_ids=pos[None], layer_type=kind) for kind in ("main", "compress")}
    return attention(x, tables, pos[None], mask, **options)[0]


def projected(attention, x):
    """Their queries, and the one tensor of keys and values, before anything rotates."""
    q = attention.q_b_norm(attention.q_b_proj(attention.q_a_norm(attention.q_a_proj(x))).unflatten(-1, (4, -1)))
    return q.transpose(1, 2), attention.kv_norm(attention.kv_proj(x))[:, None]


def joined(attention, out):
    """Their output projection of (batch, heads, seq, head_dim)."""
    grouped = out.transpose(1, 2).reshape(*out.shape[:1], out.shape[2], 2, -1)
    return attention.o_b_proj(attention.o_a_proj(grouped).flatten(2))


def test_the_attention_of_deepseek_v4(theirs):
    """Values and gradients, with a window; and from a cache of one rotated tensor."""
    attention, angles = theirs
    x, pos = torch.randn(2, N, 32, requires_grad=True), positions.arange(N, start=300)
    here = torch.arange(N)
    seen = (here[None] <= here[:, None]) & (here[None] > here[:, None] - 5)
    wanted = run(attention, angles, x, pos, torch.zeros(2, 1, N, N).masked_fill(~seen, -torch.inf))
    encoding = Compose(posenc.RoPE(**LANES), posenc.VORoPE(**LANES))
    q, kv = projected(attention, x)
    got = posenc.attend(q, kv, kv, encoding, pos, window=5)
    assert_same(joined(attention, got), wanted, [x, attention.kv_proj.weight], atol=2e-5)

    placed = encoding.place(pos)
    q, rotated = encoding.rotate(q, kv, placed)
    torch.testing.assert_close(encoding.rotate_v(kv, placed), rotated, rtol=0, atol=0)  # one tensor serves as both
    last = posenc.attend(q[:, :, -2:], rotated, rotated, encoding, pos[-2:], pos, rotated=True, window=5)
    torch.testing.assert_close(joined(attention, last), wanted[:, -2:], rtol=1e-5, atol=2e-5)


def test_without_the_rotation_back_it_is_another_attention(theirs):
    attention, angles = theirs
    x, pos = torch.randn(1, N, 32), positions.arange(N, start=3)
    mask = torch.full((1, 1, N, N), -torch.inf).triu(1)
    wanted = run(attention, angles, x, pos, mask)
    q, kv = projected(attention, x)
    rope, vo = posenc.RoPE(**LANES), posenc.VORoPE(**LANES)
    rotated = vo.rotate_v(kv, vo.place(pos))
    for v in (kv, rotated):
        wrong = joined(attention, posenc.attend(q, kv, v, rope, pos))
        assert float((wrong - wanted).detach().abs().max()) > 0.01 * float(wanted.detach().abs().max())


def test_its_configuration_is_both_rotations():
    """Layers behind a compressor rotate by another base; all rotate the last half of 16 lanes, in pairs."""
    kinds = ["sliding_attention", "heavily_compressed_attention"]
    config = DeepseekV4Config(**SIZES | {"num_hidden_layers": 2, "layer_types": kinds, "mlp_layer_types": ["moe"] * 2})
    layers = posenc.PerLayer.from_config(config.to_dict())
    for i, base in enumerate((500.0, 160000.0)):
        rope, vo = layers.distinct[layers.index[i]].encodings
        assert (type(rope), type(vo)) == (posenc.RoPE, posenc.VORoPE)
        assert (vo.rotary_dim, vo.rotary_side, vo.pairing, vo.head_dim) == (8, "last", "interleaved", 16)
        wanted = torch.tensor([base ** (-k / 4) for k in range(4)], dtype=torch.float64)
        for one in (rope, vo):
            torch.testing.assert_close(one.frequencies()[0], wanted, rtol=1e-12, atol=0)
