"""Qwen2-VL turned with interleaved axes T H W T H W ..

Report: https://github.com/Blaizzy/mlx-vlm/pull/576
"""

import torch

STYLE = "mrope_fn"
SPEC = {"encoding": "mrope", "head_dim": 128, "base": 1000000.0, "section": [16, 24, 24], "interleaved": False}
EXPECT = "mrope.interleaved_where_blocked"


SECTION = [16, 24, 24]


def axes(interleaved):
    if interleaved:
        return [i % 3 if i < 3 * SECTION[i % 3] else 0 for i in range(sum(SECTION))]
    return [axis for axis, width in enumerate(SECTION) for _ in range(width)]


def angles(position_ids):
    inv_freq = 1.0 / (1000000.0 ** (torch.arange(0, 128, 2, dtype=torch.float64) / 128))
    chosen = position_ids.double()[axes(interleaved=True)]
    return (chosen * inv_freq[:, None]).transpose(0, 1).float()


def build():
    return angles
