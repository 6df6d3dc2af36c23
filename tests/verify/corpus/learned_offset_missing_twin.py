"""Correct twin of learned_offset_missing."""

STYLE = "learned_rows_fn"
SPEC = {"encoding": "learned", "offset": 2, "table_rows": 2050, "max_positions": 2048, "padding": "left"}
EXPECT = "pass"


class LearnedPositions:
    offset = 2

    def rows(self, attention_mask):
        mask = attention_mask.long()
        position = mask.cumsum(1) * mask - 1
        return position + self.offset


def build():
    return LearnedPositions().rows
