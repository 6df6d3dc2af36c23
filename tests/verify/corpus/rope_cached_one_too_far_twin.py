"""Decoding that begins at L after a prompt of L tokens.

The correct twin of rope_cached_one_too_far.py.
"""

import torch
import torch.nn.functional as F

STYLE = "cached_model"
SPEC = {
    "kind": "decode_equivalence",
    "encoding": "rope",
    "dim": 32,
    "heads": 4,
    "head_dim": 8,
    "layers": 1,
    "base": 10000.0,
}
EXPECT = "pass"


def turn(x, start, base=10000.0):
    half = x.shape[-1] // 2
    angle = torch.arange(start, start + x.shape[-2])[:, None] * base ** (-torch.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()), dim=-1)


def causal(n, total):
    return torch.ones(n, total, dtype=torch.bool).tril(total - n)


HEADS, LAYERS = 4, 1


def weights():
    chance = torch.Generator().manual_seed(3)
    return [[torch.randn(32, 32, generator=chance) / 3 for _ in range(4)] for _ in range(LAYERS)]


def attend(x, w, cache):
    q, k, v = ((x @ m).unflatten(-1, (HEADS, -1)).transpose(1, 2) for m in w[:3])
    past = 0 if cache is None else cache[0].shape[-2]
    start = past
    q, k = turn(q, start), turn(k, start)
    if cache is not None:
        k, v = torch.cat((cache[0], k), dim=-2), torch.cat((cache[1], v), dim=-2)
    keys = k
    y = F.scaled_dot_product_attention(q, keys, v, attn_mask=causal(q.shape[-2], keys.shape[-2]))
    return y.transpose(1, 2).flatten(2) @ w[3], (k, v)


def build():
    layers = weights()

    def model(x, cache=None):
        new = []
        for i, w in enumerate(layers):
            y, kept = attend(F.layer_norm(x, (32,)), w, None if cache is None else cache[i])
            x = x + y
            new.append(kept)
        return x, tuple(new)

    return model
