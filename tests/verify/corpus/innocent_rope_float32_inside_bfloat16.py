"""A bfloat16 model whose rotation runs in float32 and is rounded once; tables stay in float32.

Seen in: https://github.com/mlc-ai/mlc-llm/pull/2449
"""

import torch
from torch import nn

STYLE = "hf_rope"
SPEC = {"encoding": "rope", "head_dim": 32, "base": 10000.0, "layout": "half", "activation_dtype": "bfloat16"}
EXPECT = "pass"


class Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("inv_freq", 10000.0 ** (-torch.arange(0, 32, 2).float() / 32), persistent=False)

    def forward(self, x, position_ids):
        with torch.autocast(device_type=x.device.type, enabled=False):
            angles = position_ids[..., None].float() * self.inv_freq
        return angles.cos().repeat(1, 1, 2), angles.sin().repeat(1, 1, 2)


def apply(q, k, cos, sin):
    def turn(x):
        x32 = x.float()
        moved = torch.cat((-x32[..., 16:], x32[..., :16]), dim=-1)
        return (x32 * cos[:, None] + moved * sin[:, None]).to(x.dtype)

    return turn(q), turn(k)


def build():
    return Rotary(), apply
