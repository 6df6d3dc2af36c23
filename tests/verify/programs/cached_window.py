"""One attention layer with a window of tokens; its cache also counts the tokens that have left it."""

import math

import torch
from torch import nn

STYLE = "cached_model"
MODEL = {"layers": 1, "dim": 32, "heads": 4, "head_dim": 8, "window": 6}
SPEC = MODEL | {"kind": "decode_equivalence", "encoding": "rope", "causal": True, "base": 10000.0, "layout": "half"}
EXPECT = "pass"


def turn(x, positions, base=10000.0):
    """Rotate lanes (i, i + half) of x (batch, heads, seq, width) by positions (seq,)."""
    half = x.size(-1) // 2
    angle = positions[:, None] * base ** (-torch.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], dim=-1)


class Attention(nn.Module):
    """A window of tokens, the query counted; the cache holds keys, values and how many tokens were seen."""

    def __init__(self, dim, heads, window):
        super().__init__()
        self.heads, self.window = heads, window
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        nn.init.normal_(self.qkv.weight, std=dim**-0.5)

    def forward(self, x, cache=None):
        b, n, d = x.shape
        seen = 0 if cache is None else cache[2]
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        positions = torch.arange(seen, seen + n)
        q, k = turn(q, positions), turn(k, positions)
        if cache is not None:
            k, v = torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)
        ago = torch.arange(n)[:, None] + k.size(2) - n - torch.arange(k.size(2))
        hidden = (ago < 0) | (ago >= self.window)
        kept = self.window - 1
        y = (q @ k.mT / math.sqrt(d // self.heads)).masked_fill(hidden, -math.inf).softmax(-1) @ v
        return y.transpose(1, 2).reshape(b, n, d), (k[:, :, -kept:], v[:, :, -kept:], seen + n)


def build():
    torch.manual_seed(0)
    return Attention(32, 4, 6)
