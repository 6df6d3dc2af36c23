"""Measure a sinusoid that no known fault explains: a factor, positions, a base, an order of dimensions."""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from posenc.verify.engine import Fault, Seen
from posenc.verify.engine.judge import explains
from posenc.verify.engine.read import known
from posenc.verify.engine.records import FLOAT32, Array, Model

if TYPE_CHECKING:
    from posenc.verify.families.added import Sinusoid

FARTHEST = 6000  # the largest shift of positions that is tried
LEAST = 16 * FLOAT32


def near_ones(seen: Sequence[Seen]) -> list[Seen]:
    """Return the answers to short calls on fresh objects."""
    return [s for s in seen if s.case.kind == "near"]


def _breaks(t: Array, m: int) -> Iterator[tuple[str, str, Array]]:
    """Yield ways in which rows t go wrong from row m on: a code, words, positions (NaN for zeros)."""
    after, again = t >= m, f"row {m} has position 0: the count restarts there"
    yield "table.too_short", f"rows from {m} on are zero", np.where(after, np.nan, t)
    yield "table.too_short", f"rows from {m} on repeat the last one", np.minimum(t, m - 1)
    yield "table.growth_ignores_past", again, np.where(after, t - m, t)
    yield "table.growth_ignores_past", again, t % m
    if m.bit_count() == 1:
        words = f"row {m} has position {-m}: positions are computed in {m.bit_length()} bits"
        yield "position.wrapped", words, np.where(after, t - 2 * m, t)
    for by in (1, -1):
        yield "table.row_skipped", f"row {m} has position {m + by}", t + by * after


def broken(family: "Sinusoid", s: Seen, model: Model) -> Fault | None:
    """Return how the rows of the first wrong text of an answer go wrong after a number of tokens."""
    code, slack = family.rows(model, s.case)
    shape, wrong = s.case.args[-1], np.any(np.abs(s.value - code) > slack + 2e-5, axis=1)
    if len(shape) != 2:
        return None
    text, m = divmod(int(wrong.argmax()), shape[1])
    window = slice(max(m - 8, 0), min(m + 64, shape[1]))
    rows, t = s.value[text * shape[1] :][window], np.arange(float(shape[1]))[window]
    for name, words, at in _breaks(t, m) if m > 1 else ():
        code, slack = (np.nan_to_num(a) for a in family.code(model, (at + model["start"],)))
        if (np.abs(rows - model["gain"] * code) <= slack + LEAST).all():
            case = {"calls": [family.calls.case(one) for one in s.case.args], "row": m}
            return Fault(f"sinusoidal.{name}", {}, {"words": f"{family.calls.words(shape)}: {words}"}, case)
    return None


def shifted(family: "Sinusoid", near: Sequence[Seen], model: Model) -> Fault | None:
    """Return the constant that is added to positions or, if it differs between calls, a table sliced wrongly."""
    reach = float(min(FARTHEST, 400_000 // family.calls.dim))
    tried = np.array(sorted(np.arange(-reach, reach + 1), key=abs))
    code, slack = family.code(model, (tried,) * len(family.positions(family.truth, near[0].case.args[0])))
    shifts = []
    for s in near:
        hits = np.flatnonzero((np.abs(s.value[0] - model["gain"] * code) <= slack + LEAST).all(1))
        if not len(hits):
            return None
        shifts.append(float(tried[hits[0]] - family.positions(family.truth, s.case.args[0])[0].flat[0]))
        if not explains(family, {**model, **family.start_fault(shifts[-1]).change}, [s]):
            return None
    if len(set(shifts)) == 1:
        return family.start_fault(shifts[0])
    at = ", ".join(f"{shift:+g} in {s.case.words}" for s, shift in zip(near[-2:], shifts[-2:], strict=True))
    return Fault(family.cut_wrong, {}, {"words": f"rows are shifted by {at}"})


def empty(family: "Sinusoid", near: Sequence[Seen], model: Model) -> Fault | None:
    """Return the dimensions that get no encoding, if all others are right."""
    none = np.all([np.abs(s.value).max(0) <= LEAST for s in near], axis=0)
    codes = [family.rows(model, s.case) for s in near]
    right = [(np.abs(s.value - code) <= slack + LEAST).all(0) for s, (code, slack) in zip(near, codes, strict=True)]
    if not none.any() or none.all() or not (np.all(right, axis=0) | none).all():
        return None
    first, last = np.flatnonzero(none)[[0, -1]]
    words = f"partly empty: {none.sum()} of {none.size}, between {first} and {last}, get no encoding"
    return Fault("sinusoidal.layout.half_empty", {}, {"words": words})


def scaled(family: "Sinusoid", near: Sequence[Seen], model: Model) -> Fault | None:
    """Return a factor of the whole encoding."""
    code, value = family.rows(model, near[-1].case)[0], near[-1].value
    gain = float((code * value).sum() / max(float((code * code).sum()), 1e-30))
    if abs(gain) < 1e-6 or not explains(family, {**model, "gain": gain}, near):
        return None
    return Fault("sinusoidal.scaled", {"gain": gain}, {"factor": gain})


def base(family: "Sinusoid", near: Sequence[Seen], model: Model) -> Fault | None:
    """Return another base, or another divisor of the exponents."""
    low, high, asked = 1.5, 1e8, model["base"]
    for _ in range(5):
        tried = np.geomspace(low, high, 100)
        off = [np.abs(near[0].value - family.rows({**model, "base": one}, near[0].case)[0]).sum() for one in tried]
        best = int(np.argmin(off))
        low, high = tried[max(best - 1, 0)], tried[min(best + 1, 99)]
    found = float(tried[best])
    for value in (known(found), float(f"{found:.4g}"), found):
        if explains(family, {**model, "base": value}, near):
            divisor = family.width * math.log(asked) / math.log(value)
            if value != float(f"{value:.1g}") and abs(divisor - round(divisor)) < 1e-3:
                words = f"position / base**(2k/{round(divisor)}), the width being {family.width}"
                return Fault("sinusoidal.frequency.divisor", {"base": value}, {"words": words})
            return Fault("sinusoidal.frequency.base", {"base": value}, {"base": value, "asked": asked})
    return None


def permutation(family: "Sinusoid", seen: Sequence[Seen], model: Model) -> list[int] | None:
    """Return for each dimension its index in the definition, if all of them occur once, else None."""
    off = np.zeros((family.calls.dim,) * 2)
    for s in seen:
        code, slack = family.rows(model, s.case)
        some = [len(code) - 1] if s.case.kind == "far" else range(len(code))
        for lane, line in enumerate(off):
            apart = np.abs(s.value[some, lane, None] - code[some]) / (slack[some] + LEAST)
            line[:] = np.maximum(line, apart.max(0, initial=0.0))
    lanes: list[int] = []
    for line in off:  # slow dimensions are alike: use the nearest one left
        line[lanes] = np.inf
        lanes.append(int(line.argmin()))
        if line[lanes[-1]] > 1:
            return None
    return lanes
