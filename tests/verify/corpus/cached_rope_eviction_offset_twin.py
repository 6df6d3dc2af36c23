"""Correct twin of cached_rope_eviction_offset."""

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
    "window": 4,
}
EXPECT = "pass"


def turn(x, positions, base=10000.0):
    """Rotate lanes (i, i + half) of x (batch, heads, seq, width) by positions (seq,)."""
    half = x.size(-1) // 2
    angle = positions[:, None] * base ** (-torch.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], dim=-1)


WINDOW = 4


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
        seen = cache["seen"] if cache else 0
        kept = cache["k"].size(2) if cache else 0
        place = torch.arange(seen, seen + n)
        q, k = turn(q, place), turn(k, place)
        if cache:
            k, v = torch.cat([cache["k"], k], dim=2), torch.cat([cache["v"], v], dim=2)
        distance = torch.arange(kept, kept + n)[:, None] - torch.arange(kept + n)
        hidden = (distance < 0) | (distance >= WINDOW)
        scores = (q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))).masked_fill(hidden, -math.inf)
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d)
        return self.out(y), {"seen": seen + n, "k": k[:, :, -WINDOW:], "v": v[:, :, -WINDOW:]}


def build():
    torch.manual_seed(0)
    return Attention(32, 4).eval()
