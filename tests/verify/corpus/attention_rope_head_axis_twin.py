"""Correct twin of attention_rope_head_axis."""

import torch
import torch.nn.functional as F

STYLE = "attention"
SPEC = {"encoding": "rope", "head_dim": 16, "base": 10000.0, "layout": "half", "causal": False}
EXPECT = "pass"


class Rotary:
    """Rotate x (batch, seq, heads, dim) by the positions of its second axis."""

    def __init__(self, dim):
        self.rate = 1.0 / 10000.0 ** (torch.arange(0, dim, 2) / dim)

    def __call__(self, x, positions):
        angle = (positions[:, None] * self.rate)[None, :, None]
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], dim=-1)


def build():
    rotary = Rotary(16)

    def attention(q, k, v, positions):
        q = rotary(q.transpose(1, 2), positions).transpose(1, 2)
        k = rotary(k.transpose(1, 2), positions).transpose(1, 2)
        return F.scaled_dot_product_attention(q, k, v)

    return attention
