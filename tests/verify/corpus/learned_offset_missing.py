"""The table keeps two rows ahead of position 0, and the code reads from row 0.

Report: https://github.com/EleutherAI/gpt-neox/pull/650
"""

STYLE = "learned_rows_fn"
SPEC = {"encoding": "learned", "offset": 2, "table_rows": 2050, "max_positions": 2048, "padding": "left"}
EXPECT = "learned.offset_missing"


class LearnedPositions:
    offset = 2

    def rows(self, attention_mask):
        mask = attention_mask.long()
        position = mask.cumsum(1) * mask - 1
        return position.clamp(min=0)


def build():
    return LearnedPositions().rows
