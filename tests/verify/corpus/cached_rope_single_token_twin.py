"""Correct twin of cached_rope_single_token."""

import math

import torch
from torch import nn

STYLE = "cached_model"
SPEC = {
    "kind": "decode_equivalence",
    "encoding": "rope",
    "dim": 32,
    "heads": 2,
    "head_dim": 16,
    "layers": 1,
    "causal": True,
    "base": 10000.0,
    "layout": "interleaved",
}
EXPECT = "pass"


class Model(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.width = heads, dim // heads
        for name in ("wq", "wk", "wv", "wo"):
            setattr(self, name, nn.Parameter(torch.randn(dim, dim) / math.sqrt(dim), requires_grad=False))
        self.rate = 10000.0 ** (-torch.arange(0, self.width, 2) / self.width)

    def split(self, x, w):
        return (x @ w).unflatten(-1, (self.heads, self.width)).transpose(1, 2)

    def rotate(self, x, past):
        n = x.size(2)
        place = torch.arange(past, past + n, dtype=torch.float32)
        if n == 1:
            place = torch.tensor([float(past)])
        turn = torch.polar(torch.ones(n, self.width // 2), torch.outer(place, self.rate))
        return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * turn).flatten(-2)

    def forward(self, x, cache):
        past = cache[0].size(2) if cache else 0
        q, k = self.rotate(self.split(x, self.wq), past), self.rotate(self.split(x, self.wk), past)
        v = self.split(x, self.wv)
        if cache:
            k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * self.width**-0.5
        seen = torch.ones(q.size(2), k.size(2), dtype=torch.bool).tril(past)
        weights = torch.where(seen, scores, torch.tensor(-torch.inf)).softmax(-1)
        return (weights @ v).transpose(1, 2).flatten(2) @ self.wo, [k, v]


def build():
    torch.manual_seed(1)
    return Model(32, 2)
