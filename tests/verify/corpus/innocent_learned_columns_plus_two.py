"""Padding at the end gets rows too, which no token looks at."""

import torch

STYLE = "learned_rows_fn"
SPEC = {"encoding": "learned", "offset": 2, "table_rows": 1026, "max_positions": 1024, "padding": "right"}
EXPECT = "pass"


def rows(attention_mask):
    n = attention_mask.shape[-1]
    return torch.arange(2, n + 2, dtype=torch.int32).repeat(attention_mask.shape[0], 1)


def build():
    return rows
