"""A cache of angles keyed by the length alone: a second call with another offset gets the first one's angles.

Report: https://github.com/lucidrains/rotary-embedding-torch/issues/11
"""

import torch
from torch import nn

STYLE = "lucidrains"
SPEC = {"encoding": "rope", "head_dim": 16, "base": 10000.0, "layout": "interleaved"}
EXPECT = "rope.offset.ignored_by_cache"


class Rotary(nn.Module):
    def __init__(self, dim, theta=10000.0):
        super().__init__()
        self.freqs = nn.Parameter(theta ** (-torch.arange(0, dim, 2).float() / dim), requires_grad=False)
        self.cache = {}

    def angles(self, n, offset):
        key = f"freqs:{n}"
        if key not in self.cache:
            seq = torch.arange(n).float() + offset
            self.cache[key] = torch.einsum("n,f->nf", seq, self.freqs).repeat_interleave(2, dim=-1)
        return self.cache[key]

    def rotate_queries_or_keys(self, t, offset=0):
        freqs = self.angles(t.shape[-2], offset)
        x1, x2 = t.unflatten(-1, (-1, 2)).unbind(-1)
        other = torch.stack((-x2, x1), dim=-1).flatten(-2)
        return (t * freqs.cos() + other * freqs.sin()).type(t.dtype)


def build():
    return Rotary(16)
