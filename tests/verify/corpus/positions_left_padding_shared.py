"""One run of positions for all rows of a left-padded batch: padding is counted.

Report: https://github.com/unslothai/unsloth/pull/4078
"""

import torch

STYLE = "position_fn"
SPEC = {"kind": "positions", "padding": "left"}
EXPECT = "positions.left_padding"


def positions(attention_mask, q_len):
    total = attention_mask.size(1)
    cache_position = torch.arange(total - q_len, total, device=attention_mask.device)
    return cache_position.unsqueeze(0).expand(attention_mask.size(0), -1)


def build():
    return positions
