"""Correct twin of cached_rope_offset_double_counted."""

import torch
import torch.nn.functional as F
from torch import nn

STYLE = "cached_model"
SPEC = {
    "kind": "decode_equivalence",
    "encoding": "rope",
    "dim": 24,
    "heads": 2,
    "head_dim": 12,
    "layers": 1,
    "causal": True,
    "base": 10000.0,
    "layout": "half",
}
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

    def forward(self, x, cache):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        offset = 0 if cache is None else cache["offset"]
        q = turn(q, torch.arange(offset, offset + n))
        k = turn(k, torch.arange(offset, offset + n))
        if cache is not None:
            k, v = torch.cat([cache["k"], k], dim=2), torch.cat([cache["v"], v], dim=2)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(n, k.size(2)).tril(k.size(2) - n).bool())
        step = n
        cache = {"k": k, "v": v, "offset": offset + step, "tokens": n}
        return self.out(y.transpose(1, 2).flatten(2)), cache


def build():
    torch.manual_seed(0)
    return Attention(24, 2).eval()
