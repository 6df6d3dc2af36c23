"""Cosines and sines repeated lane by lane on lanes that are turned in neighbouring pairs.

The correct twin of rope_cosines_repeated_as_a_block.py.
"""

import torch

STYLE = "lucidrains"
SPEC = {"encoding": "rope", "head_dim": 24, "base": 10000.0, "layout": "interleaved"}
EXPECT = "pass"


class RoFormerRotation:
    def __init__(self, dim):
        self.dim = dim

    def sinusoid(self, n, offset):
        position = torch.arange(offset, offset + n).float()[:, None]
        indices = 10000.0 ** (-2 * torch.arange(self.dim // 2).float() / self.dim)
        return torch.cat([torch.sin(position * indices), torch.cos(position * indices)], dim=-1)

    def rotate_queries_or_keys(self, x, offset=0):
        sin, cos = self.sinusoid(x.shape[-2], offset).chunk(2, dim=-1)
        cos_pos = cos.repeat_interleave(2, dim=-1)
        sin_pos = sin.repeat_interleave(2, dim=-1)
        x2 = torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).reshape(x.shape)
        return (x * cos_pos + x2 * sin_pos).to(x.dtype)


def build():
    return RoFormerRotation(24)
