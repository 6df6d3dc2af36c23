"""YaRN rotary of a small open-weights model (truncate is False in its configuration)."""

import math

import torch
from torch import nn

CONFIG = {
    "model_type": "llama",
    "head_dim": 64,
    "max_position_embeddings": 131072,
    "rope_theta": 150000.0,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    },
}


class YarnRotary(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        par = cfg["rope_scaling"]
        width, theta, factor = cfg["head_dim"], cfg["rope_theta"], par["factor"]

        def lane_of(turns):
            return (
                width
                * math.log(par["original_max_position_embeddings"] / (turns * 2 * math.pi))
                / (2 * math.log(theta))
            )

        first, last = lane_of(par["beta_fast"]), lane_of(par["beta_slow"])
        if par.get("truncate", True):
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, width - 1)
        plain = theta ** (-torch.arange(0, width, 2, dtype=torch.float32) / width)
        slow = ((torch.arange(width // 2, dtype=torch.float32) - first) / (last - first)).clamp(0, 1)
        self.register_buffer("inv_freq", plain / factor * slow + plain * (1 - slow), persistent=False)
        self.gain = 0.1 * math.log(factor) + 1.0

    @torch.no_grad()
    def forward(self, x, position_ids):
        ang = position_ids[:, :, None].float() * self.inv_freq[None, None, :]
        ang = torch.cat((ang, ang), dim=-1)
        return (ang.cos() * self.gain).to(x.dtype), (ang.sin() * self.gain).to(x.dtype)


def swap(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def apply(q, k, cos, sin):
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return q * cos + swap(q) * sin, k * cos + swap(k) * sin


def build():
    return YarnRotary(CONFIG), apply


STYLE = "hf_rope"
SPEC = {"encoding": "rope", "head_dim": 64, "base": 150000.0, "layout": "half", "scaling": "yarn", "config": CONFIG}
EXPECT = "pass"
