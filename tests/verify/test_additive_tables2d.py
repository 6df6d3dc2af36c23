"""Trained tables of images: cells that get entries of other places, and innocent ways to lay a table over an image."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from additive_subjects import D, judge
from posenc.verify.additive import check as additive

IMAGE = {"encoding": "learned2d", "dim": D}
HALF = (40, D // 2)


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


def beside(rows, columns, h, w):
    y, x = cells(h, w)
    return torch.cat([columns[x], rows[y]], -1).permute(2, 0, 1)


def added(rows, columns, h, w):
    y, x = cells(h, w)
    return (rows[y] + columns[x]).permute(2, 0, 1)


def flat(table, h, w, first=0):
    y, x = cells(h, w)
    return table[first + y * 7 + x].permute(2, 0, 1)


def by_width(table, h, w):
    y, x = cells(h, w)
    return table[y * w + x].permute(2, 0, 1)


def middle(table, h, w):
    top, left = (9 - h) // 2, (9 - w) // 2
    return table[0, :, top : top + h, left : left + w]


def stretched(table, h, w, first=0, **how):
    grid = table[first:].reshape(1, 7, 7, D).permute(0, 3, 1, 2)
    return F.interpolate(grid, size=(h, w), **how)[0]


def sides(table, h, w):
    grid = table.reshape(1, 7, 7, D).permute(0, 3, 1, 2)
    return F.interpolate(grid, size=(w, h), mode="bilinear").reshape(D, h, w)


def line(table, h, w):
    return F.interpolate(table.T[None], size=h * w, mode="linear")[0].reshape(D, h, w)


def viewed(table, h, w):
    return F.interpolate(table.reshape(1, D, 7, 7), size=(h, w), mode="bilinear")[0]


def by_height(rows, columns, h, w):
    number = torch.arange(h * w)
    return torch.cat([columns[number % h], rows[number // h]], -1).T.reshape(D, h, w)


INNOCENT = {
    "beside": Table(HALF, beside, HALF),
    "added": Table((40, D), added, (40, D)),
    "flat, cut out": Table((49, D), flat),
    "one size": Table((D, 6, 6), lambda t, h, w: t),
    "cut out": Table((1, D, 9, 9), lambda t, h, w: t[0, :, :h, :w]),
    "cut out of the middle": Table((1, D, 9, 9), middle),
    "lanes last": Table((9, 9, D), lambda t, h, w: t[:h, :w].permute(2, 0, 1)),
    "bilinear": Table((49, D), lambda t, h, w: stretched(t, h, w, mode="bilinear")),
    "bicubic": Table((49, D), lambda t, h, w: stretched(t, h, w, mode="bicubic")),
    "ends on ends": Table((49, D), lambda t, h, w: stretched(t, h, w, mode="bicubic", align_corners=True)),
    "nearest": Table((49, D), lambda t, h, w: stretched(t, h, w, mode="nearest")),
    "antialiased": Table((49, D), lambda t, h, w: stretched(t, h, w, mode="bilinear", antialias=True)),
    "class token": Table((50, D), lambda t, h, w: stretched(t, h, w, first=1, mode="bicubic")),
    "flat, one size": Table((36, D), lambda t, h, w: t.T.reshape(D, h, w)),
    "gated": Table((40, D), lambda r, c, gate, h, w: (1 + gate.sum()) * added(r, c, h, w), (40, D), (1, 2)),
}
FAULTY = {
    "width": (Table((400, D), by_width), {}, "learned.grid.stride"),
    "width of a square table": (Table((49, D), by_width), {}, "learned.grid.stride"),
    "height for width": (Table(HALF, by_height, HALF), {}, "learned.grid.stride"),
    "sides exchanged": (Table((49, D), sides), {}, "learned.grid.interpolated_wrong"),
    "one line": (Table((49, D), line), {}, "learned.grid.interpolated_wrong"),
    "view": (Table((49, D), viewed), {}, "learned.grid.lanes_mixed"),
    "class token": (Table((50, D), flat), {"cls": True}, "learned.grid.class_row"),
    "rows first": (Table(HALF, beside, HALF), {"order": "yx"}, "learned.grid.axes_swapped"),
    "transposed": (
        Table((1, D, 9, 9), lambda t, h, w: t[0, :, :w, :h].transpose(1, 2)),
        {"order": "yx"},
        "learned.grid.axes_swapped",
    ),
    "too small": (
        Table((1, D, 9, 9), lambda t, h, w: t[0, :, :h, :w]),
        {"grid": [9, 12]},
        "learned.table_too_short",
    ),
    "one axis": (Table((40, D), lambda t, h, w: t[:h].T[:, :, None].expand(D, h, w)), {}, "learned.cells_collide"),
    "twice": (Table((40, D), lambda r, c, h, w: 2 * added(r, c, h, w), (40, D)), {}, "learned.added_twice"),
}


@pytest.mark.parametrize("name", INNOCENT)
def test_innocent_ways_to_lay_a_table_over_an_image(name):
    status, because = judge(INNOCENT[name], "additive_2d_module", IMAGE)
    assert status == "pass", because


@pytest.mark.parametrize("name", FAULTY)
def test_faults_are_named(name):
    subject, more, code = FAULTY[name]
    assert judge(subject, "additive_2d_module", IMAGE | more) == ("fail", code)


def test_what_is_declared_decides_what_is_a_name():
    turned = Table((1, D, 9, 9), lambda t, h, w: t[0, :, :w, :h].transpose(1, 2))
    status, because = judge(turned, "additive_2d_module", IMAGE)
    assert status == "equivalent"
    assert "another name for its entries" in because
    assert judge(turned, "additive_2d_module", IMAGE | {"order": "xy"})[0] == "pass"
    assert judge(INNOCENT["beside"], "additive_2d_module", IMAGE | {"order": "xy"})[0] == "pass"


def test_a_grid_that_is_asked_for_is_enough():
    """A table that is numbered by the width is right where there is one width."""

    def only(table, h, w):
        if (h, w) != (6, 9):
            raise ValueError("another image")
        return by_width(table, h, w)

    assert judge(Table((54, D), only), "additive_2d_module", IMAGE | {"grid": [6, 9]})[0] == "pass"


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(2, 8), nn.Linear(8, D)

    def forward(self, x):
        at = torch.stack(cells(*x.shape[-2:]), -1).float()
        return x + self.second(self.first(at).tanh()).permute(2, 0, 1)


def test_what_passes_through_a_network_is_no_table():
    findings = additive.check(Net(), "additive_2d_module", IMAGE)
    assert not findings.causes
    assert "no trained table was found" in findings.unknown
