"""FIRE as its paper prints the code, for the last queries of a text."""

import torch

STYLE = "learned_bias_fn"
SPEC = {"encoding": "fire", "heads": 3}
EXPECT = "pass"


def bias(q_len, kv_len, w1, b1, w2, b2, c, threshold):
    positions = torch.arange(kv_len, dtype=torch.float32)
    queries = positions[-q_len:]
    distance = queries[:, None] - positions[None, :]
    normaliser = torch.maximum(queries, threshold.abs())[:, None]
    top = torch.log(torch.abs(c * distance) + 1)
    bottom = torch.log(torch.abs(c * normaliser) + 1) + 1e-6
    share = (top / bottom).unsqueeze(-1)
    hidden = torch.relu(share @ w1.T + b1)
    return (hidden @ w2.T + b2).permute(2, 0, 1).unsqueeze(0)


def build():
    return bias
