"""Correct twin of learned_padding_not_masked."""

STYLE = "learned_rows_fn"
SPEC = {"encoding": "learned", "offset": 2, "table_rows": 514, "max_positions": 512, "padding": "left"}
EXPECT = "pass"


PADDING_IDX = 1


def create_rows(attention_mask):
    mask = attention_mask.ne(0).int()
    counted = mask.cumsum(dim=1) * mask
    return counted.long() + PADDING_IDX


def build():
    return create_rows
