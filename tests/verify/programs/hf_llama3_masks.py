"""Llama 3 bands by two masks, the middle band first; the result written over a copy."""

import torch

CONFIG = {
    "model_type": "llama",
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}


class Bands(torch.nn.Module):
    def __init__(self, p=CONFIG["rope_scaling"]):
        super().__init__()
        f = 500000.0 ** torch.linspace(0, -126 / 128, 64, dtype=torch.float64)
        turns = p["original_max_position_embeddings"] * f / (2 * torch.pi)
        lo, hi, div = p["low_freq_factor"], p["high_freq_factor"], p["factor"]
        share = (turns - lo) / (hi - lo)
        out = f * (share + (1 - share) / div)
        out[turns > hi] = f[turns > hi]
        out[turns < lo] = f[turns < lo] / div
        self.f = torch.nn.Parameter(out.float(), requires_grad=False)

    def forward(self, x, position_ids):
        with torch.autocast(device_type="cpu", enabled=False):
            a = (self.f[None, :, None] @ position_ids[:, None, :].float()).transpose(1, 2)
        return torch.cat([a, a], -1).cos().to(x.dtype), torch.cat([a, a], -1).sin().to(x.dtype)


def rotate_half(x):
    return torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), dim=-1)


def apply(q, k, cos, sin):
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return torch.addcmul(q * cos, rotate_half(q), sin), torch.addcmul(k * cos, rotate_half(k), sin)


def build():
    return Bands(), apply


STYLE = "hf_rope"
SPEC = {"encoding": "rope", "head_dim": 128, "base": 500000.0, "layout": "half", "scaling": "llama3", "config": CONFIG}
EXPECT = "pass"
