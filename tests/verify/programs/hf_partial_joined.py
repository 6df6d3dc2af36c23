"""Partial rotation by tables padded with ones and zeros to the whole head, partners inside the part."""

import torch


class Padded(torch.nn.Module):
    def forward(self, x, position_ids):
        f = 10000.0 ** (-torch.arange(16, device=position_ids.device) / 16.0)
        f = torch.nn.functional.pad(f, (0, 24))
        a = (position_ids.float()[..., None] * f).repeat_interleave(2, -1)
        return a.cos().to(x.dtype), a.sin().to(x.dtype)


def swap_pairs(t):
    return t.unflatten(-1, (-1, 2)).flip(-1).mul(torch.tensor([-1.0, 1.0], dtype=t.dtype)).flatten(-2)


def apply(q, k, cos, sin):
    cos, sin = cos.unsqueeze(-3), sin.unsqueeze(-3)
    return q * cos + swap_pairs(q) * sin, k * cos + swap_pairs(k) * sin


def build():
    return Padded(), apply


STYLE = "hf_rope"
SPEC = {"encoding": "rope", "head_dim": 80, "rotary_dim": 32, "base": 10000.0, "layout": "interleaved"}
EXPECT = "pass"
