"""What can be read off a sinusoid that no known fault explains: a factor, positions row by row, frequencies."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from posenc.verify.engine import Case, Fault, Seen, precision
from posenc.verify.engine.read import base_of, known
from posenc.verify.engine.records import FLOAT32, Array, Model
from posenc.verify.families.added_faults import STAGES, WIDTHS, layouts

if TYPE_CHECKING:
    from posenc.verify.families.added import Sinusoid

MANY = 8192  # positions that are tried one by one
MOST = 800_000  # numbers of their codes


def line(reach: int) -> Array:
    """Return whole numbers from -reach to reach, the smallest first, so that the first fit is the plainest."""
    numbers = np.arange(-reach, reach + 1, dtype=np.float64)
    ordered: Array = numbers[np.argsort(np.abs(numbers) - 0.25 * (numbers > 0), kind="stable")]
    return ordered


def _around(m: int) -> Array:
    """Return where row m may be thought to stand: at the beginning, near itself, or where a number of bits begins."""
    ends = [0, m, -m, *(m - s * 2**bits for bits in (7, 8, 10, 11, 12, 13, 14, 15, 16) for s in (1, 2))]
    whole = np.unique(np.concatenate([line(64) + end for end in ends]))
    ordered: Array = whole[np.argsort(np.abs(whole), kind="stable")]
    return ordered


def positions(family: "Sinusoid", rows: Array, model: Model, reach: int, near: int = 0) -> Array | None:
    """Return the position that each row shows, NaN for zeros; None where a row fits none.

    Args:
        family: Whose waves are read.
        rows: Rows of one text (n, d).
        model: Its positions are not used.
        reach: Positions from -reach to reach are tried; where they are many, the first ones and those around `near`.
        near: The first wrong row.
    """
    tried = line(min(reach, MOST // family.calls.dim)) if reach <= MANY else _around(near)
    code, slack = family.code(model, (tried[None],))
    return look_up(rows, model["gain"] * code[0], slack[0], tried)


def look_up(rows: Array, code: Array, slack: Array, tried: Array) -> Array | None:
    """Return for each row the first of the tried positions whose code it is, NaN for zeros; None where one has none."""
    found = []
    for row in rows:
        fits = np.flatnonzero((np.abs(code - row) / (slack + 16 * FLOAT32)).max(-1) <= 1)
        if not len(fits) and row.any():
            return None
        found.append(float(tried[fits[0]]) if len(fits) else math.nan)
    return np.array(found)


def growth(places: Array) -> tuple[str, str]:
    """Return what rows that are not one after the other do: a code without the family, and words.

    Args:
        places: The position, or the row of a table, of each token; NaN for zeros.

    >>> growth(np.array([0.0, 1, 2, 3, 0, 1]))
    ('table.growth_ignores_past', 'row 4 has position 0: the count starts again there')
    """
    empty = np.flatnonzero(np.isnan(places))
    if len(empty):
        m = int(empty[0])
        ends = m and np.isnan(places[m:]).all()
        return ("table.too_short", f"rows from {m} on are zero") if ends else ("table.row_zeroed", f"row {m} is zero")
    steps = np.diff(places)
    breaks = np.flatnonzero(steps != 1)
    if not len(breaks):
        return "start", f"row t has position t + {places[0]:g}"
    if not steps.any():
        return "slice.single_row", f"every row has position {places[0]:g}"
    m = int(breaks[0]) + 1
    row = f"row {m} has position {places[m]:g}"
    if len(steps) > m - 1 and not steps[m - 1 :].any() and places[m] == places[m - 1]:
        return "table.too_short", f"rows from {m} on all have position {places[-1]:g}: the last row is repeated"
    if (steps == steps[0]).all():
        return "position.stride", f"row t has position {places[0]:g} + {steps[0]:g} t"
    if m > 1 and places[m] == places[0]:
        return "table.growth_ignores_past", f"{row}: the count starts again there"
    if m > 1 and places[m] == -m and m.bit_count() == 1:
        return "position.wrapped", f"{row}: positions are formed in {m.bit_length()} bits"
    if m > 1 and steps[m - 1] in (0, 2) and (np.delete(steps, m - 1) == 1).all():
        word, code = ("skipped", "table.row_skipped") if steps[m - 1] == 2 else ("given twice", "table.row_repeated")
        return code, f"{row}: position {places[m] - (steps[m - 1] == 2):g} is {word}"
    if len(breaks) == 1:
        return "table.growth_ignores_past", f"{row}: the count starts again there"
    return "position.other", f"rows have positions {', '.join(f'{p:g}' for p in places[:8])}, ..."


def permutation(family: "Sinusoid", near: Sequence[Seen], model: Model) -> list[int] | None:
    """Return the dimension of the definition that each one shows, if all of them occur once, else None."""
    d = family.calls.dim
    fits = np.ones((d, d), dtype=bool)
    for s in near:
        code, slack = family.rows(model, s.case)
        if code.shape != s.value.shape:
            return None
        for lane in range(d):
            fits[lane] &= (np.abs(s.value[:, lane, None] - code) / (slack + 16 * FLOAT32)).max(0) <= 1
    owner: dict[int, int] = {}  # slow dimensions fit several: any assignment of all will do
    if not all(_give(lane, fits, owner, set()) for lane in range(d)):
        return None
    taken = {lane: target for target, lane in owner.items()}
    return [taken[lane] for lane in range(d)]


def _give(lane: int, fits: Any, owner: dict[int, int], tried: set[int]) -> bool:
    """Give a dimension one of those that it fits, moving others where they can move (augmenting paths)."""
    for target in np.flatnonzero(fits[lane]).tolist():
        if target in tried:
            continue
        tried.add(target)
        if target not in owner or _give(owner[target], fits, owner, tried):
            owner[target] = lane
            return True
    return False


def near_ones(seen: Sequence[Seen]) -> list[Seen]:
    """Return the answers to calls of few tokens on fresh objects."""
    return [s for s in seen if s.case.kind == "near"]


def by_model(family: "Sinusoid", wrong: Sequence[Seen], models: Sequence[Model]) -> Fault | None:
    """Return what wrong answers show by the first model that reads something off them."""
    near = near_ones(wrong)
    for some in filter(None, (near, near[:-1])):  # a branch for longer texts may be wrong as well
        for model in models:
            found = (
                factor(family, some, model)
                or family.read_places(some, model)
                or vector(family, some, model)
                or frequencies(family, some, model)
            )
            if found is not None:
                return found
    return None


def factor(family: "Sinusoid", near: Sequence[Seen], model: Model) -> Fault | None:
    """Return a factor on the whole code."""
    largest = max(near, key=lambda s: s.value.size)
    code = family.rows(model, largest.case)[0]
    gain = float((code * largest.value).sum() / max(float((code * code).sum()), 1e-30))
    if abs(gain) < 1e-6 or not family.fits({**model, "gain": gain}, near):
        return None
    twice = abs(gain - 2) < 1e-3
    return Fault(f"sinusoidal.{'added_twice' if twice else 'scaled'}", {"gain": gain}, {"factor": gain})


def vector(family: "Sinusoid", near: Sequence[Seen], model: Model) -> Fault | None:
    """Return one vector that is added to every row."""
    off = [s.value - family.predict(model, s.case) for s in near]
    extra = off[0][0]
    if max(float(np.abs(rows - extra).max()) for rows in off) > 1e-5:
        return None
    size = float(np.abs(extra).max())
    return Fault(f"{family.prefix}.constant_added", {"constant": extra}, {"size": size})


def frequencies(family: "Sinusoid", near: Sequence[Seen], model: Model) -> Fault | None:
    """Return another base, another factor or another divisor of the frequencies."""
    rows = family.neighbours(near, model)
    d = family.width
    omega = None if rows is None or len(rows) < 3 else _frequencies(rows, layouts(d)[model["order"]].lanes)
    if omega is None or len(omega) < 2 or not (omega > 0).all() or model["rule"] not in WIDTHS:
        return None
    first = float(omega[0])
    sure = (omega / first)[: max(int((omega > 1e-2 * first).sum()), 2)]  # slow ones are known less exactly
    base = base_of(sure, WIDTHS[model["rule"]](d), 1e-2)
    if base is None:
        return None
    for value in dict.fromkeys((known(base), float(f"{base:.4g}"), base)):
        for times in (1.0, first):
            change = {"base": value, "factor": times}
            if family.fits({**model, **change}, near, 4.0):
                return _named(family, change, d)
    return None


def _frequencies(rows: Array, lanes: tuple[tuple[str, int], ...]) -> Array | None:
    """Return the radians from row to row of each pair; None where they are no rotations."""
    found = []
    for k in range(len(lanes) // 2):
        z = rows[:, lanes.index(("c", k))] + 1j * rows[:, lanes.index(("s", k))]
        if np.abs(np.abs(z) - 1).max() > 1e-4:
            return None
        step = float(np.angle(z[1] / z[0]))
        for back in (2, 4, 8, 16):  # longer steps for slow pairs, unwrapped along powers of two
            if back < len(z):
                near = step * back
                step = (near + float(np.angle(z[back] / z[0] / np.exp(1j * near)))) / back
        found.append(step)
    return np.array(found)


def _named(family: "Sinusoid", change: Model, d: int) -> Fault:
    """Return the fault of a base and a factor that were read off."""
    asked, base, times = family.asked.base, float(change["base"]), float(change["factor"])
    if abs(times - 1) > 1e-4:
        words = f"{times:.6g} * {base:.6g}**(-2k/d)"
        return Fault("sinusoidal.frequency.factor", change, {"words": words})
    divisor = d * math.log(asked) / math.log(base) if base > 1 else 0.0
    if base != float(f"{base:.1g}") and abs(divisor - round(divisor)) < 1e-3:
        words = f"position / base**(2k/{round(divisor)}), the width being {d}"
        return Fault("sinusoidal.frequency.divisor", change, {"words": words, "other": ""})
    return Fault("sinusoidal.frequency.base", change, {"base": base, "asked": asked})


def of_text(family: "Sinusoid", near: Sequence[Seen], model: Model) -> Fault | None:
    """Return what the positions of the rows of the longest text say."""
    longest = max(near, key=lambda s: s.case.args[0][-1])
    n = longest.case.args[0][-1]
    found = positions(family, longest.value[:n], model, max(4 * n, 128))
    found = positions(family, longest.value[:n], model, 6000) if found is None else found
    if found is None:
        return None
    code, words = growth(found)
    if code == "start" and family.fits({**model, "start": found[0]}, near):
        return family.start_fault(found[0])
    if code == "start":
        starts = [positions(family, s.value[: s.case.args[0][-1]], model, 6000) for s in near]
        if any(start is None for start in starts):
            return None  # another branch is wrong in another way
        code, words = "slice.tail", f"the first of {n} rows has position {found[0]:g}, and another in other lengths"
    return Fault(f"sinusoidal.{code}", {}, {"words": words})


def rounding(family: "Sinusoid", s: Seen, model: Model) -> tuple[Fault, float]:
    """Return the rounding that explains an answer best, and what it leaves."""

    def left(fault: Fault) -> float:
        rest = s.value - family.predict({**model, **fault.change}, s.case)
        return float(np.sqrt(np.mean(rest**2)))

    best = min(precision.faults("sinusoidal", STAGES), key=left)
    return best, left(best)


def first_wrong(family: "Sinusoid", s: Seen, model: Model) -> tuple[Seen, NDArray[np.bool_]]:
    """Return the first wrong call of a case, and which of its rows are wrong."""
    at = 0
    for shape in s.case.args:
        case = Case("near", (shape,), family.calls.words(shape))
        code, slack = family.rows(model, case)
        rows, at = s.value[at : at + len(code)], at + len(code)
        wrong = np.any(np.abs(rows - code) > slack + 2e-5, axis=1)
        if wrong.any():
            break
    return Seen(case, rows), wrong


def far(family: "Sinusoid", s: Seen, model: Model) -> Fault:
    """Return what goes wrong in long texts: tables that end, wrap or start again, coarse positions."""
    call, wrong = first_wrong(family, s, model)
    first, n = int(wrong.argmax()), len(wrong)
    begin = max(first - 40, 0)
    found = positions(family, call.value[begin : first + 40], model, n + 64, near=first)
    code, words = "mismatch", f"rows from {first} on are wrong"
    if found is not None:
        code, words = growth(np.concatenate([np.arange(begin) + model["start"], found]))
    case = {"x": [1, first + 1, family.calls.dim], "row": first}
    if code in ("mismatch", "position.other"):
        fault, left = rounding(family, call, model)
        if left < 0.02 * float(np.abs(call.value - family.predict(model, call.case)).max()):
            return Fault(fault.code, fault.change, fault.values, case)
    return Fault(f"sinusoidal.{code}", {}, {"words": f"{call.case.words}: {words}"}, case)


def again(family: "Sinusoid", s: Seen, model: Model) -> Fault:
    """Return what an object does otherwise after other calls: its table may have grown wrongly."""
    call, wrong = first_wrong(family, s, model)
    shape = call.case.args[0]
    before = s.case.args[: s.case.args.index(shape) + 1]
    case = {"calls": [family.calls.case(one) for one in before]}
    off = float(np.abs(call.value - family.predict(model, call.case)).max())
    what = f"{call.case.words}, after calls of other sizes,"
    if len(shape) == 2:
        n = shape[1]
        text = int(wrong.argmax()) // n
        found = positions(family, call.value[text * n : (text + 1) * n], model, max(4 * n, 128))
        code, words = ("", "") if found is None else growth(found - family.truth["start"])
        if code.startswith("table."):
            return Fault(f"sinusoidal.{code}", {}, {"words": f"{what} gives other rows: {words}"}, case)
    return Fault("sinusoidal.state_kept", {}, {"what": what, "off": off}, case)
