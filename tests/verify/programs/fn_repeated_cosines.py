"""Angles repeated as [t0, t0, t1, t1, ..] on a vector that is rotated in neighbouring pairs."""

import torch

STYLE = "rope_fn"
SPEC = {"encoding": "rope", "head_dim": 32, "base": 10000.0, "layout": "interleaved"}
EXPECT = "pass"


def rope(x, positions):
    dim = x.size(-1)
    omega = torch.arange(dim // 2, dtype=torch.float64) / (dim / 2.0)
    omega = 1.0 / 10000**omega
    freq = torch.einsum("n,f->nf", positions.to(omega), omega)
    emb_sin = freq.sin().repeat_interleave(2, dim=-1)
    emb_cos = freq.cos().repeat_interleave(2, dim=-1)
    pairs = x.unflatten(-1, (-1, 2))
    first, second = pairs.unbind(dim=-1)
    turned = torch.stack((-second, first), dim=-1).flatten(-2)
    return (x * emb_cos + turned * emb_sin).to(x.dtype)


def build():
    return rope
