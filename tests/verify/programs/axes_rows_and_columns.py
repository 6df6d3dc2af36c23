"""A vision tower's rotation: the first half of each head by the row, the second by the column."""

import torch

STYLE = "rope_axes_fn"
SPEC = {"encoding": "rope2d", "head_dim": 32, "base": 100.0, "layout": "half", "order": "yx"}
EXPECT = "pass"


def rotate(x, position):
    freq = 100.0 ** (-torch.arange(0, 16, 2).float() / 16)
    angle = position[:, None, :, None].float() * freq
    u, v = x.chunk(2, -1)
    return torch.cat((u * angle.cos() - v * angle.sin(), u * angle.sin() + v * angle.cos()), -1)


def rope2d(tokens, positions):
    with torch.enable_grad():
        y, x = tokens.chunk(2, -1)
        return torch.cat((rotate(y, positions[..., 0]), rotate(x, positions[..., 1])), -1)


def build():
    return rope2d
