"""The past half is made, the future half is its mirror with negated sines; cut from a larger table."""

import torch


class Mirror:
    def __init__(self):
        self.size = 0

    def grow(self, n):
        f = 10000.0 ** (-torch.arange(0, 36, 2, dtype=torch.float64) / 36)
        a = torch.arange(n).double()[:, None] * f
        past = torch.stack((a.sin(), a.cos()), -1).reshape(n, 36)
        sign = torch.tensor([-1.0, 1.0], dtype=torch.float64).repeat(18)
        self.full = torch.cat((past.flip(0), past[1:] * sign)).float()
        self.size = n

    def __call__(self, n):
        if n > self.size:
            self.grow(2 * n + 3)
        return self.full[self.size - n : self.size + n - 1]


def build():
    return Mirror()


STYLE = "relative_table_fn"
SPEC = {"encoding": "relative_sinusoid", "dim": 36, "base": 10000.0, "layout": "interleaved"}
EXPECT = "pass"
