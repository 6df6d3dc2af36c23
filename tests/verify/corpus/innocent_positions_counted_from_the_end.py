"""The last token stands at 0 and all before it at negative places, where the origin is free."""

STYLE = "position_fn"
SPEC = {"kind": "positions", "encoding": "rope", "padding": "left", "origin": "any"}
EXPECT = "equivalent"


def positions(attention_mask, q_len):
    after = attention_mask.flip(1).long().cumsum(1).flip(1)
    return (1 - after)[:, attention_mask.shape[1] - q_len :]


def build():
    return positions
