"""Swin v2's bias by the table of all steps and Swin's index, for weights trained with windows of 6 by 8."""

import math

import torch

STYLE = "learned_bias_fn"
SPEC = {"encoding": "swin_v2", "heads": 3, "pretrained_window": [6, 8]}
EXPECT = "pass"
TRAINED = (6, 8)


def bias(h, w, w1, b1, w2):
    steps_h, steps_w = torch.arange(1.0 - h, h), torch.arange(1.0 - w, w)
    table = torch.stack(torch.meshgrid(steps_h, steps_w, indexing="ij"), -1)
    table[..., 0] /= TRAINED[0] - 1
    table[..., 1] /= TRAINED[1] - 1
    table *= 8
    table = table.sign() * torch.log2(table.abs() + 1.0) / math.log2(8)
    values = torch.relu(table @ w1.T + b1) @ w2.T
    cells = torch.stack(torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")).flatten(1)
    dy, dx = cells[:, :, None] - cells[:, None, :]
    index = (dy + h - 1) * (2 * w - 1) + dx + w - 1
    out = values.reshape(-1, w2.shape[0])[index]
    return 16 * torch.sigmoid(out.permute(2, 0, 1))


def build():
    return bias
