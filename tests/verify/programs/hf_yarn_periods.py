"""YaRN written on wavelengths instead of frequencies; the gain sits on both tables."""

import math

import torch

CONFIG = {
    "model_type": "llama",
    "head_dim": 80,
    "max_position_embeddings": 32768,
    "rope_theta": 1000000.0,
    "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4096},
}


class Yarn(torch.nn.Module):
    def __init__(self):
        super().__init__()
        d, b, n, s = 80, 1e6, 4096, 8.0
        period = b ** (torch.arange(d // 2, dtype=torch.float64) * 2 / d)
        first = max(math.floor(d / 2 * math.log(n / (2 * math.pi * 32), b)), 0)
        last = min(math.ceil(d / 2 * math.log(n / (2 * math.pi), b)), d - 1)
        keep = 1 - ((torch.arange(d // 2, dtype=torch.float64) - first) / (last - first)).clip(0, 1)
        mixed = (period * s) / ((1 - keep) + keep * s)
        self.register_buffer("period", mixed)

    def forward(self, x, position_ids):
        a = position_ids.double().unsqueeze(2) / self.period
        a = torch.hstack((a.transpose(1, 2), a.transpose(1, 2))).transpose(1, 2)
        g = 1 + math.log(8.0) / 10
        return a.cos().mul(g).to(x.dtype), a.sin().mul(g).to(x.dtype)


def apply(q, k, cos, sin, position_ids=None, unsqueeze_dim=1):
    cos, sin = cos[:, None], sin[:, None]
    return tuple(
        t * cos + torch.roll(t, t.shape[-1] // 2, -1) * torch.cat((-sin[..., :40], sin[..., 40:]), -1) for t in (q, k)
    )


def build():
    return Yarn(), apply


STYLE = "hf_rope"
SPEC = {"encoding": "rope", "head_dim": 80, "base": 1000000.0, "layout": "half", "scaling": "yarn", "config": CONFIG}
EXPECT = "pass"
