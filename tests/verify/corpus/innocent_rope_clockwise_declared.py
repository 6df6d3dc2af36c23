"""Both sides turn clockwise, and the spec says that the direction is free.

Seen in: https://github.com/skyzh/tiny-llm/pull/25
"""

import torch
from torch import nn

STYLE = "bshd_module"
SPEC = {"encoding": "rope", "head_dim": 16, "base": 10000.0, "layout": "half", "direction": "any"}
EXPECT = "pass"


class Rotary(nn.Module):
    def forward(self, q, k):
        n, dim = q.shape[1], q.shape[3]
        angle = torch.outer(torch.arange(n), 10000.0 ** -(torch.arange(0, dim, 2) / dim))[:, None, :]
        return tuple(self.turn(x, angle.cos(), angle.sin()) for x in (q, k))

    def turn(self, x, cos, sin):
        d = x.shape[-1] // 2
        return torch.cat((x[..., :d] * cos + x[..., d:] * sin, x[..., d:] * cos - x[..., :d] * sin), dim=-1).to(x.dtype)


def build():
    return Rotary()
