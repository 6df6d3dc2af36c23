"""With one token every row of the batch is turned.

The correct twin of rope_one_token_first_row.py.
"""

import torch

STYLE = "rope_offset_fn"
SPEC = {"encoding": "rope", "head_dim": 16, "base": 10000.0, "layout": "interleaved"}
EXPECT = "pass"


def turn(x, angle):
    z = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2).contiguous())
    return torch.view_as_real(z * torch.polar(torch.ones_like(angle), angle)).flatten(-2).to(x.dtype)


def rope(x, offset=0):
    dim, n = x.shape[-1], x.shape[-2]
    inv_freq = 10000.0 ** (-torch.arange(0, dim, 2).float() / dim)
    if n == 1:
        out = torch.zeros_like(x)
        rows = slice(None)
        out[rows] = turn(x[rows], offset * inv_freq)
        return out
    return turn(x, (torch.arange(n) + offset)[:, None] * inv_freq)


def build():
    return rope
