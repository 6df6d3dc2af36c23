"""Correct twin of learned_table_too_short."""

PADDING_IDX = 1
TABLE_ROWS = 512 + PADDING_IDX + 1

STYLE = "learned_rows_fn"
SPEC = {"encoding": "learned", "offset": 2, "table_rows": TABLE_ROWS, "max_positions": 512, "padding": "right"}
EXPECT = "pass"


def rows(attention_mask):
    mask = attention_mask.long()
    return (mask.cumsum(dim=1) * mask + PADDING_IDX).contiguous()


def build():
    return rows
