"""Both sides turn clockwise: every score is as it would be if all angles were negated on both.

Seen in: https://github.com/karpathy/nanochat/pull/489
"""

import torch

STYLE = "rope_fn"
SPEC = {"encoding": "rope", "head_dim": 16, "base": 10000.0, "layout": "half"}
EXPECT = "equivalent"


def rope(x, positions):
    angle = positions.float()[:, None] * 10000.0 ** (-torch.arange(0, 16, 2).float() / 16)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((x1 * cos + x2 * sin, x2 * cos - x1 * sin), dim=-1)


def build():
    return rope
