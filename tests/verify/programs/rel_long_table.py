"""A view into one long table that was made once; keyword-only width."""

import torch

STYLE = "relative_table_fn"
SPEC = {"encoding": "relative_sinusoid", "dim": 20, "base": 10000.0, "layout": "half"}
EXPECT = "pass"


class Relative:
    def __init__(self, *, dim, reach):
        self.reach = reach
        distance = torch.linspace(reach, -reach, 2 * reach + 1)
        phase = distance.outer(torch.pow(10000.0, -torch.arange(dim // 2) * 2.0 / dim))
        self.long = torch.cat([phase.sin(), phase.cos()], dim=-1)

    def table(self, n):
        return self.long.narrow(0, self.reach - (n - 1), 2 * n - 1)


def build():
    return Relative(dim=20, reach=2000).table
