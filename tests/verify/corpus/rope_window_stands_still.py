"""Several tokens decoded at once all have the position of the first.

Report: https://github.com/jundot/omlx/pull/2363
"""

import torch

STYLE = "rope_offset_fn"
SPEC = {"encoding": "rope", "head_dim": 16, "base": 10000.0, "layout": "half"}
EXPECT = "rope.window.positions_constant"


def rope(x, offset=0):
    n, half = x.shape[-2], x.shape[-1] // 2
    start = torch.full((n,), float(offset))
    positions = start if offset else torch.arange(n).float()
    angle = torch.einsum("s,f->sf", positions, 10000.0 ** (-torch.arange(half).float() / half))
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def build():
    return rope
