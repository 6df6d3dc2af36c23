"""Query minus key: the farther a key lies back, the more it is favoured.

Report: https://github.com/meta-pytorch/attention-gym/pull/86
"""

STYLE = "score_mod"
SPEC = {"encoding": "alibi", "heads": 8, "causal": True}
EXPECT = "alibi.sign"


def generate_alibi_bias(n_heads):
    def alibi(score, b, h, q_idx, kv_idx):
        slope = 2.0 ** (-8.0 * (h + 1) / n_heads)
        return score + slope * (q_idx - kv_idx)

    return alibi


def build():
    return generate_alibi_bias(8)
