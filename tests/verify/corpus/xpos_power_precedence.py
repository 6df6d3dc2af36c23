"""xPos whose power is t - (n // 2) / scale_base: only the middle is divided, and keys become infinite.

Report: https://github.com/lucidrains/rotary-embedding-torch/issues/8
"""

import torch

STYLE = "xpos_fn"
SPEC = {"encoding": "xpos", "head_dim": 16, "base": 10000.0, "scale_base": 512, "gamma": 0.4, "layout": "interleaved"}
EXPECT = "xpos.power.precedence"


DIM, SCALE_BASE = 16, 512
FREQS = 10000.0 ** (-torch.arange(0, DIM, 2).float() / DIM)
ZETA = (torch.arange(0, DIM, 2) + 0.4 * DIM) / (1.4 * DIM)


def turned(x, angle):
    pairs = x.unflatten(-1, (-1, 2))
    other = torch.stack((-pairs[..., 1], pairs[..., 0]), dim=-1)
    return pairs * angle.cos()[..., None] + other * angle.sin()[..., None]


def xpos(q, k):
    t = torch.arange(q.shape[-2], dtype=torch.float32)
    angle = t[:, None] * FREQS
    power = t - (len(t) // 2) / SCALE_BASE
    scale = (ZETA ** power[:, None])[..., None]
    return (turned(q, angle) * scale).flatten(-2), (turned(k, angle) / scale).flatten(-2)


def build():
    return xpos
