"""Trained tables that are added to images: does each cell get the entry of its own place, in images of any size.

Which entry is a cell's own is free as long as one image is all there is: rows and columns may be exchanged, and a table
may run backwards. What must hold is that neighbours in the table are neighbours in the image, and that an entry means
one place, whatever the size of the image.
"""

from collections.abc import Iterator

from posenc.verify import guard
from posenc.verify.additive.asked import Asked
from posenc.verify.additive.faults2d import FAULTS
from posenc.verify.additive.places2d import Seen, Size, grid, look, says
from posenc.verify.additive.probe import Probe
from posenc.verify.additive.tables2d import taken
from posenc.verify.report import Cause, Findings

SIZES = ((3, 5), (5, 3), (4, 6))
NATIVE = 14  # rows of a square table that an image is made for, at most


def check(probe: Probe, asked: Asked, findings: Findings) -> None:
    """Judge the code of images, in all sizes that work."""
    sizes = list(working(probe, asked, findings))
    if findings.causes or not sizes:
        return
    found = [look(size, one, asked) for size in sizes for one in taken(probe, size)]
    findings.measured["sizes"] = [list(size) for size in sizes]
    if not found:
        findings.unknown = "no trained table was found in the graph of the result: what cells get cannot be told"
        return
    for ask in FAULTS:
        if (cause := ask(probe, found, asked)) is not None:
            findings.causes.append(cause)
            return
    strange = next((one for one in found if one.follows is None), None)
    if strange is not None:
        findings.unknown = f"cells of {says(strange.size)} take entries of the table in an order that is not known"
        return
    _order(found, probe, asked, findings)


def working(probe: Probe, asked: Asked, findings: Findings) -> Iterator[Size]:
    """Yield sizes that can be called: the one that is asked for, which must work, and others."""
    said = grid(asked)
    if said is not None:
        try:
            probe.raw((1, *said))
        except guard.SubjectError as error:
            message = f"an image of {says(said)} is asked for, and it fails: {error.cause.message[:160]}"
            case = {"x": [1, probe.dim, *said]}
            help_ = "Make a row for each row of the largest image, and a column for each column."
            findings.causes.append(Cause("learned.table_too_short", message, float(max(said)), case, help_))
            return
        yield said
    for size in dict.fromkeys((first(probe, asked), *SIZES)):
        if size == said:
            continue
        try:
            probe.raw((1, *size))
        except guard.SubjectError:
            continue
        yield size


def first(probe: Probe, asked: Asked) -> Size:
    """Return a size that works, for a table may be of one size of image alone; the usual one if none does."""
    said = grid(asked)
    for size in (*([said] if said else []), *SIZES, *((n, n) for n in range(2, NATIVE + 1))):
        try:
            probe.raw((1, *size))
        except guard.SubjectError:
            continue
        return size
    return SIZES[0]


def _order(seen: list[Seen], probe: Probe, asked: Asked, findings: Findings) -> None:
    """Say which axis of the table follows which of the image, and hold it against an order that is declared."""
    half = probe.dim // 2
    tables = {len(s.follows or ()) for s in seen}
    if tables == {1}:
        goes = {s.taken.lane >= half: (s.follows or ("",))[0] for s in seen}
        found = goes.get(False, "") + goes.get(True, "")
        both = {(s.follows or ("",))[0] for s in seen if s.taken.lane == seen[0].taken.lane}
        if len(both) > 1:
            findings.measured["tables"] = "of rows and of columns, added"
            return
        findings.measured["tables"] = f"lanes below {half} follow {found[:1]}, the others {found[1:]}"
    else:
        found = "".join(seen[0].follows or ())
        findings.measured["tables"] = f"of {' x '.join(map(str, seen[0].taken.shape))}, rows follow {found[:1]}"
    said = "".join(c for c in str(asked.said.get("order") or "").lower() if c.isalpha())
    wanted = {"yx": "yx", "hw": "yx", "rowcol": "yx", "xy": "xy", "wh": "xy", "colrow": "xy"}.get(said)
    if wanted is None and tables != {1} and found == "xy":
        findings.equivalent = "rows of the table follow the columns of the image: another name for its entries"
    if wanted is not None and found in ("yx", "xy") and found != wanted:
        told = findings.measured["tables"]
        message = f"what follows {wanted[0]} is asked for first, and {found[0]} comes first: {told}"
        findings.causes.append(
            Cause(
                "learned.grid.axes_swapped",
                message,
                1.0,
                {"x": [1, probe.dim, *seen[0].size], "order": wanted},
                "Exchange rows and columns of the table, or of the image that it is laid over.",
            )
        )
