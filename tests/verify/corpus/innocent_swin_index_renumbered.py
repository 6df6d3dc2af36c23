"""Another numbering of the table's rows, one to one with the usual one."""

import torch

STYLE = "relative_index_fn"
SPEC = {"encoding": "swin_bias", "window": (4, 6)}
EXPECT = "equivalent"


def index(h, w):
    place = torch.cartesian_prod(torch.arange(h), torch.arange(w))
    ahead = place[None] - place[:, None]
    return (ahead[..., 1] + w - 1) * (2 * h - 1) + ahead[..., 0] + h - 1


def build():
    return index
