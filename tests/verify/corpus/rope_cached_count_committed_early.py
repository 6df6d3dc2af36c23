"""The first layer already adds the new tokens to the count; the upper layers of the same step turn too far.

Report: https://github.com/fla-org/flash-linear-attention/issues/766
"""

import torch
import torch.nn.functional as F
from torch import nn

STYLE = "cached_model"
SPEC = {
    "kind": "decode_equivalence",
    "encoding": "rope",
    "dim": 32,
    "heads": 4,
    "head_dim": 8,
    "layers": 2,
    "base": 10000.0,
}
EXPECT = "rope.kv_cache.count_too_early"


def turn(x, start, base=10000.0):
    half = x.shape[-1] // 2
    angle = torch.arange(start, start + x.shape[-2])[:, None] * base ** (-torch.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()), dim=-1)


def causal(n, total):
    return torch.ones(n, total, dtype=torch.bool).tril(total - n)


class Cache:
    def __init__(self, layers):
        self.seen = 0
        self.kv = [None] * layers

    def update(self, layer, k, v):
        if layer == 0:
            self.seen += k.shape[-2]
        if self.kv[layer] is not None:
            k, v = torch.cat((self.kv[layer][0], k), dim=-2), torch.cat((self.kv[layer][1], v), dim=-2)
        self.kv[layer] = (k, v)
        return k, v


class Attention(nn.Module):
    def __init__(self, layer, dim=32, heads=4):
        super().__init__()
        self.layer, self.heads = layer, heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)

    def forward(self, x, cache):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        past = 0 if cache.kv[self.layer] is None else cache.seen
        k, v = cache.update(self.layer, turn(k, past), v)
        y = F.scaled_dot_product_attention(turn(q, past), k, v, attn_mask=causal(q.shape[-2], k.shape[-2]))
        return x + self.out(y.transpose(1, 2).flatten(2))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Attention(0), Attention(1)])
        chance = torch.Generator().manual_seed(5)
        for weight in self.parameters():
            weight.data = torch.randn(weight.shape, generator=chance) / 4

    def forward(self, x, cache=None):
        cache = Cache(len(self.layers)) if cache is None else cache
        for layer in self.layers:
            x = layer(F.layer_norm(x, x.shape[-1:]), cache)
        return x, cache


def build():
    return Model()
