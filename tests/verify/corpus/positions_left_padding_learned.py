"""Positions for a learned table are the column numbers, so shorter prompts begin late.

Report: https://github.com/ndif-team/nnsight/pull/673
"""

import torch

STYLE = "position_fn"
SPEC = {"kind": "positions", "padding": "left", "encoding": "learned"}
EXPECT = "positions.left_padding"


class Prepare:
    def __call__(self, attention_mask, q_len):
        position_ids = torch.arange(attention_mask.size(1)).repeat(attention_mask.size(0), 1)
        position_ids = position_ids.masked_fill(attention_mask == 0, 0)
        return position_ids[:, attention_mask.size(1) - q_len :]


def build():
    return Prepare()
