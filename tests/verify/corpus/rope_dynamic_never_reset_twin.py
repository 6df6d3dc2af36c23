"""Dynamic NTK with the base of the input at hand.

The correct twin of rope_dynamic_never_reset.py.
"""

import torch
from torch import nn

CONFIG = {
    "model_type": "llama",
    "hidden_size": 128,
    "num_attention_heads": 4,
    "head_dim": 32,
    "rope_theta": 10000.0,
    "max_position_embeddings": 64,
    "rope_scaling": {"rope_type": "dynamic", "factor": 2.0},
}
STYLE = "hf_rope"
SPEC = {"encoding": "rope", "head_dim": 32, "layout": "half", "scaling": "dynamic", "config": CONFIG}
EXPECT = "pass"


class DynamicRotary(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.dim, self.base = config["head_dim"], config["rope_theta"]
        self.trained = config["max_position_embeddings"]
        self.factor = config["rope_scaling"]["factor"]
        self._set(self.trained)

    def _set(self, n):
        base = self.base
        if n > self.trained:
            base *= (self.factor * n / self.trained - (self.factor - 1)) ** (self.dim / (self.dim - 2))
        inv_freq = 1.0 / base ** (torch.arange(0, self.dim, 2).float() / self.dim)
        self.register_buffer("inv_freq", inv_freq, persistent=False)
        self.set_for = n

    def forward(self, x, position_ids):
        n = int(position_ids.max()) + 1
        if n != self.set_for:
            self._set(n)
        freqs = position_ids.unsqueeze(-1).float() * self.inv_freq
        emb = torch.cat((freqs, freqs), dim=-1)
        return emb.cos().to(x.dtype), emb.sin().to(x.dtype)


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def apply(q, k, cos, sin):
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def build():
    return DynamicRotary(CONFIG), apply
