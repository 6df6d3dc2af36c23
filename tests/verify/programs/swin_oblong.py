"""Index into the relative bias table of an oblong window."""

import torch


def index(h, w):
    ys = torch.arange(h).repeat_interleave(w)
    xs = torch.arange(w).repeat(h)
    dy = ys[:, None] - ys[None] + h - 1
    dx = xs[:, None] - xs[None] + w - 1
    return dy * (2 * w - 1) + dx


def build():
    return index


STYLE = "relative_index_fn"
SPEC = {"encoding": "swin_bias", "window": [5, 7]}
EXPECT = "pass"
