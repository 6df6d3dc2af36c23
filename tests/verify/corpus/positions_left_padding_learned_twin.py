"""Correct twin of positions_left_padding_learned."""

import torch

STYLE = "position_fn"
SPEC = {"kind": "positions", "padding": "left", "encoding": "learned"}
EXPECT = "pass"


class Prepare:
    def __call__(self, attention_mask, q_len):
        position_ids = torch.cumsum(attention_mask, dim=1) - 1
        position_ids = position_ids.masked_fill(attention_mask == 0, 0)
        return position_ids[:, attention_mask.size(1) - q_len :]


def build():
    return Prepare()
