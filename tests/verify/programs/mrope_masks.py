"""Interleaved M-RoPE by masks of numbers modulo 3, positions and angles in double precision.

Seen in: https://github.com/QwenLM/Qwen3-VL/issues/1800
"""

import torch

STYLE = "mrope_fn"
SPEC = {"encoding": "mrope", "head_dim": 32, "base": 123456.0, "section": [6, 5, 5], "interleaved": True}
EXPECT = "pass"


def build():
    pair = torch.arange(16)
    height = (pair % 3 == 1) & (pair < 15)
    width = (pair % 3 == 2) & (pair < 15)
    rate = torch.exp(-pair.double() * torch.log(torch.tensor(123456.0, dtype=torch.float64)) / 16)

    def angles(position_ids):
        t, h, w = position_ids.double()
        mixed = torch.where(height, h[:, None], torch.where(width, w[:, None], t[:, None]))
        return mixed * rate

    return angles
