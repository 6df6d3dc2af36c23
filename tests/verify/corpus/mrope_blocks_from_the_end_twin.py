"""Blocked M-RoPE whose blocks read the axes in the order time, height, width.

The correct twin of mrope_blocks_from_the_end.py.
"""

import torch

STYLE = "mrope_fn"
SPEC = {"encoding": "mrope", "head_dim": 128, "base": 1000000.0, "section": [16, 24, 24], "interleaved": False}
EXPECT = "pass"


def angles(position_ids):
    freqs = position_ids[:, :, None].float() * 1000000.0 ** (-torch.arange(0, 128, 2).float() / 128)
    blocks = freqs.split([16, 24, 24], dim=-1)
    return torch.cat([block[i] for i, block in enumerate(blocks)], dim=-1)


def build():
    return angles
