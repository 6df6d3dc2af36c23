"""Rotated keys in one block that is written in place and belongs to the cache object."""

import torch
from torch import nn

STYLE = "cached_model"
MODEL = {"layers": 2, "dim": 32, "heads": 2, "head_dim": 16}
SPEC = MODEL | {"kind": "decode_equivalence", "encoding": "rope", "causal": True, "base": 10000.0, "layout": "half"}
EXPECT = "pass"


class Static:
    def __init__(self, layers, batch, heads, width, room=256):
        self.length = 0
        self.k = torch.zeros(layers, batch, heads, room, width)
        self.v = torch.zeros_like(self.k)

    def write(self, layer, k, v):
        end = self.length + k.size(2)
        self.k[layer, :, :, self.length : end] = k.detach()
        self.v[layer, :, :, self.length : end] = v.detach()
        return self.k[layer, :, :, :end], self.v[layer, :, :, :end]


class Model(nn.Module):
    def __init__(self, dim, heads, layers):
        super().__init__()
        self.heads, self.width = heads, dim // heads
        self.qkv = nn.ModuleList(nn.Linear(dim, 3 * dim) for _ in range(layers))
        angle = torch.arange(300)[:, None] * 10000.0 ** (-torch.arange(0, self.width, 2) / self.width).repeat(2)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def rotate(self, x, start):
        rows = slice(start, start + x.size(2))
        a, b = x.chunk(2, -1)
        return x * self.cos[rows] + torch.cat([-b, a], -1) * self.sin[rows]

    @torch.inference_mode()
    def forward(self, x, cache=None):
        cache = cache or Static(len(self.qkv), len(x), self.heads, self.width)
        start, n = cache.length, x.size(1)
        for number, layer in enumerate(self.qkv):
            q, k, v = layer(x).view(len(x), n, 3, self.heads, self.width).permute(2, 0, 3, 1, 4)
            k, v = cache.write(number, self.rotate(k, start), v)
            scores = self.rotate(q, start) @ k.mT * self.width**-0.5
            scores = scores + torch.triu(torch.full((n, start + n), float("-inf")), start + 1)
            x = x + (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        cache.length += n
        return x, cache


def build():
    torch.manual_seed(3)
    return Model(32, 2, 2)
