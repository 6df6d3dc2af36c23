"""Interleaved M-RoPE whose height and width run on to the last pair, where their sections have ended.

Report: https://github.com/XPU-Forces/mojo_opset/pull/276
"""

import torch

STYLE = "mrope_fn"
SPEC = {"encoding": "mrope", "head_dim": 64, "base": 10000.0, "section": [16, 8, 8], "interleaved": True}
EXPECT = "mrope.interleaving_unbounded"


def angles(position_ids):
    t, h, w = position_ids.float().unsqueeze(-1) * 10000.0 ** (-torch.arange(0, 64, 2) / 64)
    end = 32
    out = t.clone()
    out[:, 1:end:3] = h[:, 1:end:3]
    out[:, 2:end:3] = w[:, 2:end:3]
    return out


def build():
    return angles
