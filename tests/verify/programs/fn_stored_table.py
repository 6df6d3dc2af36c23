"""Rotary function with a stored table of 4096 rows, extended where a call goes beyond."""

import torch

ROWS = 4096


def make_table(rows):
    freqs = 10000.0 ** (-torch.arange(0, 64, 2, dtype=torch.float64) / 64)
    angles = torch.arange(rows, dtype=torch.float64)[:, None] * freqs
    return angles.cos().float(), angles.sin().float()


COS, SIN = make_table(ROWS)


def rope(x, positions):
    cos, sin = COS, SIN
    if int(positions.max()) >= ROWS:
        cos, sin = make_table(int(positions.max()) + 1)
    c, s = cos[positions].to(x.dtype), sin[positions].to(x.dtype)
    x1, x2 = x.chunk(2, -1)
    return torch.cat((x1 * c - x2 * s, x2 * c + x1 * s), -1)


def build():
    return rope


STYLE = "rope_fn"
SPEC = {"encoding": "rope", "head_dim": 64, "base": 10000.0, "layout": "half"}
EXPECT = "pass"
