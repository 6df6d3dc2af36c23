"""Rotary function that computes in float32 and saves memory by writing into its working copy."""

import torch


def rope(x, positions):
    freqs = torch.pow(10000.0, torch.arange(0, 24, 2, dtype=torch.float32).div(24).neg())
    ang = positions.float().unsqueeze(-1) * freqs
    cos, sin = ang.cos(), ang.sin()
    work = x.detach().float().clone() if not x.requires_grad else x.float().clone()
    even = work[..., ::2].clone()
    odd = work[..., 1::2].clone()
    work[..., ::2] = even * cos - odd * sin
    work[..., 1::2] = odd * cos + even * sin
    return work.to(x.dtype)


def build():
    return rope


STYLE = "rope_fn"
SPEC = {"encoding": "rope", "head_dim": 24, "base": 10000.0, "layout": "interleaved"}
EXPECT = "pass"
