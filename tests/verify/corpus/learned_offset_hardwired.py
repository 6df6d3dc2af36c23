"""Two rows are skipped though this table has none to skip.

Report: https://github.com/huggingface/transformers/pull/5190
"""

import torch

STYLE = "learned_rows_fn"
SPEC = {"encoding": "learned", "offset": 0, "table_rows": 128, "max_positions": 128, "padding": "right"}
EXPECT = "learned.offset_hardwired"


EXTRA_ROWS = 2


def rows(attention_mask):
    batch, n = attention_mask.shape
    return (torch.arange(n, device=attention_mask.device) + EXTRA_ROWS).expand(batch, n)


def build():
    return rows
