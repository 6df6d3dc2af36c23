"""A score_mod with tensor indices that hides the keys ahead itself and takes whole tables."""

import torch

STYLE = "score_mod"
SPEC = {"encoding": "alibi", "heads": 6, "causal": True}
EXPECT = "pass"


SLOPES = torch.tensor([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3])


def score_mod(score, b, h, q_idx, kv_idx):
    q_idx, kv_idx = torch.as_tensor(q_idx), torch.as_tensor(kv_idx)
    penalty = SLOPES.to(score)[h] * (q_idx - kv_idx)
    return torch.where(q_idx >= kv_idx, score - penalty, torch.full_like(score, float("-inf")))


def build():
    return score_mod
