"""ALiBi as a score modification."""

import torch


def score_mod(score, b, h, q_idx, kv_idx):
    slope = torch.exp2(-(h + 1) * 8.0 / 4)
    return score + slope * (kv_idx - q_idx)


def build():
    return score_mod


STYLE = "score_mod"
SPEC = {"encoding": "alibi", "heads": 4, "causal": True}
EXPECT = "pass"
