"""Left padding stands at position 1, where no score looks."""

STYLE = "position_fn"
SPEC = {"kind": "positions", "padding": "left"}
EXPECT = "pass"


def positions(attention_mask, q_len):
    ids = attention_mask.long().cumsum(-1) - 1
    ids.masked_fill_(attention_mask == 0, 1)
    return ids[:, -q_len:]


def build():
    return positions
