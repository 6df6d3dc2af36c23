"""Learned tables that are added: faults and innocent oddities."""

import pytest
import torch
from torch import nn

from additive_subjects import D, judge


class Learned(nn.Module):
    def __init__(
        self, rows=40, at=lambda x: torch.arange(x.shape[1]), tail=lambda x, c: x + c, padding=None, zeros=False
    ):
        super().__init__()
        self.table = nn.Embedding(rows, D, padding_idx=padding)
        self.at, self.tail = at, tail
        if zeros:
            nn.init.zeros_(self.table.weight)

    def forward(self, x):
        return self.tail(x, self.table(self.at(x)))


class Flat(nn.Module):
    def __init__(self):
        super().__init__()
        self.pe = nn.Parameter(torch.zeros(1, 40, D))

    def forward(self, x):
        return x + self.pe[:, : x.shape[1]]


LEARNED = {"encoding": "learned", "dim": D}
LEARNED_CASES = {
    "plain": (Learned(), LEARNED, ("pass",)),
    "zeros": (Learned(zeros=True), LEARNED, ("pass",)),
    "parameter": (Flat(), LEARNED, ("pass",)),
    "opt": (Learned(at=lambda x: torch.arange(x.shape[1]) + 2), {**LEARNED, "offset": 2}, ("pass",)),
    "roberta": (Learned(at=lambda x: torch.arange(x.shape[1]) + 2, padding=1), {**LEARNED, "padding": 1}, ("pass",)),
    "dropout": (Learned(tail=lambda x, c: nn.functional.dropout(x + c, 0.0)), LEARNED, ("pass",)),
    "offset_missing": (Learned(), {**LEARNED, "offset": 2}, ("fail", "learned.offset_missing")),
    "offset_hardwired": (
        Learned(at=lambda x: torch.arange(x.shape[1]) + 2),
        LEARNED,
        ("fail", "learned.offset_hardwired"),
    ),
    "padding_as_offset": (
        Learned(at=lambda x: torch.arange(x.shape[1]) + 1, padding=0),
        LEARNED,
        ("fail", "learned.padding_idx_as_offset"),
    ),
    "start": (Learned(at=lambda x: torch.arange(x.shape[1]) + 1), LEARNED, ("fail", "learned.start")),
    "batch": (Learned(at=lambda x: torch.arange(x.shape[0])[:, None]), LEARNED, ("fail", "learned.axis.batch")),
    "batch_raises": (Learned(at=lambda x: torch.arange(x.shape[0])), LEARNED, ("fail", "learned.axis.batch")),
    "single": (Learned(at=lambda x: torch.tensor([x.shape[1]])), LEARNED, ("fail", "learned.slice.single_row")),
    "padding_row": (Learned(padding=0), LEARNED, ("fail", "learned.padding_row_zeroed")),
    "padding_row_3": (Learned(padding=3), LEARNED, ("fail", "learned.padding_row_zeroed")),
    "too_short": (Learned(rows=20), {**LEARNED, "max_positions": 20, "offset": 2}, ("fail", "learned.offset_missing")),
    "too_short_offset": (
        Learned(rows=20, at=lambda x: torch.arange(x.shape[1]) + 2),
        {**LEARNED, "max_positions": 20, "offset": 2},
        ("fail", "learned.table_too_short"),
    ),
    "rows": (Learned(rows=20), {**LEARNED, "table_rows": 22}, ("fail", "learned.table_too_short")),
    "clamped": (
        Learned(at=lambda x: torch.arange(x.shape[1]).clamp(max=39)),
        LEARNED,
        ("fail", "learned.table_too_short"),
    ),
    "frozen": (Learned().requires_grad_(False), LEARNED, ("fail", "learned.frozen")),
    "severed": (Learned(tail=lambda x, c: x.detach() + c), LEARNED, ("fail", "learned.grad.severed")),
    "table_severed": (Learned(tail=lambda x, c: x + c.detach()), LEARNED, ("fail", "learned.frozen")),
    "twice": (Learned(tail=lambda x, c: x + 2 * c), LEARNED, ("fail", "learned.added_twice")),
    "unused": (Learned(tail=lambda x, c: x * 1), LEARNED, ("fail", "learned.not_used")),
    "reversed": (
        Learned(at=lambda x: torch.arange(x.shape[1]).flip(0)),
        LEARNED,
        ("fail", "learned.position.reversed"),
    ),
}


@pytest.mark.parametrize("name", LEARNED_CASES)
def test_a_learned_table_is_judged(name):
    subject, spec, expected = LEARNED_CASES[name]
    status, code = judge(subject, "additive_module", spec)
    assert status == expected[0]
    if status == "fail":
        assert code == expected[1]
