"""Angle addition: the rotation of the offset first, then that of the place in the block; in place on an own copy."""

import torch

F = 7000.0 ** (-torch.arange(0, 80, 2, dtype=torch.float64) / 80)


def rope(x, offset):
    start = torch.exp(1j * float(offset) * F)
    inside = torch.exp(1j * torch.arange(x.shape[-2]).double()[:, None] * F)
    work = torch.complex(x[..., 0::2].double(), x[..., 1::2].double())
    work = work * start
    work.mul_(inside) if not work.requires_grad else None
    if work.requires_grad:
        work = work * inside
    return torch.view_as_real(work).flatten(-2).to(x.dtype)


def build():
    return rope


STYLE = "rope_offset_fn"
SPEC = {"encoding": "rope", "head_dim": 80, "base": 7000.0, "layout": "interleaved"}
EXPECT = "pass"
