"""Positions of left-padded rows, in the prefill and in decoding."""

import torch


def positions(attention_mask, q_len):
    counted = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)
    total = attention_mask.shape[1]
    if q_len < total:
        return torch.arange(total - q_len, total).expand(attention_mask.shape[0], -1)
    return counted


def build():
    return positions


STYLE = "position_fn"
SPEC = {"kind": "positions", "padding": "left"}
EXPECT = "positions.left_padding.decode_lost"
