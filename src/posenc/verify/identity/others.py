"""Identify code without rotations: slopes, buckets, tables of angles."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from posenc import verify
from posenc.verify.engine.judge import explains
from posenc.verify.engine.observe import observe
from posenc.verify.engine.records import Array
from posenc.verify.guard import SubjectError, array, call
from posenc.verify.identity.identify import Identification
from posenc.verify.identity.rules import fit, snap
from posenc.verify.report import Cause

REACHES = sorted({m * 2**n for m in (1, 3, 5, 25) for n in range(2, 15)})  # distances from which buckets are shared


def slopes(subject: Any) -> Identification:
    """Identify slopes by the number of heads: their rule, and how far the exponents reach."""
    found = _numbers(subject, 8, rows=8, what="slopes(8)")
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
    """Identify angles(position_ids (3, seq)): the axis of each pair, and the base."""
    ids = torch.cat([torch.zeros(3, 1, dtype=torch.int64), 2**13 * torch.eye(3, dtype=torch.int64)], 1)
    got = _numbers(subject, ids, rows=4, what="angles(position_ids)").reshape(4, -1)
    steps = (got[1:] - got[0]) / 2**13
    return _angles("mrope_fn", got[0], dict(zip(("time", "height", "width"), steps, strict=True)))


def rope2d(subject: Any) -> Identification:
    """Identify table(h, w): the pairs of x and of y, and the base."""
    got = _numbers(subject, 5, 7, rows=35, what="table(5, 7)").reshape(35, -1)
    return _angles("rope2d_table_fn", got[0], {"x": (got[6] - got[0]) / 6, "y": (got[28] - got[0]) / 4})


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
    rule = fit(freq, 1e-10, 2 * len(freq))
    if rule.base is None:  # the frequencies may start again with each axis
        part = freq[follows == follows[0]]
        rule = fit(part, 1e-10, 2 * len(part))
    order = f"in blocks: {order}" if changes.sum() <= len(names) else "alternating"
    words = f"sections {section} of ({', '.join(names)}), {order}"
    return Identification(
        name,
        "angles",
        base=rule.base,
        scaling=rule.kind,
        parameters={"axes": words, "section": section, **rule.parameters},
        unknown=(*unknown, *rule.unknown),
        measured={"pairs": len(freq), "frequencies": freq.tolist()},
    )


KINDS: dict[str, Callable[[Any], Identification]] = {
    "slopes_fn": slopes,
    "bucket_fn": buckets,
    "mrope_fn": mrope,
    "rope2d_table_fn": rope2d,
}
