"""All sines, then all cosines, as the specification says."""

import torch
from torch import nn

STYLE = "additive_module"
SPEC = {"encoding": "sinusoidal", "dim": 64, "base": 10000.0, "layout": "half"}
EXPECT = "pass"


class Blocks(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.register_buffer("freqs", torch.tensor([10000.0 ** (-2 * k / dim) for k in range(dim // 2)]))

    def forward(self, x):
        phase = torch.einsum("n,k->nk", torch.arange(x.shape[1]).to(self.freqs), self.freqs)
        return torch.cat([phase.sin(), phase.cos()], dim=-1).unsqueeze(0) + x


def build():
    return Blocks(64)
