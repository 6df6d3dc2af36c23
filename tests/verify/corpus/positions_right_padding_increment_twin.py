"""Correct twin of positions_right_padding_increment."""

import torch

STYLE = "position_fn"
SPEC = {"kind": "positions", "padding": "right"}
EXPECT = "pass"


def positions(attention_mask, q_len):
    total = attention_mask.size(1)
    if q_len < total:
        last = torch.sum(attention_mask[:, : total - q_len].long(), dim=1, keepdim=True) - 1
        return last + attention_mask[:, total - q_len :].long().cumsum(1)
    return (attention_mask.long().cumsum(1) - 1).clamp(min=0)


def build():
    return positions
