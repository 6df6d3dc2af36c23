"""A later chunk of a left-padded prompt takes the cache's own count and forgets the padding.

Report: https://github.com/huggingface/transformers/issues/43082
"""

import torch

STYLE = "position_fn"
SPEC = {"kind": "positions", "padding": "left"}
EXPECT = "positions.chunked_prefill"


def positions(attention_mask, q_len):
    total = attention_mask.size(-1)
    from_mask = attention_mask.int().cumsum(-1).sub(1).clamp_min(0)
    if 1 < q_len < total:
        return torch.arange(total - q_len, total).expand(len(attention_mask), -1)
    return from_mask[:, -q_len:]


def build():
    return positions
