"""Correct twin of positions_left_padding_decode_lost."""

import torch

STYLE = "position_fn"
SPEC = {"kind": "positions", "padding": "left"}
EXPECT = "pass"


def position_ids(attention_mask, q_len):
    counts = attention_mask.to(torch.long).cumsum(1)
    if q_len == 1:
        return counts[:, -1:] - 1
    return (counts - 1).masked_fill(attention_mask == 0, 1)[:, -q_len:]


def build():
    return position_ids
