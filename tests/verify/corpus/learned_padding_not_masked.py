"""Padding is counted: the first real token of a left-padded row does not get the first row.

Report: https://github.com/huggingface/transformers/issues/1761
"""

import torch

STYLE = "learned_rows_fn"
SPEC = {"encoding": "learned", "offset": 2, "table_rows": 514, "max_positions": 512, "padding": "left"}
EXPECT = "learned.padding_not_masked"


PADDING_IDX = 1


def create_rows(attention_mask):
    mask = attention_mask.ne(0).int()
    counted = torch.ones_like(mask).cumsum(dim=1)
    return counted.long() + PADDING_IDX


def build():
    return create_rows
