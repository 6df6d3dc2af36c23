"""Positions of packed documents, from a mask with the number of each token's document."""

STYLE = "position_fn"
SPEC = {"kind": "positions", "packed": True, "padding": "left"}
EXPECT = "pass"


def positions(attention_mask, q_len):
    documents = attention_mask.long()
    alike = documents[:, :, None] == documents[:, None, :]
    return alike.tril(-1).sum(-1)[:, -q_len:]


def build():
    return positions
