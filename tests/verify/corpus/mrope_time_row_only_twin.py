"""M-RoPE in which every pair reads the row of its axis.

The correct twin of mrope_time_row_only.py.
"""

import torch

STYLE = "mrope_fn"
SPEC = {"encoding": "mrope", "head_dim": 128, "base": 1000000.0, "section": [16, 24, 24], "interleaved": False}
EXPECT = "pass"


ROW_OF_PAIR = torch.tensor([0] * 16 + [1] * 24 + [2] * 24)
INV_FREQ = 1000000.0 ** (-torch.arange(64).float() / 64)


def angles(position_ids):
    seq = position_ids.shape[1]
    flat = position_ids.reshape(-1)
    token = torch.arange(seq)[:, None]
    return flat[token + ROW_OF_PAIR * seq].float() * INV_FREQ


def build():
    return angles
