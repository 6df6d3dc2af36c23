"""A picture's table by broadcasting, in double precision, on a grid made with ij indexing.

Seen in: https://github.com/facebookresearch/mae/issues/18
"""

import torch

STYLE = "rope2d_table_fn"
SPEC = {"encoding": "rope2d", "head_dim": 32, "base": 123456.0}
EXPECT = "pass"


def table(h, w):
    rate = 123456.0 ** (-torch.arange(8, dtype=torch.float64) / 8)
    down, across = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
    return torch.einsum("ap,f->paf", torch.stack((across.ravel(), down.ravel())).double(), rate).flatten(1)


def build():
    return table
