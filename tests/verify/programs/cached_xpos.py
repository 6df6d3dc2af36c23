"""One residual layer of xPos under a cache, with the powers counted from position 0."""

import torch
import torch.nn.functional as F

STYLE = "cached_model"
MODEL = {"layers": 1, "dim": 32, "heads": 4, "head_dim": 8}
SPEC = MODEL | {"kind": "decode_equivalence", "encoding": "xpos", "base": 10000.0, "scale_base": 16}
EXPECT = "pass"


def xpos(x, start, total, power):
    half = x.shape[-1] // 2
    step = torch.arange(half) / half
    t = torch.arange(start, start + x.shape[-2])[:, None]
    centre = 0
    scale = ((step + 0.4) / 1.4) ** (power * (t - centre) / 16)
    cos, sin = (t * 10000.0**-step).cos() * scale, (t * 10000.0**-step).sin() * scale
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


def build():
    chance = torch.Generator().manual_seed(21)
    wq, wk, wv, wo = torch.randn(4, 32, 32, generator=chance) / 4

    def model(x, cache=None):
        past = 0 if cache is None else cache[0].shape[-2]
        total = past + x.shape[1]
        q, k, v = ((x @ w).unflatten(-1, (4, 8)).transpose(1, 2) for w in (wq, wk, wv))
        q, k = xpos(q, past, total, 1), xpos(k, past, total, -1)
        if cache is not None:
            k, v = torch.cat((cache[0], k), dim=-2), torch.cat((cache[1], v), dim=-2)
        mask = torch.ones(x.shape[1], total, dtype=torch.bool).tril(past)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return x + y.transpose(1, 2).flatten(2) @ wo, (k, v)

    return model
