"""xPos in which queries get their scale and keys none: a score then fades with the query's own position.

Report: https://github.com/lucidrains/rotary-embedding-torch/issues/27
"""

import torch

STYLE = "xpos_fn"
SPEC = {"encoding": "xpos", "head_dim": 16, "base": 10000.0, "scale_base": 64, "gamma": 0.4, "layout": "half"}
EXPECT = "xpos.scale.key_missing"


def tables(n, dim):
    step = torch.arange(dim // 2) / (dim // 2)
    t = torch.arange(n).float()
    angle = torch.outer(t, 10000.0**-step)
    scale = ((step + 0.4) / 1.4) ** ((t - n // 2) / 64)[:, None]
    return angle, scale


def turn(x, angle, scale):
    cos, sin = angle.cos() * scale, angle.sin() * scale
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).to(x.dtype)


def xpos(q, k):
    angle, scale = tables(q.shape[-2], q.shape[-1])
    return turn(q, angle, scale), turn(k, angle, torch.ones_like(scale))


def build():
    return xpos
