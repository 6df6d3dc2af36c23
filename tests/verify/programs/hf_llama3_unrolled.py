"""Llama 3.2 rotary, bands by wavelength."""

import math

import torch

CFG = dict(
    model_type="llama",
    head_dim=64,
    max_position_embeddings=131072,
    rope_theta=500000.0,
    rope_scaling=dict(
        rope_type="llama3",
        factor=32.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=8192,
    ),
)


def scaled(freqs, original, low, high, factor):
    out = []
    for f in freqs.tolist():
        wavelength = 2 * math.pi / f
        if wavelength < original / high:
            out.append(f)
        elif wavelength > original / low:
            out.append(f / factor)
        else:
            s = (original / wavelength - low) / (high - low)
            out.append((1 - s) * f / factor + s * f)
    return torch.tensor(out, dtype=torch.float32)


class Llama32Rope(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        d = config["head_dim"]
        freqs = 1.0 / config["rope_theta"] ** (torch.arange(0, d, 2).double() / d)
        rs = config["rope_scaling"]
        self.inv_freq = scaled(
            freqs, rs["original_max_position_embeddings"], rs["low_freq_factor"], rs["high_freq_factor"], rs["factor"]
        )

    def forward(self, x, position_ids):
        phase = torch.einsum("bs,f->bsf", position_ids.to(torch.float32), self.inv_freq.to(x.device)).repeat(1, 1, 2)
        return phase.cos().to(x.dtype), phase.sin().to(x.dtype)


def turn(x, cos, sin):
    n = x.shape[-1] // 2
    return x * cos[:, None] + torch.cat([-x[..., n:], x[..., :n]], -1) * sin[:, None]


def build():
    return Llama32Rope(CFG), lambda q, k, cos, sin: (turn(q, cos, sin), turn(k, cos, sin))


STYLE = "hf_rope"
SPEC = {"encoding": "rope", "head_dim": 64, "base": 500000.0, "layout": "half", "scaling": "llama3", "config": CFG}
EXPECT = "pass"
