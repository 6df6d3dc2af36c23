"""The powers are centred on half of the current length, so cached keys carry another centre than new queries.

Report: https://github.com/lucidrains/rotary-embedding-torch/issues/27
"""

import math

import torch
from torch import nn

STYLE = "cached_model"
SPEC = {
    "kind": "decode_equivalence",
    "encoding": "xpos",
    "dim": 32,
    "heads": 4,
    "head_dim": 8,
    "layers": 1,
    "causal": True,
    "base": 10000.0,
    "layout": "half",
    "scale_base": 8,
    "gamma": 0.4,
}
EXPECT = "xpos.kv_cache.centre_moves"


def turn(x, positions, base=10000.0):
    """Rotate lanes (i, i + half) of x (batch, heads, seq, width) by positions (seq,)."""
    half = x.size(-1) // 2
    angle = positions[:, None] * base ** (-torch.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], dim=-1)


def decay(place, width, centre, scale_base=8, gamma=0.4):
    zeta = (torch.arange(0, width, 2) / width + gamma) / (1 + gamma)
    return (zeta ** ((place - centre) / scale_base)[:, None]).repeat(1, 2)


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
        past = cache[0].size(2) if cache is not None else 0
        place = torch.arange(past, past + n)
        centre = (past + n) // 2
        q = turn(q, place) * decay(place, q.size(-1), centre)
        k = turn(k, place) / decay(place, k.size(-1), centre)
        if past:
            k, v = torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))
        hidden = torch.arange(k.size(2)) > torch.arange(k.size(2) - n, k.size(2))[:, None]
        y = scores.masked_fill(hidden, -math.inf).softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(b, n, d)), (k, v)


def build():
    torch.manual_seed(0)
    return Attention(32, 4).eval()
