"""Correct twin of swin_index_out_of_table."""

import torch

STYLE = "relative_index_fn"
SPEC = {"encoding": "swin_bias", "window": (4, 5)}
EXPECT = "pass"


def build():
    def index(h, w):
        out = torch.empty(h * w, h * w, dtype=torch.int64)
        for a in range(h * w):
            for b in range(h * w):
                dy = a // w - b // w + h - 1
                dx = a % w - b % w + w - 1
                out[a, b] = dy * (2 * w - 1) + dx
        return out

    return index
