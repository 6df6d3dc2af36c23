"""Tables of angles over several axes: M-RoPE by sections, and rotations of pictures."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from posenc.verify.guard import SubjectError, call, shaped
from posenc.verify.report import Cause, Findings
from posenc.verify.rotary import pictures
from posenc.verify.rotary.matrix import Array
from posenc.verify.rotary.speeds import CLOSE, apart, speeds, width


def check(subject: Any, convention: str, spec: Mapping[str, Any]) -> Findings:
    """Hold a table of angles against its specification.

    Raises:
        SubjectError: A call fails in a way that is a finding of its own.
        ValueError: The specification says too little.
    """
    return (_mrope if convention == "mrope_fn" else pictures.check)(subject, spec)


def _mrope(subject: Any, spec: Mapping[str, Any]) -> Findings:
    """Check angles(position_ids (3, seq)) -> (seq, head_dim / 2): which axis each pair follows, and how fast."""
    n, base = width(spec) // 2, float(spec.get("base", 10000.0))
    section, interleaved = _section(spec, n), bool(spec.get("interleaved", False))
    ids, got = _angles(subject, n, spec.get("max_positions"))
    freq, where = base ** (-np.arange(n) / n), ids.double().numpy()
    found = Findings(definitions=["mrope interleaved" if interleaved else "mrope"], measured={"pairs": n})
    start = got[0]
    if np.abs(start - start[0]).max() < CLOSE and np.abs(start).max() > CLOSE:
        found.equivalent = "a constant is added to all positions, which no score sees"
    right = axes(section, n, interleaved=interleaved)
    off = apart(got - start, where[right.astype(int)].T * freq)
    if off >= CLOSE:
        other = _by_other_axes(got - start, where, freq, right, _other_axes(section, n, interleaved))
        other = other or _by_rounding(got - start, where[right.astype(int)].T, freq)
        other = other or _by_restart(got - start, where[right.astype(int)].T, right, base)
        found.causes.append(other or _by_pair(got - start, freq, right, base, off))
    return found


def _angles(subject: Any, n: int, told: int | None) -> tuple[torch.Tensor, Array]:
    """Return position ids and their angles: as far as is told, or as far as the call goes, which may have its end.

    Raises:
        SubjectError: A call fails otherwise, or before where it is told to go.
    """
    for end in (told,) if told else (_FAR + 1, 4096, 512, 64):
        ids = torch.tensor([axes for axes in _IDS if max(axes) < end]).T.contiguous()
        what = f"angles(position_ids of shape {tuple(ids.shape)}, up to {int(ids.max())})"
        try:
            return ids, shaped(call(subject, ids, what=what), (ids.shape[1], n), what).detach().double().numpy()
        except SubjectError as error:
            if told or end == 64 or error.cause.code != "subject.raises":
                raise
    raise AssertionError("the last returns or raises")


def _section(spec: Mapping[str, Any], n: int) -> list[int]:
    """Return how many pairs each axis has, of the specification or its configuration."""
    config: dict[str, Any] = spec.get("config") or {}
    section = list(spec.get("section") or (config.get("rope_scaling") or {}).get("mrope_section") or ())
    if len(section) != 3 or sum(section) != n:
        raise ValueError(f"verify: mrope needs section, three counts that add up to {n} pairs; got {section}.")
    return section


def _by_other_axes(
    moved: Array, where: Array, freq: Array, right: Any, others: Iterator[tuple[str, str, Any]]
) -> Cause | None:
    """Tell pairs that follow other axes in a known way."""
    for code, says, axis in others:
        if apart(moved, where[axis.astype(int)].T * freq) < CLOSE:
            pair = int(np.flatnonzero(axis != right)[0])
            names = ("time", "height", "width")
            told = f"pair {pair} follows {names[int(axis[pair])]}, and should follow {names[int(right[pair])]}"
            case = {"pair": pair, "axis": names[int(axis[pair])], "wanted": names[int(right[pair])]}
            return Cause(code, f"{says}: {told}", float((axis != right).sum()), case, _HELP)
    return None


def _by_rounding(moved: Array, where: Array, freq: Array) -> Cause | None:
    """Tell positions that are rounded to half precision; `where` (seq, pairs): the position of each pair's axis."""
    for dtype, name in ((torch.bfloat16, "bf16"), (torch.float16, "fp16")):
        near = torch.from_numpy(np.ascontiguousarray(where)).to(dtype).double().numpy()
        if apart(moved, near * freq) < CLOSE:
            at = where[near != where].min()
            message = f"positions are rounded to {str(dtype)[6:]}: {at:g} counts as {near[where == at][0]:g}"
            case = {"position": int(at)}
            return Cause(f"mrope.precision.positions_{name}", message, float(at), case, "Form angles in float32.")
    return None


def _by_restart(moved: Array, where: Array, right: Any, base: float) -> Cause | None:
    """Tell frequencies that begin again at 1 with each axis; `right` (pairs): the axis of each pair."""
    n = len(right)
    number = np.array([(right[:i] == axis).sum() for i, axis in enumerate(right)])
    lengths = np.array([(right == axis).sum() for axis in right])
    for says, freq in (
        ("exponents still count over all pairs", base ** (-number / n)),
        ("exponents count over the pairs of the axis", base ** (-number / lengths)),
    ):
        if apart(moved, where * freq) < CLOSE:
            pair = int(np.flatnonzero(number != np.arange(n))[0])
            wanted = float(base ** (-pair / n))
            message = (
                f"frequencies begin again with each axis, and {says}: pair {pair} turns by {freq[pair]:.6g} a step "
                f"where {wanted:.6g} is asked for"
            )
            case = {"pair": pair, "frequency": float(freq[pair]), "wanted": wanted}
            help_ = "Form base^(-2i/d) once over all pairs; sections choose the position alone, not the frequency."
            return Cause("mrope.frequency.restart", message, float(pair), case, help_)
    return None


def _by_pair(moved: Array, freq: Array, right: Any, base: float, off: float) -> Cause:
    """Tell which pair follows another axis, or turns at another speed where none does."""
    measured = moved[1:4]  # by how much a step along each axis turns each pair
    follows = np.abs(measured).argmax(0)
    single = (np.abs(measured) > CLOSE * freq).sum(0) == 1
    if (follows == right).all() and single.all():
        return speeds("mrope", np.take_along_axis(measured, follows[None], 0)[0], freq, base, len(freq))
    pair = int(np.flatnonzero((follows != right) | ~single)[0])
    message = (
        f"pair {pair} follows axis {int(follows[pair])} of (time, height, width), and should follow {int(right[pair])}"
    )
    case = {"pair": pair, "axis": int(follows[pair]), "wanted": int(right[pair])}
    return Cause("mrope.mismatch", message, off, case, _HELP)


_FAR = 1 << 15  # where slow pairs have turned as well
# (time, height, width): each axis alone, then mixed, far, and at places that half precision does not hold
_IDS = (
    *((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (2, 5, 3), (3, 1, 4)),
    *((_FAR, 0, 0), (0, _FAR, 0), (0, 0, _FAR), (257, 0, 0), (0, 515, 0), (0, 0, 1031), (4097, 2051, 8203)),
)
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
