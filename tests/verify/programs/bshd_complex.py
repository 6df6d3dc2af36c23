"""A path for (batch, seq, heads, dim) that takes axis 1 for the sequence."""

import torch
from torch import nn

STYLE = "bshd_module"
SPEC = {"encoding": "rope", "head_dim": 16, "base": 10000.0, "layout": "interleaved"}
EXPECT = "pass"


SEQ_AXIS = 1


class FusedRope(nn.Module):
    def forward(self, q, k):
        return self.one(q), self.one(k)

    def one(self, x):
        moved = x.movedim(SEQ_AXIS, -2)
        n, dim = moved.shape[-2:]
        rate = torch.pow(10000.0, -torch.arange(0, dim, 2) / dim)
        phase = torch.polar(torch.ones(n, dim // 2), torch.arange(n).unsqueeze(1) * rate)
        z = torch.view_as_complex(moved.float().unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(z * phase).flatten(-2).movedim(-2, SEQ_AXIS).to(x.dtype)


def build():
    return FusedRope()
