"""The Llama-3 bands are chosen by `rope_type`.

The correct twin of rope_llama3_scaling_dropped.py.
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


def bands(inv_freq, s):
    length, factor = s["original_max_position_embeddings"], s["factor"]
    low, high = s["low_freq_factor"], s["high_freq_factor"]
    wavelength = 2 * math.pi / inv_freq
    smooth = (length / wavelength - low) / (high - low)
    middle = (1 - smooth) * inv_freq / factor + smooth * inv_freq
    out = torch.where(wavelength > length / low, inv_freq / factor, inv_freq)
    return torch.where((wavelength <= length / low) & (wavelength >= length / high), middle, out)


class LlamaRotary(nn.Module):
    def __init__(self, config):
        super().__init__()
        dim = config["head_dim"]
        inv_freq = 1.0 / config["rope_theta"] ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        scaling = config.get("rope_scaling") or {}
        if scaling.get("rope_type") == "llama3":
            inv_freq = bands(inv_freq, scaling)
        self.register_buffer("inv_freq", inv_freq.float(), persistent=False)

    def forward(self, x, position_ids):
        angles = position_ids.unsqueeze(-1).float() * self.inv_freq
        return torch.cat((angles.cos(),) * 2, -1).to(x.dtype), torch.cat((angles.sin(),) * 2, -1).to(x.dtype)


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def apply(q, k, cos, sin):
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def build():
    return LlamaRotary(CONFIG), apply
