"""Three-axis rotary with interleaved sections, as in Qwen3-VL."""

import torch


def angles(position_ids):
    inv = 5e6 ** -(torch.arange(64, dtype=torch.float32) / 64)
    every = position_ids.float()[:, :, None] * inv
    out = every[0].clone()
    for axis, count in ((1, 20), (2, 20)):
        lanes = slice(axis, 3 * count, 3)
        out[:, lanes] = every[axis][:, lanes]
    return out


def build():
    return angles


STYLE = "mrope_fn"
SPEC = {"encoding": "mrope", "head_dim": 128, "base": 5000000.0, "section": [24, 20, 20], "interleaved": True}
EXPECT = "pass"
