"""Angles rounded to bfloat16 before their cosine is taken.

Report: https://github.com/EleutherAI/gpt-neox/issues/1003
"""

import torch

STYLE = "rope_fn"
SPEC = {"encoding": "rope", "head_dim": 32, "base": 10000.0, "layout": "half", "activation_dtype": "bfloat16"}
EXPECT = "rope.precision.product_bf16"


INV_FREQ = 10000.0 ** (-torch.arange(0, 32, 2, dtype=torch.float32) / 32)


def rope(x, positions):
    angle = positions.float()[:, None] * INV_FREQ
    angle = angle.to(x.dtype).float()
    cos, sin = angle.cos(), angle.sin()
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


def build():
    return rope
