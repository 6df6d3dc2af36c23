"""Tensors are laid out for another axis order, so the angle is that of the head's number.

Report: https://github.com/mlfoundations/open_lm/issues/4
"""

import torch
import torch.nn.functional as F

STYLE = "attention"
SPEC = {"encoding": "rope", "head_dim": 16, "base": 10000.0, "layout": "half", "causal": False}
EXPECT = "rope.axis.heads"


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
        count = torch.arange(q.size(1))
        q, k = rotary(q, count), rotary(k, count)
        return F.scaled_dot_product_attention(q, k, v)

    return attention
