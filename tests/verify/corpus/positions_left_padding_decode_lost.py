"""The prompt's positions follow the mask, but a decoded token stands at the cache's length.

Report: https://github.com/thu-nics/C2C/pull/19
"""

import torch

STYLE = "position_fn"
SPEC = {"kind": "positions", "padding": "left"}
EXPECT = "positions.left_padding.decode_lost"


def position_ids(attention_mask, q_len):
    counts = attention_mask.to(torch.long).cumsum(1)
    if q_len == 1:
        return torch.full_like(counts[:, -1:], attention_mask.shape[1] - 1)
    return (counts - 1).masked_fill(attention_mask == 0, 1)[:, -q_len:]


def build():
    return position_ids
