"""Trained tables that are added to texts and images: which row each token gets, which entry each cell."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from posenc import verify
from posenc.verify.rules import known

D = 16
LEARNED = {"encoding": "learned", "dim": D}
IMAGE = {"encoding": "learned2d", "dim": D}


def judge(subject, convention, spec):
    report = verify.check(subject, convention=convention, spec=spec)
    assert {cause.code for cause in report.causes} <= set(known())
    return report.status, report.causes[0].code if report.causes else report.because


class Learned(nn.Module):
    """x + table[at(x)], with the usual switches of nn.Embedding."""

    def __init__(self, at=lambda p: p, rows=40, tail=lambda x, c: x + c, padding=None, zeros=False, longest=10**9):
        super().__init__()
        self.table = nn.Embedding(rows, D, padding_idx=padding)
        self.at, self.tail, self.longest = at, tail, longest
        if zeros:
            nn.init.zeros_(self.table.weight)

    def forward(self, x):
        if x.shape[1] > self.longest:
            raise ValueError("too long")
        return self.tail(x, self.table(self.at(torch.arange(x.shape[1]))))


class ByBatch(Learned):
    def forward(self, x):
        return x + self.table(torch.arange(x.shape[0]))[:, None]


class Grows(nn.Module):
    """A table of 12 rows that makes `more(table, n)` of them for longer texts; it may keep them."""

    def __init__(self, more, keeps=False):
        super().__init__()
        self.table, self.more, self.keeps = nn.Parameter(torch.randn(12, D)), more, keeps

    def forward(self, x):
        n, table = x.shape[1], self.table
        if n > len(table):
            table = self.more(table, n)
            if self.keeps:
                self.table = nn.Parameter(table.detach().clone())
        return x + table[:n]


def restarted(t, n):
    return t.repeat(n // len(t) + 1, 1)


def repeated(t, n):
    return torch.cat([t, t[-1:].expand(n - len(t), -1)])


def new_rows(t, n):
    generator = torch.Generator().manual_seed(n)
    return torch.cat([t, 0.02 * torch.randn(n - len(t), D, generator=generator)])


def stretched(corners):
    def more(t, n):
        return F.interpolate(t.T[None], size=n, mode="linear", align_corners=corners)[0].T

    return more


def short(p):
    return p.to(torch.int16).long() % 40_000  # as a table that is indexed from behind


LINEAR, FREE, EMPTY = nn.Linear(D, D), nn.Parameter(torch.randn(30, D)), nn.Parameter(torch.zeros(1, 40, D))
TEXTS = [
    ("pass", Learned(), LEARNED),
    ("pass", Learned(zeros=True), LEARNED),
    ("pass", lambda x: x + EMPTY[:, : x.shape[1]], LEARNED),
    ("pass", Learned(lambda p: p + 2), {**LEARNED, "offset": 2}),
    ("pass", Learned(lambda p: p + 2, padding=1), {**LEARNED, "padding": 1}),
    ("pass", Learned(tail=lambda x, c: F.dropout(x + c, 0.0)), LEARNED),
    ("pass", Learned(rows=40_000), {**LEARNED, "max_positions": 40_000}),
    ("pass", Learned(rows=40_000, longest=30_000), LEARNED),
    ("pass", Learned(rows=40, longest=30), {**LEARNED, "table_rows": 40}),
    ("pass", Learned(rows=5), LEARNED),
    ("learned.table_too_short", Learned(rows=40_000, longest=30_000), {**LEARNED, "max_positions": 40_000}),
    ("learned.mismatch", Learned(short, rows=40_000), LEARNED),
    ("learned.offset_missing", Learned(), {**LEARNED, "offset": 2}),
    ("learned.offset_hardwired", Learned(lambda p: p + 2), LEARNED),
    ("learned.padding_idx_as_offset", Learned(lambda p: p + 1, padding=0), LEARNED),
    ("learned.start", Learned(lambda p: p + 1), LEARNED),
    ("learned.axis.batch", ByBatch(), LEARNED),
    ("learned.slice.tail", Learned(lambda p: p + 40 - len(p)), LEARNED),
    ("positions.reversed", Learned(lambda p: p.flip(0)), LEARNED),
    ("positions.constant_in_chunk", Learned(lambda p: p[-1:] + 1), LEARNED),
    ("learned.padding_row_zeroed", Learned(padding=0), LEARNED),
    ("learned.padding_row_zeroed", Learned(padding=3), LEARNED),
    ("learned.offset_missing", Learned(rows=20), {**LEARNED, "max_positions": 20, "offset": 2}),
    ("learned.table_too_short", Learned(lambda p: p + 2, rows=20), {**LEARNED, "max_positions": 20, "offset": 2}),
    ("learned.table_too_short", Learned(rows=20), {**LEARNED, "table_rows": 22}),
    ("learned.table_too_short", Learned(lambda p: p.clamp(max=39)), LEARNED),
    ("learned.frozen", Learned().requires_grad_(False), LEARNED),
    ("learned.frozen", Learned(tail=lambda x, c: x + c.detach()), LEARNED),
    ("learned.grad.severed", Learned(tail=lambda x, c: x.detach() + c), LEARNED),
    ("learned.added_twice", Learned(tail=lambda x, c: x + 2 * c), LEARNED),
    ("learned.scaled", Learned(tail=lambda x, c: x + 0.5 * c), LEARNED),
    ("learned.input.scaled", Learned(tail=lambda x, c: 4 * x + c), LEARNED),
    ("learned.not_used", Learned(tail=lambda x, c: x * 1), LEARNED),
    ("learned.position.missing", Learned(tail=lambda x, c: torch.cat((x[:, :1], x[:, 1:] + c[:-1]), 1)), LEARNED),
    # tables that grow, with and without a length that is asked for
    ("pass", Grows(new_rows, keeps=True), {**LEARNED, "max_positions": 30}),
    ("pass", Grows(new_rows), {**LEARNED, "table_rows": 12}),
    ("pass", Grows(stretched(False)), LEARNED),
    ("pass", Grows(stretched(True)), {**LEARNED, "max_positions": 30}),
    ("pass", Grows(stretched(True)), {**LEARNED, "interpolation": "ends"}),
    ("learned.interpolation.rule", Grows(stretched(True)), {**LEARNED, "interpolation": "cells"}),
    ("learned.wrapped", Grows(restarted), LEARNED),
    ("learned.wrapped", Grows(restarted, keeps=True), {**LEARNED, "max_positions": 30}),
    ("learned.table_too_short", Grows(repeated), LEARNED),
    ("positions.other", Learned(lambda p: p + (p >= 12)), {**LEARNED, "max_positions": 30}),
    # what is no table by itself
    ("cannot_tell", Learned(tail=lambda x, c: x + LINEAR(c)), LEARNED),
    ("pass", lambda x: x + FREE[: x.shape[1]], LEARNED),
    ("learned.start", lambda x: x + FREE[1 : x.shape[1] + 1], LEARNED),
]


@pytest.mark.parametrize(("want", "subject", "spec"), TEXTS)
def test_a_trained_table_of_a_text_is_judged(want, subject, spec):
    status, code = judge(subject, "additive_module", spec)
    assert want == (code if status == "fail" else status)


def test_a_function_keeps_its_numbers():
    before = FREE.detach().clone()
    judge(lambda x: x + FREE[: x.shape[1]], "additive_module", LEARNED)
    assert torch.equal(FREE, before)


def test_a_finding_of_a_far_row_says_which_it_is():
    cause = verify.check(Learned(short, rows=40_000), convention="additive_module", spec=LEARNED).causes[0]
    assert "found 7232, expected 32768" in cause.message
    assert cause.smallest_case["x"] == [1, 40_009, D]
    cause = verify.check(Grows(restarted), convention="additive_module", spec=LEARNED).causes[0]
    assert "at position 12; found 0, expected 12" in cause.message
    assert "refuse longer texts" in cause.fix


class Table(nn.Module):
    """Tables of the given shapes, laid over an image by a function of them, the rows and the columns."""

    def __init__(self, shape, lay, *more):
        super().__init__()
        self.tables = nn.ParameterList(nn.Parameter(torch.zeros(*s)) for s in (shape, *more))
        self.lay = lay

    def forward(self, x):
        return x + self.lay(*self.tables, *x.shape[-2:])


def cells(h, w):
    return torch.arange(h)[:, None].expand(h, w), torch.arange(w).expand(h, w)


def side_by_side(columns_first):
    def lay(rows, columns, h, w):
        y, x = cells(h, w)
        both = [rows[y], columns[x]]
        return torch.cat(both[::-1] if columns_first else both, -1).permute(2, 0, 1)

    return Table((40, D // 2), lay, (40, D // 2))


def added(rows, columns, h, w):
    y, x = cells(h, w)
    return (rows[y] + columns[x]).permute(2, 0, 1)


def numbered(width, first=0):
    def lay(table, h, w):
        y, x = cells(h, w)
        return table[first + y * (width or w) + x].permute(2, 0, 1)

    return lay


def middle(table, h, w):
    top, left = (9 - h) // 2, (9 - w) // 2
    return table[0, :, top : top + h, left : left + w]


def resized(table, h, w, first=0, **how):
    grid = table[first:].reshape(1, 7, 7, D).permute(0, 3, 1, 2)
    return F.interpolate(grid, size=(h, w), **how)[0]


def sides(table, h, w):
    grid = table.reshape(1, 7, 7, D).permute(0, 3, 1, 2)
    return F.interpolate(grid, size=(w, h), mode="bilinear").reshape(D, h, w)


def line(table, h, w):
    return F.interpolate(table.T[None], size=h * w, mode="linear")[0].reshape(D, h, w)


def small_with_class(table, h, w):
    """Bicubic weights of a corner are negative, and none is of the class's row."""
    grid = (3, 5) if len(table) == 16 else (4, 4)
    return F.interpolate(table[1:].T.reshape(1, D, *grid), size=(h, w), mode="bicubic")[0]


def width_first(table, h, w):
    """Resize to (w, h), but for the size that the table has."""
    return table[0] if (h, w) == (3, 5) else F.interpolate(table, (w, h), mode="bilinear").reshape(D, h, w)


def only(table, h, w):
    """Number entries by the width, which is right where there is one width."""
    if (h, w) != (6, 9):
        raise ValueError("another image")
    return numbered(None)(table, h, w)


def by_column(table, h, w):
    return F.interpolate(table.reshape(1, 6, 4, D).permute(0, 3, 2, 1), size=(h, w), mode="bilinear")[0]


def exchanged(table, h, w):
    """Take the rows of the table for its columns on the way to another size only."""
    if (h, w) == (4, 6):
        return table.T.reshape(D, h, w)
    return F.interpolate(table.T.reshape(1, D, 6, 4), size=(h, w), mode="bilinear")[0]


def squares(table, h, w):
    assert h == w
    return numbered(7)(table, h, w)


def transposed(table, h, w):
    """Transpose the table on the way to another size only."""
    grid = table.reshape(1, 7, 7, D)
    if (h, w) == (7, 7):
        return grid[0].permute(2, 0, 1)
    return F.interpolate(grid.permute(0, 3, 2, 1), size=(h, w), mode="bilinear")[0]


def from_the_first(rows, columns, h, w):
    y, x = cells(h, w)
    return torch.cat((rows[x], rows[y]), -1).permute(2, 0, 1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(2, 8), nn.Linear(8, D)

    def forward(self, x):
        at = torch.stack(cells(*x.shape[-2:]), -1).float()
        return x + self.second(self.first(at).tanh()).permute(2, 0, 1)


TURNED = Table((1, D, 9, 9), lambda t, h, w: t[0, :, :w, :h].transpose(1, 2))
COLUMNS, ROWS = side_by_side(True), side_by_side(False)
IMAGES = [
    ("pass", COLUMNS, {}),
    ("pass", ROWS, {}),
    *[("pass", ROWS, {"order": said}) for said in ("yx", "rows first")],
    *[("pass", COLUMNS, {"order": said}) for said in ("xy", "w,h")],
    ("learned.grid.axes_swapped", COLUMNS, {"order": "yx"}),
    ("learned.grid.axes_swapped", ROWS, {"order": "xy"}),
    ("pass", Table((40, D), added, (40, D)), {}),
    ("pass", Table((40, D), added, (40, D)), {"order": "xy"}),
    ("pass", Table((49, D), numbered(7)), {}),
    ("pass", Table((D, 6, 6), lambda t, h, w: t), {}),
    ("pass", Table((1, D, 9, 9), lambda t, h, w: t[0, :, :h, :w]), {}),
    ("pass", Table((1, D, 9, 9), middle), {}),
    ("pass", Table((D, 9, 9), lambda t, h, w: t[:, :h, :w].flip(1)), {}),
    ("pass", Table((9, 9, D), lambda t, h, w: t[:h, :w].permute(2, 0, 1)), {}),
    ("pass", Table((49, D), lambda t, h, w: resized(t, h, w, mode="bilinear")), {}),
    ("pass", Table((49, D), lambda t, h, w: resized(t, h, w, mode="bicubic", align_corners=True)), {}),
    ("pass", Table((49, D), lambda t, h, w: resized(t, h, w, mode="nearest")), {}),
    ("pass", Table((49, D), lambda t, h, w: resized(t, h, w, mode="bilinear", antialias=True)), {}),
    ("pass", Table((50, D), lambda t, h, w: resized(t, h, w, first=1, mode="bicubic")), {}),
    ("pass", Table((17, D), small_with_class), {"cls": True, "grid": [4, 4]}),
    ("pass", Table((16, D), small_with_class), {"grid": [3, 5]}),  # whose entries may be a square, too
    ("pass", Table((36, D), lambda t, h, w: t.T.reshape(D, h, w)), {}),
    ("pass", Table((40, D), lambda r, c, gate, h, w: (1 + gate.sum()) * added(r, c, h, w), (40, D), (1, 2)), {}),
    ("pass", Table((54, D), only), {"grid": [6, 9]}),
    ("equivalent", TURNED, {}),
    ("pass", TURNED, {"order": "xy"}),
    ("learned.grid.axes_swapped", TURNED, {"order": "yx"}),
    ("learned.grid.axes_swapped", Table((24, D), by_column), {"grid": [4, 6]}),
    ("pass", Table((24, D), by_column), {"grid": [4, 6], "order": "xy"}),
    ("learned.grid.axes_swapped", Table((24, D), exchanged), {"grid": [4, 6], "interpolation": "bilinear"}),
    ("pass", Table((49, D), squares), {"dim": None}),
    ("learned.grid.axes_shared", Table((40, D // 2), from_the_first, (40, D // 2)), {}),
    ("pass", Table((40, D // 2), lambda t, h, w: from_the_first(t, t, h, w)), {"order": "xy"}),
    ("learned.grid.stride", Table((400, D), numbered(None)), {}),
    ("learned.grid.stride", Table((49, D), numbered(None)), {}),
    ("learned.grid.interpolated_wrong", Table((49, D), sides), {}),
    ("learned.grid.interpolated_wrong", Table((49, D), line), {}),
    ("learned.grid.interpolated_wrong", Table((49, D), transposed), {"grid": [7, 7], "interpolation": "bilinear"}),
    ("learned.grid.interpolated_wrong", Table((1, D, 3, 5), width_first), {"grid": [3, 5]}),
    ("learned.grid.lanes_mixed", Table((49, D), lambda t, h, w: F.interpolate(t.reshape(1, D, 7, 7), (h, w))[0]), {}),
    ("learned.grid.class_row", Table((50, D), numbered(7)), {"cls": True}),
    ("learned.table_too_short", Table((1, D, 9, 9), lambda t, h, w: t[0, :, :h, :w]), {"grid": [9, 12]}),
    ("learned.cells_collide", Table((40, D), lambda t, h, w: t[:h].T[:, :, None].expand(D, h, w)), {}),
    ("learned.added_twice", Table((40, D), lambda r, c, h, w: 2 * added(r, c, h, w), (40, D)), {}),
    ("learned.not_used", Table((40, D), lambda t, h, w: 0 * t[0][:, None, None]), {}),
    ("cannot_tell", Net(), {}),  # what passes through a network is no table
]


def corners(side=7):
    """Read a table at even steps from corner to corner, by the four entries around each place."""

    def lay(table, h, w):
        (y, x), grid = (torch.arange(n) * (side - 1) / max(n - 1, 1) for n in (h, w)), table.reshape(side, side, D)
        lines = [torch.relu(1 - (at[:, None] - torch.arange(side)).abs()) for at in (y, x)]
        return torch.einsum("hr,wc,rcd->dhw", *lines, grid)

    return lay


def ruled(first=0, **how):
    return Table((49 + first, D), lambda t, h, w: resized(t, h, w, first=first, **how))


def by_offset(table, h, w):
    grid = table.reshape(1, 7, 7, D).permute(0, 3, 1, 2)
    return F.interpolate(grid, scale_factor=((h + 0.1) / 7, (w + 0.1) / 7), mode="bicubic")[0]


ALIGNED = {"mode": "bilinear", "align_corners": True}
RULES = {  # by the name of the rule: code that reads a table by it
    "timm": ruled(mode="bicubic", antialias=True),
    "transformers": ruled(1, mode="bicubic"),
    "torchvision": ruled(mode="bicubic", align_corners=True),
    "dinov2": Table((49, D), by_offset),
    "siglip2": ruled(mode="bilinear", antialias=True),
    "qwen3_vl": Table((49, D), corners()),
    "bilinear": ruled(mode="bilinear"),
}


@pytest.mark.parametrize("used", RULES)
def test_the_rule_of_interpolation_is_judged_if_it_is_declared_and_named_if_not(used):
    for asked in RULES:
        status, code = judge(RULES[used], "additive_2d_module", IMAGE | {"interpolation": asked})
        assert (status, code) == (("pass", "") if asked == used else ("fail", "learned.interpolation.rule"))
    report = verify.check(RULES[used], convention="additive_2d_module", spec=IMAGE)
    assert f"the rule of interpolation: {used} is used; declare interpolation" in " ".join(report.not_judged)


def test_tables_without_a_rule_of_interpolation():
    def left(subject, **more):
        report = verify.check(subject, convention="additive_2d_module", spec=IMAGE | more)
        return report.status, [words for words in report.not_judged if "interpolation" in words]

    assert left(ROWS) == ("pass", [])
    assert left(Table((1, D, 9, 9), middle), interpolation="timm") == ("fail", [])
    assert left(ruled(mode="bilinear", align_corners=True), interpolation=ALIGNED) == ("pass", [])
    nearest = verify.check(
        ruled(mode="nearest"), convention="additive_2d_module", spec=IMAGE | {"interpolation": "timm"}
    )
    assert "by the nearest entry" in nearest.causes[0].message
    alone = "the rule of interpolation: only images of the table's own size, 6 x 6, work"
    assert left(Table((D, 6, 6), lambda t, h, w: t), interpolation="timm") == ("pass", [alone])
    with pytest.raises(ValueError, match="verify: interpolation: rule must be 'timm', 'transformers'"):
        left(ROWS, interpolation="cubic")


@pytest.mark.parametrize(("want", "subject", "more"), IMAGES)
def test_a_trained_table_of_an_image_is_judged(want, subject, more):
    status, code = judge(subject, "additive_2d_module", IMAGE | more)
    assert want == (code if status == "fail" else status)


def test_what_is_only_another_name_is_said():
    assert "which is order='xy'" in judge(TURNED, "additive_2d_module", IMAGE)[1]
    with pytest.raises(ValueError, match="order cannot be 'snake'"):
        judge(TURNED, "additive_2d_module", IMAGE | {"order": "snake"})
