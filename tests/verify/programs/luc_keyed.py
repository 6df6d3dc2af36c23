"""Rotary object with a dictionary of frequency tables."""

import torch
from torch import nn


class RotaryEmbedding(nn.Module):
    def __init__(self, dim, theta=10000.0):
        super().__init__()
        self.freqs = nn.Parameter(theta ** (-torch.arange(0, dim, 2).float() / dim), requires_grad=False)
        self.cache = {}

    def table(self, n, offset, device):
        key = f"freqs:{n}:{offset}"
        if key not in self.cache:
            t = torch.arange(n, device=device, dtype=self.freqs.dtype) + offset
            self.cache[key] = torch.einsum("n,f->nf", t, self.freqs).repeat_interleave(2, -1)
        return self.cache[key]

    def rotate_queries_or_keys(self, t, seq_dim=None, offset=0):
        f = self.table(t.shape[-2], offset, t.device)
        r = f.shape[-1]
        turned, rest = t[..., :r], t[..., r:]
        a, b = turned.unflatten(-1, (-1, 2)).unbind(-1)
        half = torch.stack((-b, a), -1).flatten(-2)
        return torch.cat((turned * f.cos().to(t.dtype) + half * f.sin().to(t.dtype), rest), -1)


def build():
    return RotaryEmbedding(32)


STYLE = "lucidrains"
SPEC = {"encoding": "rope", "head_dim": 64, "rotary_dim": 32, "base": 10000.0, "layout": "interleaved"}
EXPECT = "pass"
