"""The key's position times the slope; the query's term is the same for a whole row."""

STYLE = "score_mod"
SPEC = {"encoding": "alibi", "heads": 8, "causal": True}
EXPECT = "equivalent"


def build():
    return lambda score, b, h, q_idx, kv_idx: score + kv_idx * 0.5 ** (h + 1)
