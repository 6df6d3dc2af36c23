"""Rows of a learned table that keeps two rows at its front, as OPT does."""

import torch


def rows(attention_mask):
    mask = attention_mask.long()
    place = torch.cumsum(mask, dim=1) * mask - 1
    return place + 2


def build():
    return rows


STYLE = "learned_rows_fn"
SPEC = {"encoding": "learned", "offset": 2, "table_rows": 130, "max_positions": 128, "padding": "left"}
EXPECT = "pass"
