"""Correct twin of positions_left_padding_shared."""

import torch

STYLE = "position_fn"
SPEC = {"kind": "positions", "padding": "left"}
EXPECT = "pass"


def positions(attention_mask, q_len):
    total = attention_mask.size(1)
    cache_position = torch.arange(total - q_len, total, device=attention_mask.device)
    counted = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)
    return counted.index_select(1, cache_position)


def build():
    return positions
