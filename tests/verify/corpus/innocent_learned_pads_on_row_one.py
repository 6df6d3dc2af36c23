"""Left padding keeps row 1, the one just ahead of that of position 0."""

import torch

STYLE = "learned_rows_fn"
SPEC = {"encoding": "learned", "offset": 2, "table_rows": 514, "max_positions": 512, "padding": "left"}
EXPECT = "pass"


def rows(attention_mask):
    mask = attention_mask.bool()
    out = torch.ones(mask.shape, dtype=torch.long)
    for row, keep in zip(out, mask, strict=True):
        row[keep] = torch.arange(2, 2 + int(keep.sum()))
    return out


def build():
    return rows
