"""Tables of angles over several axes: M-RoPE by sections, and rotations of pictures."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from posenc.verify.guard import call, shaped
from posenc.verify.report import Cause, Findings
from posenc.verify.rotary.matrix import Array

CLOSE = 1e-4  # of a frequency or an angle, as a share or in radians
SIZES = ((3, 5), (4, 2), (1, 6), (7, 1), (19, 40), (70, 3))


def check(subject: Any, convention: str, spec: Mapping[str, Any]) -> Findings:
    """Hold a table of angles against its specification.

    Raises:
        SubjectError: A call fails in a way that is a finding of its own.
        ValueError: The specification says too little.
    """
    return (_mrope if convention == "mrope_fn" else _rope2d)(subject, spec)


def _width(spec: Mapping[str, Any]) -> int:
    width = spec.get("rotary_dim") or spec.get("head_dim") or spec.get("dim")
    if width is None and spec.get("section"):
        width = 2 * sum(spec["section"])
    if width is None:
        raise ValueError("verify: a table of angles needs head_dim in the spec. Give head_dim=64.")
    return int(width)


def _mrope(subject: Any, spec: Mapping[str, Any]) -> Findings:
    """Check angles(position_ids (3, seq)) -> (seq, head_dim / 2): which axis each pair follows, and how fast."""
    n, base = _width(spec) // 2, float(spec.get("base", 10000.0))
    config: dict[str, Any] = spec.get("config") or {}
    section = list(spec.get("section") or (config.get("rope_scaling") or {}).get("mrope_section") or ())
    if len(section) != 3 or sum(section) != n:
        raise ValueError(f"verify: mrope needs section, three counts that add up to {n} pairs; got {section}.")
    far = 1 << 16  # where slow pairs have turned as well
    ids = torch.tensor([[0, 1, 0, 0, 2, 3, far, 0, 0], [0, 0, 1, 0, 5, 1, 0, far, 0], [0, 0, 0, 1, 3, 4, 0, 0, far]])
    what = f"angles(position_ids of shape {tuple(ids.shape)})"
    got = shaped(call(subject, ids, what=what), (ids.shape[1], n), what).detach().double().numpy()
    freq = base ** (-np.arange(n) / n)
    interleaved = bool(spec.get("interleaved", False))
    right = axes(section, n, interleaved=interleaved)
    where = ids.double().numpy()

    def angles(axis: Any, speed: Array = freq) -> Array:
        found: Array = where[axis.astype(int)].T * speed
        return found

    found = Findings(definitions=["mrope interleaved" if interleaved else "mrope"], measured={"pairs": n})
    start = got[0]
    if np.abs(start - start[0]).max() < CLOSE and np.abs(start).max() > CLOSE:
        found.equivalent = "a constant is added to all positions, which no score sees"
    off = _apart(got - start, angles(right))
    if off < CLOSE:
        return found
    for code, says, axis in _other_axes(section, n, interleaved):
        if _apart(got - start, angles(axis)) < CLOSE:
            pair = int(np.flatnonzero(axis != right)[0])
            names = ("time", "height", "width")
            told = f"pair {pair} follows {names[int(axis[pair])]}, and should follow {names[int(right[pair])]}"
            case = {"pair": pair, "axis": names[int(axis[pair])], "wanted": names[int(right[pair])]}
            wrong = float((axis != right).sum())
            found.causes.append(Cause(code, f"{says}: {told}", wrong, case, _HELP))
            return found
    measured = np.stack([got[i + 1] - start for i in range(3)])  # by how much each axis turns each pair
    follows = np.abs(measured).argmax(0)
    single = (np.abs(measured) > CLOSE * freq).sum(0) == 1
    speeds = np.take_along_axis(measured, follows[None], 0)[0]
    if (follows == right).all() and single.all():
        found.causes.append(_speeds("mrope", speeds, freq, base, n))
        return found
    pair = int(np.flatnonzero((follows != right) | ~single)[0])
    message = (
        f"pair {pair} follows axis {int(follows[pair])} of (time, height, width), and should follow {int(right[pair])}"
    )
    case = {"pair": pair, "axis": int(follows[pair]), "wanted": int(right[pair])}
    found.causes.append(Cause("mrope.mismatch", message, off, case, _HELP))
    return found


_HELP = "Give each pair the position of its axis: blocks of the sections in order, or time, height, width in turn."


def axes(section: list[int], n: int, *, interleaved: bool) -> Any:
    """Return which of (time, height, width) each pair follows.

    In blocks: the sections in order (Qwen2-VL). Interleaved: pair i follows height where i % 3 is 1 and i < 3 *
    section[1], width where it is 2 and i < 3 * section[2], else time (Qwen3-VL).
    """
    if not interleaved:
        return np.repeat(np.arange(3), section)
    i = np.arange(n)
    found = np.zeros(n, dtype=int)
    for axis in (1, 2):
        found[(i % 3 == axis) & (i < 3 * section[axis])] = axis
    return found


def _other_axes(section: list[int], n: int, interleaved: bool) -> Iterator[tuple[str, str, Any]]:
    other = axes(section, n, interleaved=not interleaved)
    if interleaved:
        yield "mrope.interleaving_ignored", "sections are blocks; they should take turns", other
        i = np.arange(n)
        yield "mrope.interleaving_unbounded", "axes take turns to the last pair; beyond the sections it is time", i % 3
    else:
        yield "mrope.interleaved_where_blocked", "axes take turns; the sections should be blocks", other
        doubled = np.repeat(np.arange(3), [2 * s for s in section])[:n]
        yield "mrope.section_scale", "sections count lanes; they should count pairs", doubled
        halved = np.resize(np.repeat(np.arange(3), [max(1, s // 2) for s in section]), n)
        yield "mrope.section_scale", "sections are half as long as they should be, and begin again", halved
        tail = np.pad(np.repeat(np.arange(3), [s // 2 for s in section]), (0, n))[:n]
        yield "mrope.section_scale", "sections are half as long as they should be", tail
    right = axes(section, n, interleaved=interleaved)
    for axis, name in enumerate(("time", "height", "width")):
        yield "mrope.axes_collapsed", f"all pairs follow {name}", np.full(n, axis)
    for order in ((0, 2, 1), (1, 0, 2), (2, 1, 0), (1, 2, 0), (2, 0, 1)):
        yield (
            "mrope.section_order",
            f"axes are taken in the order {order} of (time, height, width)",
            np.array(order)[right],
        )
    for order in ((2, 1, 0), (1, 0, 2), (0, 2, 1), (1, 2, 0), (2, 0, 1)):
        yield "mrope.section_order", f"sections lie in the order {order}", np.repeat(order, [section[a] for a in order])
        moved = axes([section[a] for a in order], n, interleaved=interleaved)
        yield "mrope.section_order", f"lengths of the sections are taken in the order {order}", moved
    yield "mrope.section_order", "sections begin at the last pair", right[::-1]


def _rope2d(subject: Any, spec: Mapping[str, Any]) -> Findings:
    """Check table(h, w) -> angles (h*w, head_dim / 2): the first half of the pairs follows x, the second y."""
    n, base = _width(spec) // 2, float(spec.get("base", 10000.0))
    half = n // 2
    freq = base ** (-np.arange(half) / half)
    found = Findings(definitions=["axial_rope"], measured={"pairs": n})
    for h, w in SIZES:
        what = f"table({h}, {w})"
        got = shaped(call(subject, h, w, what=what), (h * w, n), what).detach().double().numpy()
        y, x = (t.ravel().astype(float) for t in np.mgrid[0:h, 0:w])
        cause, same = _picture(got, x, y, freq, (h, w), base)
        if cause is not None:
            found.causes.append(cause)
            return found
        if not same:
            found.equivalent = "a constant is added to the coordinates of all patches, which no score sees"
    return found


def _picture(
    got: Array, x: Array, y: Array, freq: Array, size: tuple[int, int], base: float
) -> tuple[Cause | None, bool]:
    half, (h, w) = len(freq), size

    def angles(first: Array, second: Array, speed: Array = freq) -> Array:
        return np.concatenate((np.outer(first, speed), np.outer(second, speed)), 1)

    def off(table: Array) -> float:
        return _apart(got - got[0], table - table[0])

    right = angles(x, y)
    if off(right) < CLOSE * max(h, w):
        return None, bool(np.abs(got - right).max() < CLOSE * max(h, w))
    help_ = (
        "Row i of the table is patch (y, x) = divmod(i, w): the first half of the pairs turns by x, the second by y."
    )
    case = {"h": h, "w": w}
    flipped_x, flipped_y = (t.ravel().astype(float) for t in np.mgrid[0:w, 0:h])
    full = base ** (-np.arange(half) / (2 * half))
    turns = np.stack((np.outer(x, freq), np.outer(y, freq)), -1)
    both, crossed = turns.reshape(len(x), -1), turns[..., ::-1].reshape(len(x), -1)
    guesses = [
        ("rope2d.axes_swapped", "the first half of the pairs follows y and the second x", angles(y, x)),
        ("rope2d.grid_transposed", "patches are counted column by column", angles(flipped_x, flipped_y)),
        ("rope2d.axes_swapped", "patches are counted down columns of a (w, h) picture", angles(flipped_y, flipped_x)),
        ("rope2d.axis_repeated", "both halves follow x", angles(x, x)),
        ("rope2d.axis_repeated", "both halves follow y", angles(y, y)),
        ("rope2d.flat_index", "pairs follow the patch's number, not its place", angles(y * w + x, y * w + x)),
        ("rope2d.interleaved_axes", "x and y take turns from pair to pair; they should be halves", both),
        ("rope2d.interleaved_axes", "y and x take turns from pair to pair; they should be halves", crossed),
        ("rope2d.frequency.width", "exponents count over all pairs, not half", angles(x, y, full)),
        ("rope2d.square_assumed", "rows have as many patches as columns", angles((y * w + x) % h, (y * w + x) // h)),
        ("rope2d.origin", "y runs from the bottom", angles(x, h - 1 - y)),
        ("rope2d.origin", "x runs from the right", angles(w - 1 - x, y)),
    ]  # fmt: skip
    for code, says, table in guesses:
        if off(table) < CLOSE * max(h, w):
            wrong = float(np.abs(got - got[0] - right + right[0]).max())
            return Cause(code, f"{says} (a picture of {h} x {w})", wrong, case, help_), True
    moved = got - got[0]
    of_x, of_y = (moved[1, 0] / freq[0] if w > 1 else 1.0), (moved[w, half] / freq[0] if h > 1 else 1.0)
    if max(abs(of_x - 1), abs(of_y - 1)) > CLOSE and off(angles(of_x * x, of_y * y)) < CLOSE * max(h, w):
        message = (
            f"a step right counts as {of_x:.4g} and a step down as {of_y:.4g} in a picture of {h} x {w}; both are one"
        )
        return Cause(
            "rope2d.coordinates_wrong", message, float(of_x), case, "Count patches: x = 0 .. w - 1, y = 0 .. h - 1."
        ), True
    speeds = got[1] - got[0] if w > 1 else got[w] - got[0]
    part = speeds[:half] if w > 1 else speeds[half:]
    if (np.abs(part) > 1e-12).all() and _apart(got - got[0], angles(x, y, part) - 0.0) < CLOSE * max(h, w):
        return _speeds("rope2d", part, freq, base, half), True
    wrong = float(np.abs(got - got[0] - right + right[0]).max())
    row, pair = (int(i) for i in np.unravel_index(int(np.abs(got - got[0] - right + right[0]).argmax()), got.shape))
    message = (
        f"angles are off by up to {wrong:.3g}, at patch {row} of {h} x {w} and pair {pair}, in no way that is known"
    )
    return Cause("rope2d.mismatch", message, wrong, case | {"patch": row, "pair": pair}, help_), True


def _speeds(family: str, measured: Array, freq: Array, base: float, n: int) -> Cause:
    """Tell pairs that follow the right axis at another speed."""
    i = np.arange(n)
    pair = int(np.abs(measured / freq - 1).argmax())
    told = f"pair {pair} turns by {measured[pair]:.6g} a step where {freq[pair]:.6g} is asked for"
    case = {"pair": pair, "frequency": float(measured[pair]), "wanted": float(freq[pair])}
    guesses = [
        (f"{family}.frequency.exponent_halved", "exponents count over twice as many pairs", base ** (-i / (2 * n))),
        (f"{family}.frequency.exponent_doubled", "exponents count over half of the pairs", base ** (-2 * i / n)),
        (f"{family}.frequency.inverted", "frequencies rise from pair to pair", base ** (i / n)),
    ]
    for other in (1e4, 1e6, 5e5, 100.0):
        says = f"the base is {other:,.10g} whatever is asked for"
        guesses.append((f"{family}.config.theta_not_read", says, other ** (-i / n)))
    for code, says, speeds in guesses:
        if np.abs(measured / speeds - 1).max() < 1e-3:
            return Cause(code, f"{says}; {told}", float(np.abs(measured / freq - 1).max()), case, "Form base^(-2i/d).")
    return Cause(
        f"{family}.frequency.mismatch", told, float(np.abs(measured / freq - 1).max()), case, "Form base^(-2i/d)."
    )


def _apart(got: Array, want: Array) -> float:
    """Return the largest difference of angles, relative to the size of what is wanted; either direction counts."""
    scale = 0.01 + np.abs(want)  # slow pairs count as much as fast ones
    return float(min((np.abs(got - want) / scale).max(), (np.abs(got + want) / scale).max()))
