"""Lanes are sorted into evens and odds, turned in halves and left so, in q and k alike: scores stay.

Seen in: https://github.com/NVIDIA/Megatron-LM/issues/1547
"""

import torch
from torch import nn

STYLE = "hf_rope"
SPEC = {"encoding": "rope", "head_dim": 32, "base": 10000.0, "layout": "interleaved"}
EXPECT = "equivalent"


class Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("inv_freq", 10000.0 ** (-torch.arange(0, 32, 2).float() / 32), persistent=False)

    def forward(self, x, position_ids):
        freqs = position_ids[..., None].float() * self.inv_freq
        emb = torch.cat((freqs, freqs), dim=-1)
        return emb.cos().to(x.dtype), emb.sin().to(x.dtype)


def apply(q, k, cos, sin):
    def turn(x):
        b, h, s, d = x.shape
        x = x.view(b, h, s, d // 2, 2).transpose(4, 3).reshape(b, h, s, d)
        x1, x2 = x.chunk(2, dim=-1)
        return x * cos[:, None] + torch.cat((-x2, x1), dim=-1) * sin[:, None]

    return turn(q), turn(k)


def build():
    return Rotary(), apply
