"""Correct twin of cached_alibi_bias_dropped."""

import math

import torch
from torch import nn

STYLE = "cached_model"
SPEC = {
    "kind": "decode_equivalence",
    "encoding": "alibi",
    "dim": 64,
    "heads": 8,
    "head_dim": 8,
    "layers": 1,
    "causal": True,
}
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
        past = 0
        if cache is not None:
            past = cache["k"].size(2)
            k, v = torch.cat([cache["k"], k], dim=2), torch.cat([cache["v"], v], dim=2)
        distance = torch.arange(past, past + n).unsqueeze(1) - torch.arange(past + n)
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(d / self.heads)
        scores = scores - self.slopes.view(-1, 1, 1) * distance
        weights = scores.masked_fill(distance < 0, -math.inf).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2)), {"k": k, "v": v}


def build():
    torch.manual_seed(0)
    return Attention(64, 8).eval()
