"""Column numbers less the padding of each row, no lower than 0; int32."""

import torch

STYLE = "position_fn"
SPEC = {"kind": "positions", "padding": "left"}
EXPECT = "pass"


def positions(attention_mask, q_len):
    total = attention_mask.shape[1]
    pads = (attention_mask == 0).sum(dim=1, keepdim=True)
    columns = torch.arange(total - q_len, total)
    return torch.clamp(columns - pads, min=0).to(torch.int32)


def build():
    return positions
