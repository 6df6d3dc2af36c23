"""Rows are counted from padding_idx + 1 in a model whose table begins at row 0.

Report: https://github.com/huggingface/transformers/issues/19265
"""

import torch

STYLE = "learned_rows_fn"
SPEC = {"encoding": "learned", "offset": 0, "table_rows": 512, "max_positions": 512, "padding": "right"}
EXPECT = "learned.padding_idx_as_offset"


class Embeddings:
    def __init__(self, padding_idx=0):
        self.padding_idx = padding_idx

    def rows(self, attention_mask):
        n = attention_mask.size(1)
        row = torch.arange(self.padding_idx + 1, n + self.padding_idx + 1)
        return row.unsqueeze(0).repeat(attention_mask.size(0), 1)


def build():
    return Embeddings().rows
