"""YaRN written on periods: a weighted harmonic mean of the fast and the slow period.

Seen in: https://github.com/youssofal/MTPLX/pull/394
"""

import math

import torch
from torch import nn

STYLE = "hf_rope"
SPEC = {
    "encoding": "rope",
    "head_dim": 64,
    "layout": "half",
    "scaling": "yarn",
    "config": {
        "model_type": "llama",
        "hidden_size": 256,
        "num_attention_heads": 4,
        "head_dim": 64,
        "rope_theta": 1000000.0,
        "max_position_embeddings": 131072,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    },
}
EXPECT = "pass"


class YarnPeriods(nn.Module):
    def __init__(self, dim=64, base=1000000.0, factor=4.0, trained=32768):
        super().__init__()

        def pair(turns):
            return dim * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(base))

        low, high = max(math.floor(pair(32)), 0), min(math.ceil(pair(1)), dim - 1)
        fast = base ** (torch.arange(0, dim, 2).float() / dim)
        slow = factor * fast
        mask = 1.0 - torch.clamp((torch.arange(dim // 2) - low) / (high - low), 0, 1)
        self.register_buffer("period", (slow * fast) / (slow * mask + fast * (1 - mask)))
        self.mscale = 0.1 * math.log(factor) + 1.0

    def forward(self, x, position_ids):
        angle = position_ids[..., None].float() / self.period
        return self.mscale * angle.cos(), self.mscale * angle.sin()


def apply(q, k, cos, sin):
    cos, sin = cos[:, None], sin[:, None]
    out = []
    for x in (q, k):
        a, b = x.float().chunk(2, dim=-1)
        out.append(torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).to(x.dtype))
    return tuple(out)


def build():
    return YarnPeriods(), apply
