"""Both sides are turned the other way, where the direction is free."""

import torch

STYLE = "attention"
SPEC = {"encoding": "rope", "head_dim": 16, "base": 10000.0, "layout": "half", "causal": False, "direction": "any"}
EXPECT = "equivalent"


def clockwise(x, positions):
    half = x.shape[-1] // 2
    turn = torch.exp(-1j * positions[:, None] * 10000.0 ** (-torch.arange(half) / half))
    z = torch.complex(x[..., :half], x[..., half:]) * turn
    return torch.cat([z.real, z.imag], dim=-1)


def attention(q, k, v, positions):
    q, k = clockwise(q, positions), clockwise(k, positions)
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


def build():
    return attention
