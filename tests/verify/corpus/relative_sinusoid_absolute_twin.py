"""Correct twin of relative_sinusoid_absolute."""

import torch

STYLE = "relative_table_fn"
SPEC = {"encoding": "relative_sinusoid", "dim": 32, "base": 10000.0, "layout": "interleaved"}
EXPECT = "pass"


class RelativePositions:
    def __init__(self, dim):
        self.rate = 10000.0 ** (-torch.arange(0, dim, 2).double() / dim)

    def __call__(self, n):
        distance = torch.arange(n - 1, -n, -1)
        angle = distance[:, None] * self.rate
        return torch.stack([angle.sin(), angle.cos()], dim=-1).reshape(2 * n - 1, -1).float()


def build():
    return RelativePositions(32)
