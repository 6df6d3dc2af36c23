"""Interleaved M-RoPE by the definition in plain loops."""

import torch


def axis_of(i, section=(12, 10, 10)):
    for axis in (1, 2):
        if i % 3 == axis and i < 3 * section[axis]:
            return axis
    return 0


def angles(position_ids):
    columns = [position_ids[axis_of(i)].to(torch.float32) * 10000.0 ** (-2 * i / 64) for i in range(32)]
    return torch.stack(columns).T


def build():
    return angles


STYLE = "mrope_fn"
SPEC = {"encoding": "mrope", "head_dim": 64, "base": 10000.0, "section": [12, 10, 10], "interleaved": True}
EXPECT = "pass"
