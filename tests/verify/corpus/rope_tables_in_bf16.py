"""Cosines and sines kept in bfloat16 while the model runs in float32.

Report: https://github.com/KellerJordan/modded-nanogpt/issues/39
"""

import torch
from torch import nn

STYLE = "bshd_module"
SPEC = {"encoding": "rope", "head_dim": 32, "base": 10000.0, "layout": "half", "activation_dtype": "float32"}
EXPECT = "rope.precision.table_bf16"


class Rotary(nn.Module):
    def __init__(self, dim, base=10000):
        super().__init__()
        self.inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
        self.seq_len_cached = None

    def forward(self, q, k):
        n = q.shape[1]
        if n != self.seq_len_cached:
            self.seq_len_cached = n
            freqs = torch.outer(torch.arange(n).type_as(self.inv_freq), self.inv_freq)
            self.cos_cached = freqs.cos().to(torch.bfloat16)
            self.sin_cached = freqs.sin().to(torch.bfloat16)
        cos, sin = self.cos_cached[None, :, None, :], self.sin_cached[None, :, None, :]
        return self.turn(q, cos, sin), self.turn(k, cos, sin)

    def turn(self, x, cos, sin):
        d = x.shape[3] // 2
        y1 = x[..., :d] * cos - x[..., d:] * sin
        y2 = x[..., :d] * sin + x[..., d:] * cos
        return torch.cat([y1, y2], 3)


def build():
    return Rotary(32)
