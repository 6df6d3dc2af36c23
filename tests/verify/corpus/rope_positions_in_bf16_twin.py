"""Positions counted in float32 whatever the input is.

The correct twin of rope_positions_in_bf16.py.
"""

import torch
from torch import nn

STYLE = "lucidrains"
SPEC = {"encoding": "rope", "head_dim": 32, "base": 10000.0, "layout": "interleaved", "activation_dtype": "bfloat16"}
EXPECT = "pass"


class RotaryEmbedding(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.register_buffer("freqs", 1.0 / (10000 ** (torch.arange(0, dim, 2).float() / dim)), persistent=False)

    def rotate_queries_or_keys(self, t, offset=0):
        seq = torch.arange(offset, offset + t.shape[-2], dtype=torch.float32)
        freqs = seq.float()[:, None] * self.freqs
        cos, sin = freqs.cos(), freqs.sin()
        even, odd = t[..., 0::2].float(), t[..., 1::2].float()
        out = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1)
        return out.flatten(-2).to(t.dtype)


def build():
    return RotaryEmbedding(32)
