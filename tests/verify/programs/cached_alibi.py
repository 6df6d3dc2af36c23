"""One attention layer whose bias covers all keys in the cache, from the places of the new queries."""

import math

import torch
from torch import nn

STYLE = "cached_model"
MODEL = {"layers": 1, "dim": 32, "heads": 4, "head_dim": 8}
SPEC = MODEL | {"kind": "decode_equivalence", "encoding": "alibi", "causal": True}
EXPECT = "pass"


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        nn.init.normal_(self.qkv.weight, std=dim**-0.5)
        self.register_buffer("slopes", 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads))

    def forward(self, x, cache=None):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        if cache is not None:
            k, v = torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)
        total = k.size(2)
        keys, queries = torch.arange(total), torch.arange(total - n, total)
        bias = self.slopes[:, None, None] * (keys - queries[:, None])
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1)) + bias
        scores = scores + torch.full((n, total), -math.inf).triu(total - n + 1)
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d)
        return self.out(y), (k, v)


def build():
    torch.manual_seed(0)
    return Attention(32, 4).eval()
