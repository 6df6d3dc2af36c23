"""A table of 512 rows for 512 tokens whose rows are counted from 2.

Report: https://github.com/huggingface/transformers/issues/9116
"""

PADDING_IDX = 1
TABLE_ROWS = 512

STYLE = "learned_rows_fn"
SPEC = {"encoding": "learned", "offset": 2, "table_rows": TABLE_ROWS, "max_positions": 512, "padding": "right"}
EXPECT = "learned.table_too_short"


def rows(attention_mask):
    mask = attention_mask.long()
    return (mask.cumsum(dim=1) * mask + PADDING_IDX).contiguous()


def build():
    return rows
