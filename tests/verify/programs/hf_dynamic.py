"""Dynamic NTK rotary: beyond the trained length the base grows with the length of the call."""

import torch
from torch import nn

CONFIG = {
    "model_type": "llama",
    "head_dim": 48,
    "max_position_embeddings": 256,
    "rope_theta": 10000.0,
    "rope_scaling": {"rope_type": "dynamic", "factor": 3.0},
}


class DynamicRope(nn.Module):
    def __init__(self, head_dim, base, trained, factor):
        super().__init__()
        self.head_dim, self.base, self.trained, self.factor = head_dim, base, trained, factor
        self.longest = trained

    def frequencies(self, length):
        base, d = self.base, self.head_dim
        if length > self.trained:
            base = base * (self.factor * length / self.trained - (self.factor - 1)) ** (d / (d - 2))
        return base ** -(torch.arange(0, d, 2, dtype=torch.float64) / d)

    def forward(self, x, position_ids):
        length = int(position_ids.max()) + 1
        self.longest = max(self.trained, length)
        freqs = self.frequencies(self.longest).to(torch.float32)
        angles = position_ids.float().unsqueeze(-1) * freqs
        table = torch.cat([angles, angles], -1)
        return torch.cos(table).type_as(x), torch.sin(table).type_as(x)


def rotate(t, cos, sin):
    left, right = t.split(t.shape[-1] // 2, -1)
    return t * cos.unsqueeze(1) + torch.cat([right.neg(), left], -1) * sin.unsqueeze(1)


def both(q, k, cos, sin):
    return rotate(q, cos, sin), rotate(k, cos, sin)


def build():
    return DynamicRope(48, 10000.0, 256, 3.0), both


STYLE = "hf_rope"
SPEC = {"encoding": "rope", "head_dim": 48, "base": 10000.0, "layout": "half", "scaling": "dynamic", "config": CONFIG}
EXPECT = "pass"
