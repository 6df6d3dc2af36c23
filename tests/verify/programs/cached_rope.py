"""One attention layer with a cache of rotated keys, whose masks and positions follow the cache's length."""

import math

import torch
from torch import nn

STYLE = "cached_model"
MODEL = {"layers": 1, "dim": 32, "heads": 4, "head_dim": 8}
SPEC = MODEL | {"kind": "decode_equivalence", "encoding": "rope", "causal": True, "base": 10000.0, "layout": "half"}
EXPECT = "pass"


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
        past = 0 if cache is None else cache[0].size(2)
        positions = torch.arange(past, past + n)
        q, k = turn(q, positions), turn(k, positions)
        if cache is not None:
            k, v = torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)
        seen = torch.ones(n, k.size(2), dtype=torch.bool).tril(k.size(2) - n)
        scores = (q @ k.mT / math.sqrt(q.size(-1))).masked_fill(~seen, -math.inf)
        y = scores.softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(b, n, d)), (k, v)


def build():
    torch.manual_seed(0)
    return Attention(32, 4).eval()
