"""(batch, seq, heads, dim) is turned in the other layout; what comes back is a view that is not contiguous."""

import torch
from torch import nn

STYLE = "bshd_module"
SPEC = {"encoding": "rope", "head_dim": 32, "base": 10000.0, "layout": "half"}
EXPECT = "pass"


class Rotary(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.inv_freq = nn.Buffer(10000.0 ** (-torch.arange(0, dim, 2).float() / dim), persistent=False)

    def forward(self, q, k):
        q, k = q.transpose(1, 2), k.transpose(1, 2)
        angle = torch.arange(q.shape[2]).float()[:, None] * self.inv_freq
        angle = torch.cat((angle, angle), dim=-1)
        q, k = (x * angle.cos() + self.quarter(x) * angle.sin() for x in (q, k))
        return q.transpose(1, 2), k.transpose(1, 2)

    def quarter(self, x):
        return x.roll(x.shape[-1] // 2, dims=-1) * torch.cat(
            (-torch.ones_like(self.inv_freq), torch.ones_like(self.inv_freq))
        )


def build():
    return Rotary(32).eval()
