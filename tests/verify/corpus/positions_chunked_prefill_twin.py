"""Correct twin of positions_chunked_prefill."""

import torch

STYLE = "position_fn"
SPEC = {"kind": "positions", "padding": "left"}
EXPECT = "pass"


def positions(attention_mask, q_len):
    total = attention_mask.size(-1)
    from_mask = attention_mask.int().cumsum(-1).sub(1).clamp_min(0)
    if 1 < q_len < total:
        return torch.narrow(from_mask, 1, total - q_len, q_len)
    return from_mask[:, -q_len:]


def build():
    return positions
