"""Identify code without rotations: slopes, buckets, tables of angles."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from posenc import verify
from posenc.verify.engine.judge import explains
from posenc.verify.engine.observe import observe
from posenc.verify.engine.read import speeds
from posenc.verify.engine.records import Array
from posenc.verify.families.axes import AXES
from posenc.verify.guard import SubjectError, array, call
from posenc.verify.identity import rotation
from posenc.verify.identity.identify import Identification
from posenc.verify.identity.rules import fit, snap
from posenc.verify.report import Cause

REACHES = sorted({m * 2**n for m in (1, 3, 5, 25) for n in range(2, 15)})  # distances from which buckets are shared


def slopes(subject: Any) -> Identification:
    """Identify slopes by the number of heads: their rule, and how far the exponents reach."""
    found = _numbers(subject, 8, rows=8, what="slopes(8)").reshape(8, -1)[:, 0]
    top = snap(-float(np.log2(found[-1])), 1e-3) if found.min() > 0 else 8.0
    for rule in ("authors", "geometric"):
        if _is(subject, "slopes_fn", {"encoding": "alibi", "slopes": rule, "bias_max": top}):
            return Identification("slopes_fn", "slopes", scaling=rule, parameters={"bias_max": top})
    why = "the rule of the slopes: they are neither the authors' nor one geometric series"
    measured = {"slopes": {8: found.tolist()}}
    return Identification("slopes_fn", "slopes", scaling="other", unknown=(why,), measured=measured)


def buckets(subject: Any) -> Identification:
    """Identify bucket(key - query): how many buckets, how far they reach, and which sides they distinguish."""
    distances = torch.tensor([-(2**20), -1, 1, 2**20])
    far, near, ahead, far_ahead = map(int, _numbers(subject, distances, rows=4, what="bucket(4 distances)"))
    found = {"num_buckets": max(far, far_ahead) + 1, "bidirectional": far != near and ahead != far_ahead}
    for direction, sign in (("key - query", 1), ("query - key", -1)):
        for reach in REACHES:
            spec = {"encoding": "t5", **found, "max_distance": reach}
            if reach > found["num_buckets"] // 2 > 0 and _is(lambda rel, s=sign: subject(s * rel), "bucket_fn", spec):
                parameters = {**found, "max_distance": reach}
                return Identification("bucket_fn", "buckets", direction=direction, parameters=parameters)
    why = f"the rule of the {found['num_buckets']} buckets: T5's rule with usual distances gives different ones"
    return Identification("bucket_fn", "buckets", unknown=(why,), measured=found)


def _numbers(subject: Any, *args: Any, rows: int, what: str) -> Array:
    """Return the result of a call as numbers."""
    found = call(subject, *args, what=what)
    numbers = array(found, what)
    if numbers.ndim and len(numbers) == rows and not numbers.is_complex():
        return np.asarray(numbers.double())
    message = f"{what} must return numbers in {rows} rows; got {type(found).__name__}"
    raise SubjectError(Cause("subject.shape", message, 1.0))


def _is(subject: Any, convention: str, spec: dict[str, Any]) -> bool:
    """Return whether a specification predicts all answers of a subject."""
    family = verify.family_of(convention, spec)
    seen = observe(family, subject).seen
    family.look(seen)
    return bool(seen) and explains(family, family.truth, seen)


def mrope(subject: Any) -> Identification:
    """Identify angles(position_ids (3, seq)), or of 4 axes: the axis of each pair, and the base."""
    try:
        return _of_axes(subject, AXES)
    except SubjectError:
        return _of_axes(subject, [f"axis {axis}" for axis in range(4)])


def _of_axes(subject: Any, names: Sequence[str]) -> Identification:
    pos = np.array([0, *(2**power for power in range(14))])  # doubling steps count whole rotations
    ids = np.concatenate([np.outer(unit, pos) for unit in np.eye(len(names), dtype=np.int64)], 1)
    got = _numbers(subject, torch.from_numpy(ids), rows=ids.shape[1], what="angles(position_ids)")
    each = np.exp(1j * got.reshape(len(names), len(pos), -1))
    steps = {name: speeds(pos, z)[0] for name, z in zip(names, each, strict=True)}
    return _angles("mrope_fn", got.reshape(len(pos) * len(names), -1)[0], steps)


def rope2d(subject: Any) -> Identification:
    """Identify table(h, w): the pairs of x and of y, and the base."""
    got = _numbers(subject, 5, 7, rows=35, what="table(5, 7)").reshape(35, -1)
    return _angles("rope2d_table_fn", got[0], {"x": (got[6] - got[0]) / 6, "y": (got[28] - got[0]) / 4})


def of_axes(subject: Any, head_dim: int | None = None) -> Identification:
    """Identify rope(x, positions (batch, seq, axes)): each axis alone is a rotation of some dimensions."""
    for n in (2, 3, 4):
        with suppress(SubjectError):
            return _of_each(subject, n, head_dim)
    return _of_each(subject, 2, head_dim)


def _of_each(subject: Any, n: int, head_dim: int | None) -> Identification:
    def along(axis: int, x: torch.Tensor, pos: torch.Tensor) -> Any:
        ids = torch.zeros(len(x), len(pos), n, dtype=pos.dtype)
        ids[..., axis] = pos
        return subject(x, ids)

    first = rotation.identified(partial(along, 0), "rope_fn", "rope_axes_fn", head_dim)
    width = first.head_dim or 0
    rest = [rotation.identified(partial(along, axis), "rope_fn", "rope_axes_fn", width) for axis in range(1, n)]
    kept = [(one.pairing, one.direction, one.gain, one.measured.get("partner")) for one in (first, *rest)]
    partner = first.measured.get("partner")
    if len(set(kept)) > 1 or partner not in (1, width // 2) or "frequencies" not in first.measured:
        why = f"one rotation of the whole head, or a known pairing: axis 0 has {first.lines()}, {first.unknown}"
        return Identification("rope_axes_fn", unknown=(why,))
    moved = np.zeros((n, width // 2))
    for row, one in zip(moved, (first, *rest), strict=True):
        freq, lane = one.measured["frequencies"], one.first_lane or 0
        place = lane if partner > 1 else lane // 2
        row[place : place + len(freq)] = freq
    answer = _angles("rope_axes_fn", np.zeros(1), {f"axis {axis}": row for axis, row in enumerate(moved)})
    pairing = "half" if partner == width // 2 else "interleaved"
    return replace(answer, head_dim=width, pairing=pairing, direction=first.direction, gain=first.gain)


def _angles(name: str, origin: Array, steps: dict[str, Array]) -> Identification:
    """Return the axis of each pair, from the angles of the origin and of one step along each axis."""
    unknown, moved = [], np.abs(np.stack(list(steps.values())))
    follows, freq, names = moved.argmax(0), moved.max(0), list(steps)
    if np.abs(origin).max(initial=0.0) > 1e-6:
        unknown.append("angles beyond those of steps: the angles at position 0 are not zero")
    if ((moved > 1e-9 + 1e-6 * freq).sum(0) != 1).any():
        unknown.append("one axis for each pair: some pairs follow several axes")
    changes = np.r_[True, np.diff(follows) != 0]
    order = ", ".join(names[axis] for axis in follows[changes])
    section = [int((follows == axis).sum()) for axis in range(len(names))]
    rule, ladder = fit(freq, 1e-10, 2 * len(freq)), "shared"
    parts = [freq[follows == axis] for axis in dict.fromkeys(follows)]
    each = [fit(part, 1e-10, 2 * len(part)) for part in parts if rule.base is None]
    alike = {(one.base, one.kind) for one in each}
    if len(alike) == 1 and each[0].base is not None:  # frequencies start again with each axis
        rule, ladder = each[0], "axis"
    elif each and len({len(part) for part in parts}) == 1:  # Pixtral's go to the axes in turn
        whole = fit(np.stack(parts, 1).ravel(), 1e-10, 2 * len(freq))
        rule, ladder = (whole, "dealt") if whole.base is not None else (rule, ladder)
    order = f"in blocks: {order}" if changes.sum() <= len(names) else "alternating"
    words = f"sections {section} of ({', '.join(names)}), {order}"
    return Identification(
        name,
        "angles",
        base=rule.base,
        scaling=rule.kind,
        parameters={"axes": words, "section": section, "ladder": ladder, **rule.parameters},
        unknown=(*unknown, *rule.unknown),
        measured={"pairs": len(freq), "axes": follows.tolist(), "frequencies": freq.tolist()},
    )


KINDS: dict[str, Callable[[Any], Identification]] = {
    "slopes_fn": slopes,
    "bucket_fn": buckets,
    "mrope_fn": mrope,
    "rope2d_table_fn": rope2d,
}
