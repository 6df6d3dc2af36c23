"""ESPnet's shift for both sides, and a gather in place of the view."""

import torch

STYLE = "shift_fn"
SPEC = {"causal": False}
EXPECT = "pass"


def shift(x):
    m, n = x.size(2), x.size(3) // 2 + 1
    columns = torch.arange(n)[None] + (m - 1 - torch.arange(m))[:, None]
    return torch.gather(x, 3, columns.expand(x.size(0), x.size(1), m, n))


def build():
    return shift
