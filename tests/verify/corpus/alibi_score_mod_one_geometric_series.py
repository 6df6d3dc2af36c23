"""40 heads with slopes 2 ** (-8 (h + 1) / 40), where the model was trained with the authors' slopes.

Report: https://github.com/baichuan-inc/Baichuan2/issues/225
"""

import torch

STYLE = "score_mod"
SPEC = {"encoding": "alibi", "heads": 40, "causal": True}
EXPECT = "alibi.slopes.not_power_of_two"


def get_slopes(n):
    return torch.exp2(-(torch.arange(n) + 1) * 8.0 / n)


def build():
    slopes = get_slopes(40)

    def score_mod(score, b, h, q_idx, kv_idx):
        return score + slopes[h] * (kv_idx - q_idx)

    return score_mod
