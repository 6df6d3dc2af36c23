"""The table holds the absolute positions 0, 1, 2.. where signed distances belong.

Report: https://github.com/wenet-e2e/wenet/issues/1611
"""

import torch

STYLE = "relative_table_fn"
SPEC = {"encoding": "relative_sinusoid", "dim": 32, "base": 10000.0, "layout": "interleaved"}
EXPECT = "relative_sinusoid.absolute_used"


class RelativePositions:
    def __init__(self, dim):
        self.rate = 10000.0 ** (-torch.arange(0, dim, 2).double() / dim)

    def __call__(self, n):
        distance = torch.arange(2 * n - 1)
        angle = distance[:, None] * self.rate
        return torch.stack([angle.sin(), angle.cos()], dim=-1).reshape(2 * n - 1, -1).float()


def build():
    return RelativePositions(32)
