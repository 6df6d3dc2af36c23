"""Angles tiled as [t0 .. tn, t0 .. tn] on a vector that is turned in neighbouring pairs.

Report: https://github.com/facebookresearch/vjepa2/pull/15
"""

import torch

STYLE = "rope_fn"
SPEC = {"encoding": "rope", "head_dim": 32, "base": 10000.0, "layout": "interleaved"}
EXPECT = "rope.layout.mixed"


def rope(x, positions):
    dim = x.size(-1)
    omega = torch.arange(dim // 2, dtype=torch.float64) / (dim / 2.0)
    omega = 1.0 / 10000**omega
    freq = torch.einsum("n,f->nf", positions.to(omega), omega)
    emb_sin = freq.sin().repeat(1, 2)
    emb_cos = freq.cos().repeat(1, 2)
    pairs = x.unflatten(-1, (-1, 2))
    first, second = pairs.unbind(dim=-1)
    turned = torch.stack((-second, first), dim=-1).flatten(-2)
    return (x * emb_cos + turned * emb_sin).to(x.dtype)


def build():
    return rope
