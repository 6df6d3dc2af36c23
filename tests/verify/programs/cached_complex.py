"""Two blocks that cut a complex table at the cache's length, for (batch, seq, heads, dim)."""

import math

import torch
from torch import nn

STYLE = "cached_model"
MODEL = {"layers": 2, "dim": 32, "heads": 4, "head_dim": 8}
SPEC = MODEL | {"kind": "decode_equivalence", "encoding": "rope", "base": 10000.0}
EXPECT = "pass"


TABLE = torch.polar(torch.ones(512, 4), torch.arange(512)[:, None] * 10000.0 ** (-torch.arange(4) / 4))


def turn(x, freqs_cis):
    z = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(z * freqs_cis[:, None]).flatten(-2)


class Block(nn.Module):
    def __init__(self, chance):
        super().__init__()
        self.w = nn.ParameterList([torch.randn(32, 32, generator=chance) / 3 for _ in range(4)])

    def forward(self, x, freqs_cis, cache):
        q, k, v = ((x @ w).unflatten(-1, (4, 8)) for w in self.w[:3])
        q, k = turn(q, freqs_cis), turn(k, freqs_cis)
        if cache is not None:
            k, v = torch.cat((cache[0], k), dim=1), torch.cat((cache[1], v), dim=1)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(8)
        ahead = torch.arange(k.shape[1]) > torch.arange(k.shape[1] - q.shape[1], k.shape[1])[:, None]
        weights = scores.masked_fill(ahead, float("-inf")).softmax(-1)
        return torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(2) @ self.w[3], (k, v)


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        chance = torch.Generator().manual_seed(11)
        self.blocks = nn.ModuleList([Block(chance), Block(chance)])

    def forward(self, tokens, cache=None):
        past, seqlen = (0 if cache is None else cache[0][0].shape[1]), tokens.shape[1]
        freqs_cis = TABLE[past : past + seqlen][:seqlen]
        h, kept = tokens, []
        for i, block in enumerate(self.blocks):
            y, kv = block(h / h.norm(dim=-1, keepdim=True) * 5, freqs_cis, None if cache is None else cache[i])
            h = h + y
            kept.append(kv)
        return h, kept


def build():
    return Transformer()
