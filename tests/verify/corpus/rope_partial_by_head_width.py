"""A partial rotation with the exponents and the partners of the whole head.

Report: https://github.com/pie-project/pie/issues/602
"""

import torch

STYLE = "rope_fn"
SPEC = {"encoding": "rope", "head_dim": 64, "rotary_dim": 16, "base": 10000.0, "layout": "half"}
EXPECT = "rope.partial.head_dim_used"


HEAD_DIM = 64
ROTARY_DIM = 16


def rope(x, positions):
    pair = torch.arange(ROTARY_DIM // 2)
    freq = 10000.0 ** (-2.0 * pair / HEAD_DIM)
    partner = pair + HEAD_DIM // 2
    angle = positions.float()[:, None] * freq
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., pair], x[..., partner]
    out = x.clone()
    out[..., pair] = a * cos - b * sin
    out[..., partner] = a * sin + b * cos
    return out


def build():
    return rope
