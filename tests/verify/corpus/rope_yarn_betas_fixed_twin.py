"""YaRN with the configuration's beta_fast, 4.

The correct twin of rope_yarn_betas_fixed.py.
"""

import math

import torch
from torch import nn

CONFIG = {
    "model_type": "mistral",
    "hidden_size": 256,
    "num_attention_heads": 4,
    "head_dim": 64,
    "rope_theta": 1000000.0,
    "max_position_embeddings": 262144,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 64.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 4.0,
        "beta_slow": 1.0,
    },
}
STYLE = "hf_rope"
SPEC = {"encoding": "rope", "head_dim": 64, "layout": "half", "scaling": "yarn", "config": CONFIG}
EXPECT = "pass"


def correction_dim(turns, dim, base, length):
    return dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))


def yarn_frequencies(config):
    s, dim, base = config["rope_scaling"], config["head_dim"], config["rope_theta"]
    length = s["original_max_position_embeddings"]
    low = math.floor(correction_dim(s.get("beta_fast", 32), dim, base, length))
    high = math.ceil(correction_dim(s.get("beta_slow", 1), dim, base, length))
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    ramp = torch.clamp((torch.arange(dim // 2) - low) / (high - low), 0, 1)
    period = base ** (torch.arange(0, dim, 2).float() / dim)
    return ramp / (s["factor"] * period) + (1 - ramp) / period


def yarn_gain(config):
    s = config["rope_scaling"]
    return 0.1 * math.log(s["factor"]) + 1.0


class Rotary(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.register_buffer("inv_freq", yarn_frequencies(config), persistent=False)
        self.attention_scaling = yarn_gain(config)

    @torch.no_grad()
    def forward(self, x, position_ids):
        freqs = position_ids[:, :, None].float() * self.inv_freq
        emb = torch.cat((freqs, freqs), dim=-1)
        cos, sin = emb.cos() * self.attention_scaling, emb.sin() * self.attention_scaling
        return cos.to(x.dtype), sin.to(x.dtype)


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def apply(q, k, cos, sin):
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def build():
    return Rotary(CONFIG), apply
