"""Correct twin of alibi_sign_score_mod."""

STYLE = "score_mod"
SPEC = {"encoding": "alibi", "heads": 8, "causal": True}
EXPECT = "pass"


def generate_alibi_bias(n_heads):
    def alibi(score, b, h, q_idx, kv_idx):
        slope = 2.0 ** (-8.0 * (h + 1) / n_heads)
        return score + slope * (kv_idx - q_idx)

    return alibi


def build():
    return generate_alibi_bias(8)
