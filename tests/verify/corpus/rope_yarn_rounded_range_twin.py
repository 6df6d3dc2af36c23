"""YaRN with the ends of the ramp as they are, as `truncate: false` says (gpt-oss).

The correct twin of rope_yarn_rounded_range.py.
"""

import math

import torch
from torch import nn

CONFIG = {
    "model_type": "gpt_oss",
    "hidden_size": 256,
    "num_attention_heads": 4,
    "head_dim": 64,
    "rope_theta": 150000.0,
    "max_position_embeddings": 131072,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
    },
}
STYLE = "hf_rope"
SPEC = {"encoding": "rope", "head_dim": 64, "layout": "half", "scaling": "yarn", "config": CONFIG}
EXPECT = "pass"


class YarnRotary(nn.Module):
    def __init__(self, config):
        super().__init__()
        dim, base, s = config["head_dim"], config["rope_theta"], config["rope_scaling"]
        length = s["original_max_position_embeddings"]

        def pair_of(turns):
            return dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))

        low, high = pair_of(s["beta_fast"]), pair_of(s["beta_slow"])
        if s.get("truncate", True):
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, dim - 1)
        ramp = ((torch.arange(dim // 2).float() - low) / (high - low)).clamp(0, 1)
        inv_freq = base ** (-torch.arange(0, dim, 2).float() / dim)
        self.register_buffer("inv_freq", inv_freq / s["factor"] * ramp + inv_freq * (1 - ramp), persistent=False)
        self.gain = 0.1 * math.log(s["factor"]) + 1.0

    def forward(self, x, position_ids):
        angles = position_ids[:, :, None].float() @ self.inv_freq[None, None, :]
        angles = torch.cat((angles, angles), dim=-1)
        return (angles.cos() * self.gain).to(x.dtype), (angles.sin() * self.gain).to(x.dtype)


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def apply(q, k, cos, sin):
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def build():
    return YarnRotary(CONFIG), apply
