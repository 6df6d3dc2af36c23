"""A table that grows to the next power of two and is gathered by index; linear scaling as a multiplier."""

import torch
from torch import nn

CONFIG = {
    "model_type": "llama",
    "head_dim": 64,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "rope_scaling": {"rope_type": "linear", "factor": 4.0},
}


class Grown(nn.Module):
    def __init__(self, scale=0.25):
        super().__init__()
        self.scale = scale
        self.register_buffer("table", torch.empty(0, 2, 32), persistent=False)

    def forward(self, x, positions):
        need = int(positions.max()) + 1
        if need > len(self.table):
            rows = 1 << max(10, need.bit_length())
            f = (10000.0 ** (-torch.arange(32, dtype=torch.float64) / 32)) * self.scale
            a = torch.arange(rows, dtype=torch.float64).view(-1, 1) * f
            self.table = torch.stack((a.cos(), a.sin()), 1).float()
        c, s = self.table.index_select(0, positions.long()).to(x.dtype).unbind(1)
        y = x.new_empty(x.shape)
        y[..., :32] = x[..., :32] * c - x[..., 32:] * s
        y[..., 32:] = x[..., 32:] * c + x[..., :32] * s
        return y


def build():
    return Grown()


STYLE = "rope_fn"
SPEC = {
    "encoding": "rope",
    "head_dim": 64,
    "base": 10000.0,
    "layout": "half",
    "scaling": "linear",
    "config": CONFIG,
    "max_positions": 512,
}
EXPECT = "pass"
