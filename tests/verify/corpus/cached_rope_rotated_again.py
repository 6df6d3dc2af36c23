"""Rotated keys are kept, and the whole row of keys is rotated again at the next step.

Report: https://github.com/EleutherAI/gpt-neox/pull/363
"""

import math

import torch
from torch import nn

STYLE = "cached_model"
SPEC = {
    "kind": "decode_equivalence",
    "encoding": "rope",
    "dim": 32,
    "heads": 4,
    "head_dim": 8,
    "layers": 1,
    "causal": True,
    "base": 10000.0,
    "layout": "half",
}
EXPECT = "rope.kv_cache.rotated_then_rotated_again"


def turn(x, positions, base=10000.0):
    """Rotate lanes (i, i + half) of x (batch, heads, seq, width) by positions (seq,)."""
    half = x.size(-1) // 2
    angle = positions[:, None] * base ** (-torch.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], dim=-1)


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        nn.init.normal_(self.qkv.weight, std=dim**-0.5)

    def forward(self, x, cache=None):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        if cache is not None:
            k, v = torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)
        total = k.size(2)
        k = turn(k, torch.arange(total))
        q = turn(q, torch.arange(total - n, total))
        cache = (k, v)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))
        hidden = torch.arange(k.size(2)) > torch.arange(k.size(2) - n, k.size(2))[:, None]
        y = scores.masked_fill(hidden, -math.inf).softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(b, n, d)), cache


def build():
    torch.manual_seed(0)
    return Attention(32, 4).eval()
