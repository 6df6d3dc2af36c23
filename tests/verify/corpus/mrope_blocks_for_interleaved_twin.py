"""Qwen3-VL turned with interleaved axes T H W T H W .. T.

The correct twin of mrope_blocks_for_interleaved.py.
"""

import torch
from torch import nn

STYLE = "mrope_fn"
SPEC = {"encoding": "mrope", "head_dim": 128, "base": 5000000.0, "section": [24, 20, 20], "interleaved": True}
EXPECT = "pass"


class VisionLanguageRope(nn.Module):
    def __init__(self, dim=128, base=5000000.0, section=(24, 20, 20), interleaved=True):
        super().__init__()
        self.register_buffer("inv_freq", base ** (-torch.arange(0, dim, 2).float() / dim), persistent=False)
        self.section, self.interleaved = section, interleaved

    def forward(self, position_ids):
        freqs = position_ids[..., None].float() * self.inv_freq
        out = freqs[0].clone()
        if self.interleaved:
            for axis in (1, 2):
                lanes = slice(axis, 3 * self.section[axis], 3)
                out[:, lanes] = freqs[axis, :, lanes]
        else:
            t, h, _ = self.section
            out[:, t : t + h] = freqs[1, :, t : t + h]
            out[:, t + h :] = freqs[2, :, t + h :]
        return out


def build():
    return VisionLanguageRope()
