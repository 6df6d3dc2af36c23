"""LongRoPE: one list up to the trained length, the other beyond it."""

import math

import torch

SHORT = [1.0, 1.0, 1.02, 1.03, 1.05, 1.05, 1.1, 1.12, 1.2, 1.3, 1.3, 1.4, 1.5, 1.7, 1.9, 2.1]
LONG = [1.0, 1.1, 1.25, 1.5, 1.9, 2.4, 3.0, 3.7, 4.6, 5.5, 6.1, 6.8, 7.2, 7.6, 7.9, 8.0]
CONFIG = {
    "model_type": "phi3",
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "original_max_position_embeddings": 256,
    "rope_theta": 10000.0,
    "rope_scaling": {"type": "longrope", "short_factor": SHORT, "long_factor": LONG},
}


class LongRope(torch.nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.original = cfg["original_max_position_embeddings"]
        stretch = cfg["max_position_embeddings"] / self.original
        self.gain = math.sqrt(1 + math.log(stretch) / math.log(self.original))
        base = torch.tensor(cfg["rope_theta"]) ** (torch.arange(16) * 2 / cfg["head_dim"])
        self.register_buffer("short", 1 / (torch.tensor(SHORT) * base))
        self.register_buffer("long", 1 / (torch.tensor(LONG) * base))

    def forward(self, x, position_ids):
        reached = position_ids.max() + 1
        freqs = self.long if reached > self.original else self.short
        angles = position_ids[..., None].to(freqs.dtype) * freqs
        angles = angles.tile(2)
        return (self.gain * angles.cos()).to(x.dtype), (self.gain * angles.sin()).to(x.dtype)


def apply_rotary(q, k, cos, sin, unsqueeze_dim=1):
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    out = []
    for t in (q, k):
        h = t.shape[-1] // 2
        out.append(t * cos + torch.cat((-t[..., h:], t[..., :h]), -1) * sin)
    return tuple(out)


def build():
    return LongRope(CONFIG), apply_rotary


STYLE = "hf_rope"
SPEC = {"encoding": "rope", "head_dim": 32, "base": 10000.0, "layout": "half", "scaling": "longrope", "config": CONFIG}
EXPECT = "pass"
