"""Qwen2-VL turned with blocks T .. T H .. H W .. W.

The correct twin of mrope_interleaved_for_blocks.py.
"""

import torch

STYLE = "mrope_fn"
SPEC = {"encoding": "mrope", "head_dim": 128, "base": 1000000.0, "section": [16, 24, 24], "interleaved": False}
EXPECT = "pass"


SECTION = [16, 24, 24]


def axes(interleaved):
    if interleaved:
        return [i % 3 if i < 3 * SECTION[i % 3] else 0 for i in range(sum(SECTION))]
    return [axis for axis, width in enumerate(SECTION) for _ in range(width)]


def angles(position_ids):
    inv_freq = 1.0 / (1000000.0 ** (torch.arange(0, 128, 2, dtype=torch.float64) / 128))
    chosen = position_ids.double()[axes(interleaved=False)]
    return (chosen * inv_freq[:, None]).transpose(0, 1).float()


def build():
    return angles
