"""Two ramps added to their own transpose and flipped: the usual numbers without a mesh; int32."""

import torch

STYLE = "relative_index_fn"
SPEC = {"encoding": "swin_bias", "window": (5, 3)}
EXPECT = "pass"


def index(h, w):
    ramp = (torch.arange(h) * (2 * w - 1))[:, None] + torch.arange(w)
    number = ramp.reshape(1, -1)
    return (number + number.T).flip(1).int()


def build():
    return index
