"""Positions of left-padded rows, in the prefill and in decoding."""

import torch

STYLE = "position_fn"
SPEC = {"kind": "positions", "padding": "left"}
EXPECT = "pass"


def positions(attention_mask, q_len):
    counted = (torch.cumsum(attention_mask.long(), -1) - 1).clamp(min=0)
    total = attention_mask.shape[1]
    if q_len < total:
        return counted[:, total - q_len :]
    return counted


def build():
    return positions
