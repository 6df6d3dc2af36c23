"""Counts of real tokens: padding at the end repeats the last token's place, which no score sees."""

STYLE = "position_fn"
SPEC = {"kind": "positions", "padding": "right"}
EXPECT = "pass"


def positions(attention_mask, q_len):
    real = attention_mask.long().cumsum(dim=1)
    return real[:, -q_len:] - 1


def build():
    return positions
