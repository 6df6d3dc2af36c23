"""Attention without a mask, in which queries and keys are rotated by the positions that the caller gives."""

import torch

STYLE = "attention"
SPEC = {"encoding": "rope", "head_dim": 16, "base": 10000.0, "layout": "half", "causal": False}
EXPECT = "pass"


def rotate(x, positions):
    half = x.shape[-1] // 2
    rate = 10000.0 ** (-torch.arange(half, dtype=torch.float32) / half)
    angle = positions.float().unsqueeze(-1) * rate
    cos, sin = angle.cos().repeat(1, 2).to(x.dtype), angle.sin().repeat(1, 2).to(x.dtype)
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], dim=-1) * sin


def attention(q, k, v, positions):
    q, k = rotate(q, positions), rotate(k, positions)
    weights = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(dim=-1)
    return weights @ v


def build():
    return attention
