"""Qwen3-VL turned with blocks T .. T H .. H W .. W.

Report: https://github.com/alibaba/MNN/pull/4133
"""

import torch
from torch import nn

STYLE = "mrope_fn"
SPEC = {"encoding": "mrope", "head_dim": 128, "base": 5000000.0, "section": [24, 20, 20], "interleaved": True}
EXPECT = "mrope.interleaving_ignored"


class VisionLanguageRope(nn.Module):
    def __init__(self, dim=128, base=5000000.0, section=(24, 20, 20), interleaved=False):
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
