"""Three-axis rotary with blocked sections (time, height, width)."""

import torch

SECTION = [16, 24, 24]


def angles(position_ids):
    freqs = 1e6 ** (-torch.arange(0, 128, 2, dtype=torch.float64) / 128)
    t, h, w = position_ids.double()
    parts = []
    for axis, block in zip((t, h, w), freqs.split(SECTION)):
        parts.append(axis[:, None] * block)
    return torch.cat(parts, -1).float()


def build():
    return angles


STYLE = "mrope_fn"
SPEC = {"encoding": "mrope", "head_dim": 128, "base": 1000000.0, "section": [16, 24, 24]}
EXPECT = "pass"
