"""Rotary function used under bfloat16 activations."""

import torch


class Rope:
    def __init__(self, dim, base):
        self.inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))

    def __call__(self, x, positions):
        inv_freq = self.inv_freq.float()
        angle = torch.outer(positions.float(), inv_freq)
        cos, sin = angle.cos(), angle.sin()
        a, b = x.float().chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


def build():
    return Rope(64, 500000.0)


STYLE = "rope_fn"
SPEC = {"encoding": "rope", "head_dim": 64, "base": 500000.0, "layout": "half", "activation_dtype": "bfloat16"}
EXPECT = "pass"
