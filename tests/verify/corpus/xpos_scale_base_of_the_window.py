"""xPos with scale_base 64, half of a window, where 512 is asked for: keys grow eight times as fast.

Report: https://github.com/lucidrains/local-attention/issues/14
"""

import torch
from torch import nn

STYLE = "xpos_fn"
SPEC = {"encoding": "xpos", "head_dim": 32, "base": 10000.0, "scale_base": 512, "gamma": 0.4, "layout": "half"}
EXPECT = "xpos.scale_base.too_small"


class XPos(nn.Module):
    def __init__(self, dim, window, scale_base=None):
        super().__init__()
        self.scale_base = scale_base or window // 2
        self.register_buffer("inv_freq", 10000.0 ** (-torch.arange(0, dim, 2).float() / dim))
        self.register_buffer("zeta", (torch.arange(0, dim, 2) + 0.4 * dim) / (1.4 * dim))

    def forward(self, q, k):
        n = q.shape[-2]
        t = torch.arange(n).type_as(self.inv_freq)
        freqs = torch.einsum("i,j->ij", t, self.inv_freq)
        freqs = torch.cat((freqs, freqs), dim=-1)
        scale = self.zeta ** ((t - n // 2) / self.scale_base)[:, None]
        scale = torch.cat((scale, scale), dim=-1)
        return self.turn(q, freqs, scale), self.turn(k, freqs, scale**-1)

    def turn(self, x, freqs, scale):
        a, b = x.chunk(2, dim=-1)
        return (x * freqs.cos() + torch.cat((-b, a), dim=-1) * freqs.sin()) * scale


def build():
    return XPos(32, window=128)
