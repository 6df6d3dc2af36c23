"""Learned rows counted with two spare rows at the front; int32, pads at row 0, an all-padding row allowed."""

import torch


def rows(attention_mask):
    real = attention_mask != 0
    before = (~real).sum(1, keepdim=True)
    count = torch.arange(2, attention_mask.shape[1] + 2)[None] - before
    return torch.where(real, count, torch.zeros_like(count)).to(torch.int32)


def build():
    return rows


STYLE = "learned_rows_fn"
SPEC = {"encoding": "learned", "offset": 2, "table_rows": 66, "max_positions": 64, "padding": "left"}
EXPECT = "pass"
