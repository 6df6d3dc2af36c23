"""M-RoPE that reads the first of the three rows for every pair: height and width are lost.

Report: https://github.com/sgl-project/sglang/pull/34446
"""

import torch

STYLE = "mrope_fn"
SPEC = {"encoding": "mrope", "head_dim": 128, "base": 1000000.0, "section": [16, 24, 24], "interleaved": False}
EXPECT = "mrope.axes_collapsed"


ROW_OF_PAIR = torch.tensor([0] * 16 + [1] * 24 + [2] * 24)
INV_FREQ = 1000000.0 ** (-torch.arange(64).float() / 64)


def angles(position_ids):
    seq = position_ids.shape[1]
    flat = position_ids.reshape(-1)
    token = torch.arange(seq)[:, None]
    return flat[token + torch.zeros_like(ROW_OF_PAIR) * seq].float() * INV_FREQ


def build():
    return angles
