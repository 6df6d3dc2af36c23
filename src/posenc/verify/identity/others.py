"""What can be read off code that rotates nothing: slopes, buckets, tables of angles."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from posenc.definitions.bias import alibi
from posenc.encodings.t5 import T5
from posenc.verify.engine.precision import rounded
from posenc.verify.engine.records import Array
from posenc.verify.guard import SubjectError, call
from posenc.verify.identity.identify import Identification
from posenc.verify.identity.rules import fit, snap

HEADS = (8, 12, 6, 20)
RULES: tuple[Literal["authors", "geometric"], ...] = ("authors", "geometric")
REACHES = (*range(2, 1025), *(2**n for n in range(11, 17)))


def slopes(subject: Any) -> Identification:
    """Identify slopes by number of heads: which rule, and how far exponents reach."""
    found: dict[int, Array] = {}
    unknown = []
    for n in HEADS:
        try:
            found[n] = torch.as_tensor(call(subject, n, what=f"slopes({n})")).detach().double().numpy().ravel()
        except (SubjectError, TypeError, ValueError) as error:
            unknown.append(f"slopes of {n} heads: {str(error)[:200]}")
    identified = partial(
        Identification, "slopes_fn", "slopes", measured={"slopes": {n: s.tolist() for n, s in found.items()}}
    )
    last = min(found.get(8, np.zeros(1)), default=0.0)
    top = snap(-float(np.log2(last)), 1e-3) if last > 0 else 8.0
    is_coarse = all((rounded(s, "bfloat16") == s).all() for n, s in found.items() if n != 8)
    for rule in RULES:
        right = {n: -alibi(np.ones(1), np.zeros(1), n_heads=n, slopes=rule, bias_max=top).ravel() for n in found}
        close = 2e-2 if is_coarse else 1e-4
        if found and all(len(s) == n and np.allclose(s, right[n], close, 1e-12) for n, s in found.items()):
            return identified(scaling=rule, parameters={"bias_max": top}, unknown=tuple(unknown))
    unknown.append("the rule of the slopes: neither the authors' nor one geometric series gives them")
    return identified(scaling="other", unknown=tuple(unknown))


def buckets(subject: Any) -> Identification:
    """Identify bucket(key - query): how many, how far they reach, and which side they tell apart."""
    behind = torch.tensor([*range(3000), *(2**n for n in range(12, 20))])
    rel = torch.cat([-behind.flip(0), behind[1:]])
    rows = torch.as_tensor(call(subject, rel, what="bucket(relative_position)")).long()
    n, behind, ahead = int(rows.max()) + 1, rows[rel < 0], rows[rel > 0]
    both = bool((ahead != ahead[0]).any() and (behind != behind[0]).any())
    for direction, distance in (("key - query", -rel), ("query - key", rel)):
        wrong = {reach: _wrong(distance, rows, n, reach, both) for reach in REACHES}
        fits = [reach for reach, count in wrong.items() if count <= min(2, *wrong.values())]
        if fits:
            best = min(fits, key=lambda reach: (reach.bit_count(), len(str(reach).rstrip("0")), reach))
            parameters = {"num_buckets": n, "max_distance": best, "bidirectional": both}
            why = f"max_distance but from {min(fits)} to {max(fits)}: the buckets are the same"
            unknown = (why,) if len(fits) > 1 else ()
            return Identification("bucket_fn", "buckets", direction=direction, parameters=parameters, unknown=unknown)
    why = f"the rule of the buckets: {n} of them, {int(rows.min())} the least, and T5's rule gives others"
    return Identification("bucket_fn", "buckets", unknown=(why,), measured={"num_buckets": n, "bidirectional": both})


def _wrong(distance: Tensor, rows: Tensor, n: int, reach: int, both: bool) -> int:
    """Return how many distances T5's rule puts elsewhere; float32 misses a few where a bucket begins."""
    try:
        rule = T5(n_heads=1, n_buckets=n, max_distance=reach, bidirectional=both)
    except ValueError:
        return len(rows)
    return int((rule.bucket(distance) != rows).sum())


def mrope(subject: Any) -> Identification:
    """Identify angles(position_ids (3, seq)): which axis each pair follows, and the base."""
    far = 2**13
    ids = torch.cat([torch.zeros(3, 1, dtype=torch.int64), far * torch.eye(3, dtype=torch.int64)], 1)
    got = call(subject, ids, what="angles(position_ids)").detach().double().numpy()
    if got.ndim != 2 or len(got) != 4:
        return Identification("mrope_fn", unknown=(f"a table of shape {got.shape}; it should be (seq, pairs)",))
    return _angles("mrope_fn", got[0], np.abs(got[1:] - got[0]) / far, ("time", "height", "width"))


def rope2d(subject: Any) -> Identification:
    """Identify table(h, w): which pairs follow x and which y, and the base."""
    h, w = 5, 7
    got = call(subject, h, w, what=f"table({h}, {w})").detach().double().numpy()
    if got.ndim != 2 or len(got) != h * w:
        return Identification("rope2d_table_fn", unknown=(f"a table of shape {got.shape}; it should be (35, pairs)",))
    moved = np.stack([np.abs(got[w - 1] - got[0]) / (w - 1), np.abs(got[(h - 1) * w] - got[0]) / (h - 1)])
    return _angles("rope2d_table_fn", got[0], moved, ("x", "y"))


def _angles(name: str, start: Array, moved: Array, axes: tuple[str, ...]) -> Identification:
    """Return which axis each pair follows, by what one step along each axis adds, (axes, pairs)."""
    follows, freq = moved.argmax(0), moved.max(0)
    changes = np.r_[True, np.diff(follows) != 0]
    section = [int((follows == axis).sum()) for axis in range(len(axes))]
    is_in_turn = int(changes.sum()) > len(axes)
    order = "taking turns" if is_in_turn else f"in blocks: {', '.join(axes[axis] for axis in follows[changes])}"
    unknown = []
    if ((moved > 1e-9 + 1e-6 * freq).sum(0) != 1).any():
        unknown.append("one axis for each pair: some follow several")
    if np.abs(start).max(initial=0.0) > 1e-6:
        unknown.append("nothing more of the origin than that position 0 has angles of its own")
    rule = fit(freq, 1e-10, 2 * len(freq))
    if rule.base is None:  # the frequencies of each axis may begin again
        part = freq[follows == follows[0]]
        rule = fit(part, 1e-10, 2 * len(part))
    return Identification(
        name,
        "angles",
        base=rule.base,
        scaling=rule.kind,
        parameters={
            "axes": f"sections {section} of ({', '.join(axes)}), {order}",
            "section": section,
            **rule.parameters,
        },
        unknown=(*unknown, *rule.unknown),
        measured={"pairs": len(freq), "frequencies": freq.tolist()},
    )


KINDS: dict[str, Callable[[Any], Identification]] = {
    "slopes_fn": slopes,
    "bucket_fn": buckets,
    "mrope_fn": mrope,
    "rope2d_table_fn": rope2d,
}
