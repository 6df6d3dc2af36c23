"""Tables made once in float32; the sequence is the third axis from the end, and x is not written to."""

import torch
from torch import nn

STYLE = "bshd_module"
SPEC = {"encoding": "rope", "head_dim": 16, "base": 10000.0, "layout": "half"}
EXPECT = "pass"


class Rotary(nn.Module):
    def __init__(self, dim, max_seq_len=4096):
        super().__init__()
        freq = (1 / 10000.0) ** torch.linspace(0, 1, dim // 2 + 1, dtype=torch.float32)[:-1]
        theta = torch.arange(max_seq_len, dtype=torch.float32)[:, None] * freq
        self.register_buffer("cos", theta.cos(), persistent=False)
        self.register_buffer("sin", theta.sin(), persistent=False)

    def turn(self, x):
        n = x.size(-3)
        cos, sin = self.cos[None, :n, None, :], self.sin[None, :n, None, :]
        x1, x2 = x.float().chunk(2, dim=-1)
        return torch.cat((x1 * cos - x2 * sin, x1 * sin + x2 * cos), dim=-1).type_as(x)

    def forward(self, q, k):
        return self.turn(q), self.turn(k)


def build():
    return Rotary(16)
