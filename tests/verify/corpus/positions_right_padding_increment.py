"""After a right-padded prompt the next token counts on from the padded end.

Report: https://github.com/huggingface/transformers/pull/48161
"""

import torch

STYLE = "position_fn"
SPEC = {"kind": "positions", "padding": "right"}
EXPECT = "positions.right_padding.increment"


def positions(attention_mask, q_len):
    total = attention_mask.size(1)
    if q_len < total:
        last = torch.full((len(attention_mask), 1), total - q_len - 1)
        return last + attention_mask[:, total - q_len :].long().cumsum(1)
    return (attention_mask.long().cumsum(1) - 1).clamp(min=0)


def build():
    return positions
