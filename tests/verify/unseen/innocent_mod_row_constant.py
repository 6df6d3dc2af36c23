"""ALiBi score modification with a constant per query added."""

import torch

SLOPES = torch.tensor([0.5**i for i in range(1, 9)])


def score_mod(score, batch, head, q_index, kv_index):
    return torch.add(score, SLOPES[head] * (kv_index - 2 * q_index + 7))


def build():
    return score_mod


STYLE = "score_mod"
SPEC = {"encoding": "alibi", "heads": 8, "causal": True}
EXPECT = "equivalent"
