"""Known faults of trained tables that are laid over images, each a tested statement."""

from collections.abc import Callable

import numpy as np

from posenc.verify.additive.asked import Asked
from posenc.verify.additive.places2d import Seen, Size, along, case_of, says, table_shape, unflattened
from posenc.verify.additive.probe import Probe
from posenc.verify.report import Cause


def mixed(probe: Probe, seen: list[Seen], asked: Asked) -> Cause | None:
    """Tell lanes that come out of other lanes, from cell to cell others: a view where axes should be exchanged."""
    bad = next((s for s in seen if len(s.taken.lanes) > 1 and np.allclose(s.taken.total, 1, atol=1e-3)), None)
    if bad is None:
        return None
    lanes = list(bad.taken.lanes[:6])
    message = (
        f"lane {bad.taken.lane} of the code takes lanes {lanes} of the table, in each cell of {says(bad.size)} "
        "another: numbers are put in another shape where axes should be exchanged"
    )
    help_ = "Exchange axes by permute or transpose: reshape(1, h, w, dim).permute(0, 3, 1, 2)."
    return Cause("learned.grid.lanes_mixed", message, float(len(bad.taken.lanes)), case_of(probe, bad), help_)


def scaled(probe: Probe, seen: list[Seen], asked: Asked) -> Cause | None:
    """Tell tables that are multiplied, and cells that get nothing."""
    for one in seen:
        off = np.abs(one.taken.total - 1)
        if off.max() < 1e-3:
            continue
        at = int(off.argmax())
        total, cell = float(one.taken.total[at]), tuple(one.taken.cells[at].tolist())
        where = f"cell {cell} of {says(one.size)}, lane {one.taken.lane},"
        message = f"{where} takes {total:.6g} times an entry of the table"
        code = "learned.added_twice" if abs(total - 2) < 1e-3 else "learned.scaled"
        return Cause(code, message, total, case_of(probe, one), "Add entries as they are; weights of a mean sum to 1.")
    return None


def class_row(probe: Probe, seen: list[Seen], asked: Asked) -> Cause | None:
    """Tell cells that take part of the entry of the class token."""
    if not asked.said.get("cls"):
        return None
    for one in seen:
        used = np.abs(one.taken.weights[:, 0]) > 1e-6 if len(one.taken.shape) == 1 else np.zeros(1, dtype=bool)
        if used.any() and not used.all():
            cell = tuple(one.taken.cells[int(used.argmax())].tolist())
            message = f"cell {cell} of {says(one.size)} takes from entry 0 of the table, which is the class token's"
            help_ = "Cut the class token's entry off before cells are numbered or interpolated: table[:, 1:]."
            return Cause("learned.grid.class_row", message, float(used.sum()), case_of(probe, one), help_)
    return None


def by_size(probe: Probe, seen: list[Seen], asked: Asked) -> Cause | None:
    """Tell a flat table whose entries mean other places in images of other widths."""
    for name, number in _NUMBERINGS.items():
        mine = [s for s in seen if len(s.taken.shape) == 1 and s.taken.whole and _numbered(s, number)]
        apart = [s for s in mine if number((1, 1), s.size) != number((1, 1), mine[0].size)]
        if not apart:
            continue
        entries = [number((1, 1), s.size) for s in (mine[0], apart[0])]
        message = (
            f"entries of the table are numbered by the size of each image, as {name}: the one of cell (1, 1) in "
            f"{says(mine[0].size)} is entry {entries[0]}, and in {says(apart[0].size)} entry {entries[1]}"
        )
        help_ = "Number entries by the table's own width: row * table_width + column, or interpolate the table."
        return Cause("learned.grid.stride", message, float(entries[1]), case_of(probe, apart[0]), help_)
    return None


_NUMBERINGS: dict[str, Callable[[tuple[int, int], Size], int]] = {
    "row * width + column": lambda cell, size: cell[0] * size[1] + cell[1],
    "column * height + row": lambda cell, size: cell[1] * size[0] + cell[0],
    "row * height + column": lambda cell, size: cell[0] * size[0] + cell[1],
    "column * width + row": lambda cell, size: cell[1] * size[1] + cell[0],
}


def _numbered(one: Seen, number: Callable[[tuple[int, int], Size], int]) -> bool:
    want = np.array([number((i, j), one.size) for i, j in one.taken.cells.tolist()])
    line = one.taken.line()
    return bool(np.abs(line - line[0] - (want - want[0])).max() < 1e-3)


def lines(probe: Probe, seen: list[Seen], asked: Asked) -> Cause | None:
    """Tell tables of rows and of columns whose entries are cut out of the numbers of all cells."""
    for one in seen:
        if one.follows is not None or not one.taken.whole:
            continue
        h, w = one.size
        cells = one.taken.cells
        number = cells[:, 0] * w + cells[:, 1]
        back = cells[:, 1] * h + cells[:, 0]
        for said, want in (
            (f"number // {h}, where the number of a cell is row * {w} + column", number // h),
            (f"number % {h}, where the number of a cell is row * {w} + column", number % h),
            (f"number // {w}, where the number of a cell is column * {h} + row", back // w),
            (f"number % {w}, where the number of a cell is column * {h} + row", back % w),
        ):
            if any(np.abs(p - want).max() < 1e-3 for p in one.taken.centres().T):
                message = f"in {says(one.size)} cells take entry {said}"
                help_ = f"Divide by the width: rows are number // {w} and columns number % {w}."
                return Cause("learned.grid.stride", message, float(h), case_of(probe, one), help_)
    return None


def one_line(probe: Probe, seen: list[Seen], asked: Asked) -> Cause | None:
    """Tell tables that are interpolated as one line, or to the sides of an image exchanged."""
    for one in seen:
        if one.follows is not None or one.taken.whole:
            continue
        h, w = one.size
        entries, cells = int(np.prod(one.taken.shape)), one.taken.cells
        at = cells[:, 0] * w + cells[:, 1]
        turned = np.stack([at // h, at % h], 1)
        words = None
        if along(one.taken.line(), at, h * w, entries):
            words = f"the table of {entries} entries is stretched to {h * w} as one line: ends of rows run together"
        shape = table_shape(one.taken, one.size, asked)
        if words is None and shape is not None and len(shape) == 2:
            places = one.taken.centres() if len(one.taken.shape) == 2 else unflattened(one.taken, shape)
            if all(along(places[:, a], turned[:, a], (w, h)[a], shape[a]) for a in (0, 1)):
                words = f"the table is interpolated to {w} rows of {h} and read as {h} rows of {w}"
        if words:
            cell = next((c for c in cells.tolist() if c[0]), [0, 0])
            message = f"in an image of {says(one.size)} {words}: see cell {tuple(cell)}"
            help_ = "Interpolate over both axes of the table at once, to size=(h, w): rows first."
            return Cause("learned.grid.interpolated_wrong", message, float(entries), case_of(probe, one), help_)
    return None


FAULTS = (mixed, scaled, class_row, by_size, lines, one_line)
