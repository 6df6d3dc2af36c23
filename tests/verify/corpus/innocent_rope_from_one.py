"""Positions are counted from 1, and the spec says that the origin is free."""

import torch

STYLE = "bshd_module"
SPEC = {"encoding": "rope", "head_dim": 16, "base": 10000.0, "layout": "interleaved", "origin": "any"}
EXPECT = "pass"


def build():
    freq = 10000.0 ** (-torch.arange(0, 16, 2).float() / 16)

    def forward(q, k):
        phase = torch.arange(1, q.shape[1] + 1)[:, None, None] * freq
        factor = torch.polar(torch.ones_like(phase), phase)
        pair = [torch.view_as_complex(x.float().unflatten(-1, (8, 2)).contiguous()) * factor for x in (q, k)]
        return tuple(torch.view_as_real(z).flatten(-2).to(q.dtype) for z in pair)

    return forward
