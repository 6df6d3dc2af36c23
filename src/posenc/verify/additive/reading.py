"""What can be read off a code that no known fault explains: its positions row by row, its lanes, its base."""

import functools
import math
from dataclasses import replace

import numpy as np
import torch

from posenc.verify.additive.models import EPS, Model, Seen
from posenc.verify.additive.places import Place, Shape, from_table
from posenc.verify.additive.waves import Array

Told = tuple[str, str, str]
_MANY = 8192


def positions(found: Array, model: Model, reach: int, near: int = 0) -> Array | None:
    """Return which position each row (n, d) shows by the model's waves, NaN for zeros, or None where a row fits none.

    Args:
        found: Rows of a code.
        model: Whose rule, base and lanes are used; its positions are not.
        reach: Positions from -reach to reach are tried; where they are many, the first ones, and those around `near`.
        near: The row where it went wrong.
    """
    line = _line(reach) if reach <= _MANY else _places_near(near)
    code, slack = replace(model, place=Place("", lambda s: (line[None],))).predict((1, len(line)))
    return _looked_up(found, code[0], slack[0], line)


def _line(reach: int) -> Array:
    """Return whole numbers from -reach to reach, the smallest first, so that the first fit is the plainest."""
    line = np.arange(-reach, reach + 1, dtype=np.float64)
    return np.asarray(line[np.argsort(np.abs(line) - 0.25 * (line > 0), kind="stable")])


def _places_near(m: int) -> Array:
    """Return where row m may be thought to stand: at the beginning, near itself, or where a number of bits begins."""
    ends = [0, m, -m, *(m - s * 2**bits for bits in (7, 8, 10, 11, 12, 13, 14, 15, 16) for s in (1, 2))]
    whole = np.unique(np.concatenate([_line(64) + end for end in ends]))
    return np.asarray(whole[np.argsort(np.abs(whole), kind="stable")])


def _looked_up(found: Array, code: Array, slack: Array, line: Array) -> Array | None:
    places = []
    for row in found:
        fits = np.flatnonzero((np.abs(code - row) / (slack + 16 * EPS)).max(-1) <= 1)
        if not len(fits) and row.any():
            return None
        places.append(float(line[fits[0]]) if len(fits) else math.nan)
    return np.array(places)


def cells(seen: Seen, model: Model) -> Told | None:
    """Return a fault of an image's rows and columns that was read off cell by cell, or None."""
    told = [_cells(seen, model, shape) for shape in seen if shape[1] != shape[2]]
    wrong = [t for t in told if t is not None and t[0] != "right"]
    return None if None in told or not wrong else wrong[0]


def _cells(seen: Seen, model: Model, shape: Shape) -> Told | None:
    h, w = shape[1:]
    line = _line(2 * h * w + 32)
    read = []
    for axis in (0, 1):
        at = [0 * line[None, :, None], 0 * line[None, :, None]]
        at[axis] = line[None, :, None]
        place = Place("", functools.partial(_given, tuple(at)))
        code, slack = replace(model, place=place).predict(shape)
        mine = slack[0, :, 0].max(0) > 0  # only the lanes of this axis have an angle
        found = _looked_up(
            seen[shape][0].reshape(h * w, -1)[:, mine], code[0, :, 0][:, mine], slack[0, :, 0][:, mine], line
        )
        if found is None or np.isnan(found).any():
            return None
        read.append(found)
    if model.ratio({shape: seen[shape]}) <= 1:
        return "right", "", ""
    return _grid(read[0], read[1], h, w)


def _given(positions: tuple[Array, ...], shape: Shape) -> tuple[Array, ...]:
    return positions


def _grid(y: Array, x: Array, h: int, w: int) -> Told:
    t = np.arange(h * w)
    side = int(x.max() - x.min()) + 1
    pairs = ", ".join(f"({a:g}, {b:g})" for a, b in list(zip(y, x, strict=True))[: w + 2])
    words = f"the cells of {h} x {w}, row by row, have positions {pairs}, ..."
    if (y - y[0] == t // w).all() and (x - x[0] == t % w).all():
        return "start", words, "Count both axes from the first position that was asked for."
    for s in (side, int((y == y[0]).sum())):
        if s and (y - y[0] == t // s).all() and (x - x[0] == t % s).all():
            mend = "Build the grid with the height and the width of this image, never with one side for both."
            return "grid_shape_square", f"{words}: a grid of {s} columns", mend
    if sorted(zip(y, x, strict=True)) == [(a, b) for a in range(h) for b in range(w)]:
        return "grid_flattened_wrong", f"{words}: the right ones on the wrong cells", "Flatten rows first."
    return "position.other", words, "Cell (i, j) has positions i and j."


def by_rows(seen: Seen, model: Model, family: str) -> Told | None:
    """Return a fault of positions that was read off row by row, or None."""
    if family == "sinusoidal2d":
        return None if "/" in model.place.words else cells(seen, model)
    shape = max(seen, key=lambda s: s[-1])
    rows = seen[shape][0]
    if rows.ndim != 2:
        return None
    found = positions(rows, model, max(4 * shape[-1], 128))
    found = positions(rows, model, 6000) if found is None else found
    if found is None:
        return None
    if family == "relative_sinusoid":
        return _distances(found, shape[0])
    if np.isnan(found).any():
        m = int(np.flatnonzero(np.isnan(found))[0])
        code = "table.too_short" if np.isnan(found[m:]).all() and m else "table.row_zeroed"
        return code, f"row {m} is zero", "Fill every row of the table."
    code, words = from_table(found)
    if code == "start" and not all(_starts_at(seen[s][0], model, found[0]) for s in seen):
        code, words = (
            "slice.tail",
            f"the first of {shape[-1]} rows has position {found[0]:g}, and another in other lengths",
        )
    return code, words, "Look at how rows of the table are chosen: row t is that of position t."


def _starts_at(rows: Array, model: Model, first: float) -> bool:
    line = first + np.arange(len(rows), dtype=np.float64)
    code, slack = replace(model, place=Place("", lambda s: (line[None],))).predict((1, len(rows)))
    return bool((np.abs(rows - code[0]) <= slack[0] + 2e-5).all())


def _distances(found: Array, n: int) -> Told | None:
    """Return what distances (2n - 1,) read off a table say."""
    if np.isnan(found).any():
        return "table.row_zeroed", f"row {int(np.isnan(found).argmax())} is zero", "Fill every row of the table."
    words = f"rows have distances {', '.join(f'{p:g}' for p in found[:4])}, ..., where {n - 1}, {n - 2}, ... are right"
    mend = "Cut the rows for n - 1 to -(n - 1) from the table of the longest length: [N - n : N + n - 1]."
    if (np.diff(found) == -1).all():
        return ("off_by_one" if abs(found[0] - n + 1) <= 2 else "slice_of_reversed_table"), words, mend
    if (np.abs(np.diff(found)) == 1).all() and (np.sign(np.diff(found)) != -1).any() and found.min() >= 0:
        return "sign_lost", words, "Give sin(-p * w) to the keys ahead: the sine is odd."
    return "distance.other", words, "Row r holds distance (n - 1) - r."


def permutation(seen: Seen, model: Model) -> list[int] | None:
    """Return the lane of the definition that each lane shows, if all of them occur once, else None."""
    d = next(iter(seen.values())).shape[-1]
    fits = np.ones((d, d), dtype=bool)
    for shape, found in seen.items():
        code, slack = model.predict(shape)
        if code.shape[1:] != found.shape[1:]:
            return None
        for lane in range(d):
            off = np.abs(found[..., lane, None] - code) / (slack + 16 * EPS)
            fits[lane] &= off.reshape(-1, d).max(0) <= 1
    # lanes too slow to be told apart fit several: any assignment of all of them will do
    owner: dict[int, int] = {}
    for lane in range(d):
        if not _give(lane, fits, owner, set()):
            return None
    taken = {lane: target for target, lane in owner.items()}
    return [taken[lane] for lane in range(d)]


def _give(lane: int, fits: Array, owner: dict[int, int], tried: set[int]) -> bool:
    """Give `lane` one of the lanes that it fits, moving others where they can move (augmenting paths)."""
    for target in np.flatnonzero(fits[lane]).tolist():
        if target in tried:
            continue
        tried.add(target)
        if target not in owner or _give(owner[target], fits, owner, tried):
            owner[target] = lane
            return True
    return False


def constant(seen: Seen, model: Model) -> float | None:
    """Return the size of a vector that is added to every row alike, or None where that is not all."""
    extra = None
    for shape, found in seen.items():
        code, _ = model.predict(shape)
        off = (found - code).reshape(-1, found.shape[-1])
        extra = off[0] if extra is None else extra
        if np.abs(off - extra).max() > 1e-5:
            return None
    return None if extra is None else float(np.abs(extra).max())


def base(seen: Seen, model: Model) -> tuple[Model, float, float] | None:
    """Return the model with the base and the first frequency that the rows show, or None where they are no powers.

    Frequencies A * B**-k are a straight line in log; B gives the base of the model's rule, A is 1 by definition.
    """
    lanes, omegas = model.layout.lanes, []
    rows = _line_of_rows(seen, model)
    if rows is None or len(rows) < 3:
        return None
    for k in range(len(lanes) // 2):
        s, c = lanes.index(("s", k)), lanes.index(("c", k))
        z = rows[:, c] + 1j * rows[:, s]
        if np.abs(np.abs(z) - 1).max() > 1e-4:
            return None
        step = float(np.angle(z[1] / z[0]))
        for back in (2, 4, 8, 16, 32):  # longer steps for slow pairs, unwrapped along powers of two
            if back < len(z):
                near = step * back
                step = (near + float(np.angle(z[back] / z[0] / np.exp(1j * near)))) / back
        omegas.append(step)
    return _powers(np.array(omegas), seen, model)


def _line_of_rows(seen: Seen, model: Model) -> Array | None:
    """Return rows of neighbouring positions: a sequence, or the first axis of an image with the lanes of that axis."""
    if all(len(s) == 2 for s in seen):
        return np.asarray(seen[max(seen, key=lambda s: s[-1])][0])
    if not all(len(s) == 3 for s in seen) or "/" in model.place.words or model.join not in {"yx", "xy"}:
        return None
    shape = max(seen, key=lambda s: s[1])
    found, m = seen[shape][0], len(model.layout.lanes)
    return np.asarray(found[:, 0, :m] if model.join == "yx" else found[0, :, :m])


def rounding(seen: Seen, model: Model) -> tuple[str, str, float] | None:
    """Return the step whose rounding to 16 bits explains a code best: a name, words and what is left, or None.

    Args:
        seen: Codes of sequences.
        model: The right one.
    """
    if not all(len(s) == 2 for s in seen):
        return None
    tried: dict[tuple[str, str], float] = {}
    for dtype, short in ((torch.bfloat16, "bf16"), (torch.float16, "fp16")):
        for shape, found in seen.items():
            for (name, words), code in _rounded(model, shape, dtype).items():
                key = f"{name}_{short}", words.format(str(dtype).removeprefix("torch."))
                tried[key] = max(tried.get(key, 0.0), float(np.sqrt(np.mean((found - code) ** 2))))
    (name, words), off = min(tried.items(), key=lambda t: t[1])
    return name, words, off


def _rounded(model: Model, shape: Shape, dtype: torch.dtype) -> dict[tuple[str, str], Array]:
    def short(a: Array) -> Array:
        return np.asarray(torch.from_numpy(np.ascontiguousarray(a)).to(dtype).double().numpy())

    lanes = model.layout.lanes
    p = model.place.at(shape)[0][..., None]
    unit = model.rule.angles(
        np.ones((1, 1)), np.arange(math.ceil(len(lanes) / 2), dtype=np.float64), len(lanes), model.base
    )
    omega = np.array([unit[w[-1] == "c"][0, k] for w, k in lanes])
    cosine = np.array([w[-1] == "c" for w, _ in lanes])

    def wave(angle: Array) -> Array:
        return np.asarray(np.where(cosine, np.cos(angle), np.sin(angle)))

    exact = wave(p * omega)
    return {
        ("positions", "positions are rounded to {}"): wave(short(p) * omega),
        ("frequencies", "frequencies are rounded to {}"): wave(p * short(omega)),
        ("product", "angles are rounded to {}"): wave(short(p * omega)),
        ("positions", "positions and frequencies are rounded to {}"): wave(short(short(p) * short(omega))),
        ("table", "the finished table is rounded to {}"): short(exact),
    }


def _powers(omegas: Array, seen: Seen, model: Model) -> tuple[Model, float, float] | None:
    if len(omegas) < 3 or (omegas <= 0).any():
        return None
    k = np.arange(len(omegas), dtype=np.float64)
    first = float(omegas[0])
    width = len(model.layout.lanes)
    sines, _ = model.rule.angles(np.ones((1, 1)), np.arange(math.ceil(width / 2), dtype=np.float64), width, math.e)
    exponents = -np.log(sines[0])[: len(k)]  # of the base, pair by pair
    for i in range(1, len(k)):
        found = math.exp(-math.log(omegas[i] / first) / exponents[i]) if exponents[i] else math.nan
        near = float(f"{found:.4g}")
        for value in (near, found):
            tried = replace(model, base=value)
            plain = replace(tried, place=Place("", lambda s: tuple(first * p for p in model.place.at(s))))
            for one, scale in ((tried, 1.0), (plain, first)):
                if not value > 0 or not math.isfinite(value) or not _fits(omegas, scale * value**-exponents):
                    continue
                if one.ratio(seen, EPS, 4.0) <= 4:
                    return one, value, scale
    return None


def _fits(omegas: Array, line: Array) -> bool:
    """Say whether frequencies are those of a line: slow ones change a code too little to refute a wrong one."""
    seen = line < math.pi
    return bool((np.abs(omegas - line)[seen] <= 1e-3 * line[seen] + 2e-8).all())
