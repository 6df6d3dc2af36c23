"""Causal attention, rotated clockwise from position 1; scaled queries; queries may share keys."""

import torch


def spin(x, w):
    z = torch.complex(*x.double().chunk(2, -1)) * w
    return torch.cat((z.real, z.imag), -1).to(x.dtype)


def attention(q, k, v, positions):
    f = 20000.0 ** (-torch.arange(16, dtype=torch.float64) / 16)
    w = torch.exp(-1j * (positions.double() + 1)[:, None] * f)
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    score = spin(q * q.shape[-1] ** -0.5, w) @ spin(k, w).transpose(-1, -2)
    score = score.masked_fill(positions[None, :] > positions[:, None], float("-inf"))
    return score.softmax(-1).to(v.dtype) @ v


def build():
    return attention


STYLE = "attention"
SPEC = {
    "encoding": "rope",
    "head_dim": 32,
    "base": 20000.0,
    "layout": "half",
    "causal": True,
    "origin": "any",
    "direction": "any",
}
EXPECT = "pass"
