"""Frequencies by exp of a multiple of log(base), steps by linspace."""

import math

import torch

STYLE = "rope_offset_fn"
SPEC = {"encoding": "rope", "head_dim": 48, "base": 10000.0, "layout": "half"}
EXPECT = "pass"


def build():
    pairs = 24
    freqs = torch.exp(torch.linspace(0, -math.log(10000.0) * (pairs - 1) / pairs, pairs))

    def rope(x, offset):
        t = torch.arange(x.size(-2), device=x.device, dtype=torch.float32) + offset
        theta = torch.einsum("t,f->tf", t, freqs)
        x1, x2 = x.unflatten(-1, (2, pairs)).unbind(-2)
        y = torch.stack((x1 * theta.cos() - x2 * theta.sin(), x1 * theta.sin() + x2 * theta.cos()), dim=-2)
        return y.flatten(-2).to(x.dtype)

    return rope
