"""Dynamic NTK that takes the tokens and the offset for the length."""

import torch
from torch import nn

CONFIG = {
    "model_type": "llama",
    "head_dim": 16,
    "rope_theta": 10000.0,
    "max_position_embeddings": 48,
    "rope_scaling": {"rope_type": "dynamic", "factor": 6.0},
}
STYLE = "rope_offset_fn"
SPEC = {"encoding": "rope", "head_dim": 16, "layout": "half", "scaling": "dynamic", "config": CONFIG}
EXPECT = "pass"


class DynamicNTK(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.dims = config["head_dim"]
        self.original_base = config["rope_theta"]
        self.trained = config["max_position_embeddings"]
        self.factor = config["rope_scaling"]["factor"]

    def base_for(self, n):
        if n <= self.trained:
            return self.original_base
        grown = self.factor * n / self.trained - (self.factor - 1)
        return self.original_base * grown ** (self.dims / (self.dims - 2))

    def forward(self, x, offset=0):
        length = x.shape[-2] + offset
        freqs = self.base_for(length) ** (-torch.arange(0, self.dims, 2).float() / self.dims)
        angles = (offset + torch.arange(x.shape[-2]))[:, None] * freqs
        cos, sin = angles.cos().type_as(x), angles.sin().type_as(x)
        a, b = x.tensor_split(2, dim=-1)
        return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


def build():
    return DynamicNTK(CONFIG)
