"""A quarter of the lanes rotates, as in GPT-NeoX."""

import torch
from torch import nn

HEAD, PART, BASE = 80, 20, 123456.0


class PartialRope(nn.Module):
    def __init__(self):
        super().__init__()
        exponent = torch.arange(0, PART, 2).float() / PART
        self.register_buffer("inv_freq", torch.pow(BASE, -exponent), persistent=False)

    def forward(self, x, position_ids):
        freqs = position_ids.float()[..., None] @ self.inv_freq[None, None]
        emb = torch.cat((freqs, freqs), dim=-1)
        return emb.cos().to(x.dtype), emb.sin().to(x.dtype)


def apply(q, k, cos, sin):
    cos, sin = cos[:, None], sin[:, None]
    r = cos.shape[-1]

    def one(x):
        turned, kept = x[..., :r], x[..., r:]
        a, b = turned[..., : r // 2], turned[..., r // 2 :]
        return torch.cat((turned * cos + torch.cat((-b, a), -1) * sin, kept), -1)

    return one(q), one(k)


def build():
    return PartialRope(), apply


STYLE = "hf_rope"
SPEC = {"encoding": "rope", "head_dim": 80, "rotary_dim": 20, "base": 123456.0, "layout": "half"}
EXPECT = "pass"
