"""The middle band of Llama 3 is blended linearly in the frequency.

The correct twin of rope_llama3_ramp_by_wavelength.py.
"""

import math

import torch
from torch import nn

CONFIG = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_attention_heads": 4,
    "head_dim": 64,
    "rope_theta": 500000.0,
    "max_position_embeddings": 131072,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
STYLE = "hf_rope"
SPEC = {"encoding": "rope", "head_dim": 64, "layout": "half", "scaling": "llama3", "config": CONFIG}
EXPECT = "pass"


def scaled_frequencies(config):
    dim, s = config["head_dim"], config["rope_scaling"]
    length = s["original_max_position_embeddings"]
    longest, shortest = length / s["low_freq_factor"], length / s["high_freq_factor"]
    out = []
    for lane in range(0, dim, 2):
        freq = config["rope_theta"] ** (-lane / dim)
        wavelength = 2 * math.pi / freq
        if wavelength > longest:
            freq = freq / s["factor"]
        elif wavelength > shortest:
            keep = (length / wavelength - s["low_freq_factor"]) / (s["high_freq_factor"] - s["low_freq_factor"])
            freq = (1 - keep) * freq / s["factor"] + keep * freq
        out.append(freq)
    return torch.tensor(out)


class Rotary(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.register_buffer("inv_freq", scaled_frequencies(config), persistent=False)

    def forward(self, x, position_ids):
        angles = position_ids[:, :, None].to(torch.float32) * self.inv_freq[None, None, :]
        angles = angles.repeat(1, 1, 2)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def apply(q, k, cos, sin):
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def build():
    return Rotary(CONFIG), apply
