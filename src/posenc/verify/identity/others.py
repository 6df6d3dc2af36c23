"""What can be read off code that turns nothing: slopes, buckets, tables of angles."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posenc.verify.engine import Case, Seen
from posenc.verify.families import slopes as series
from posenc.verify.families.bias_calls import invoke
from posenc.verify.families.buckets import T5
from posenc.verify.guard import SubjectError, call
from posenc.verify.identity.fit import fit
from posenc.verify.identity.identify import Identification
from posenc.verify.identity.lines import snap
from posenc.verify.identity.matrix import Array

HEADS = (8, 12, 6, 20)
FAR = (1 << 20, 2000, 500, 120)


def slopes(subject: Any) -> Identification:
    """Identify slopes by number of heads: which rule, and how far exponents reach."""
    found: dict[int, Tensor] = {}
    unknown = []
    for n in HEADS:
        try:
            told = invoke(subject, n, what=f"slopes({n})")
            found[n] = torch.as_tensor(told).detach().double().flatten()
        except (SubjectError, TypeError, ValueError) as error:
            unknown.append(f"slopes of {n} heads: {str(error)[:200]}")
    measured = {"slopes": {n: s.tolist() for n, s in found.items()}}
    last = float(found[8][-1]) if 8 in found and len(found[8]) else 0.0
    if last <= 0:
        unknown.append("how far exponents reach: the last of 8 slopes is not positive")
        return Identification("slopes_fn", "slopes", scaling="other", unknown=tuple(unknown), measured=measured)
    top = snap(-float(np.log2(last)), 1e-3)
    for rule in ("authors", "geometric"):
        model = series.truth({"slopes": rule, "bias_max": top})
        tolerance = 2e-2 if _coarse(found) else 1e-4
        if all(series.alike(s.numpy(), series.slopes_of(model, n), tolerance) for n, s in found.items()):
            parameters = {"bias_max": top}
            return Identification(
                "slopes_fn", "slopes", scaling=rule, parameters=parameters, unknown=tuple(unknown), measured=measured
            )
    unknown.append("the rule of the slopes: neither the authors' nor one geometric series gives them")
    return Identification("slopes_fn", "slopes", scaling="other", unknown=tuple(unknown), measured=measured)


def _coarse(found: dict[int, Tensor]) -> bool:
    return all(torch.equal(s.to(torch.bfloat16).double(), s) for n, s in found.items() if n != 8)


def buckets(subject: Any) -> Identification:
    """Identify bucket(key - query): how many, how far they reach, and which side they tell apart."""
    rel, rows = _buckets(subject)
    behind, ahead = rows[rel < 0], rows[rel > 0]
    n, both = int(rows.max()) + 1, bool((ahead != ahead[0]).any()) and bool((behind != behind[0]).any())
    for turned in (False, True):
        reach = [m for m in _reaches(rel, rows, n, both, turned) if _agrees(rel, rows, n, m, both, turned)]
        if not reach:
            continue
        best = min(reach, key=lambda m: (bin(m).count("1"), len(str(m).rstrip("0")), m))
        unknown = []
        if len(reach) > 1:
            unknown.append(f"max_distance but from {min(reach)} to {max(reach)}: the buckets are the same")
        direction = "key - query" if not turned else "query - key"
        parameters = {"num_buckets": n, "max_distance": best, "bidirectional": both}
        return Identification(
            "bucket_fn", "buckets", direction=direction, parameters=parameters, unknown=tuple(unknown)
        )
    why = f"the rule of the buckets: {n} of them, {int(rows.min())} the least, and T5's rule gives others"
    return Identification("bucket_fn", "buckets", unknown=(why,), measured={"num_buckets": n, "bidirectional": both})


def _buckets(subject: Any) -> tuple[Tensor, Tensor]:
    for far in FAR:
        near = torch.arange(0, min(far, 3000))
        behind = torch.cat([near, 2 ** torch.arange(12, 20)]) if far > 3000 else near
        rel = torch.cat([-behind.flip(0), behind[1:]])
        try:
            seen = T5("bucket_fn", {}).observe(
                subject, Case("near", (rel.double().numpy(),), "bucket(relative_position)")
            )
            return rel, torch.from_numpy(seen.value).long()
        except SubjectError as error:
            if error.cause.code != "subject.raises" or far == FAR[-1]:
                raise
    raise AssertionError


def _agrees(rel: Tensor, rows: Tensor, n: int, top: int, both: bool, reversed_: bool) -> bool:
    rule = T5("bucket_fn", {"num_buckets": n, "max_distance": top, "bidirectional": both})
    model = {**rule.truth, "sign": 1.0 if reversed_ else -1.0}
    case = Case("near", (rel.double().numpy(),))
    return bool((rule.off(Seen(case, rows.double().numpy()), rule.predict(model, case), model) <= 1).all())


def _reaches(rel: Tensor, rows: Tensor, n: int, both: bool, reversed_: bool) -> Iterator[int]:
    """Yield distances from which on all may share the last bucket, those that the first such distance allows."""
    side = n // 2 if both else n
    exact = max(side // 2, 1)
    d = rel if reversed_ else -rel
    last = d[(d > 0) & (rows == side - 1)]
    if side - 1 <= exact or not len(last):
        return
    share, first = (side - 1 - exact) / (side - exact), int(last.min())
    low, high = (exact * (max(at, exact + 1e-9) / exact) ** (1 / share) for at in (first - 1, first))
    low, high = int(low) - 1, int(high) + 1
    step = max(1, (high - low) // 400)
    yield from sorted(
        {*range(max(low, exact + 1), high + 1, step), *(m for m in (64, 128, 256, 512) if low <= m <= high)}
    )


def mrope(subject: Any) -> Identification:
    """Identify angles(position_ids (3, seq)): which axis each pair follows, and the base."""
    n = 64
    ids = torch.zeros(3, 3 * n + 1, dtype=torch.int64)
    steps = 2 ** torch.arange(0, 14)
    ids = torch.cat([torch.zeros(3, 1, dtype=torch.int64)] + [_axis(a, steps) for a in range(3)], 1)
    got = call(subject, ids, what="angles(position_ids)").detach().double().numpy()
    if got.ndim != 2 or len(got) != ids.shape[1]:
        return Identification("mrope_fn", unknown=(f"a table of shape {got.shape}; it should be (seq, pairs)",))
    moved = (got[1:] - got[0]).reshape(3, len(steps), -1) / steps.numpy()[:, None]
    follows, freq = np.abs(moved[:, -1]).argmax(0), np.abs(moved[:, -1]).max(0)
    sections = [int((follows == a).sum()) for a in range(3)]
    runs = 1 + int((np.diff(follows) != 0).sum())
    names = ("time", "height", "width")
    order = ", ".join(names[a] for a in follows[np.r_[True, np.diff(follows) != 0]]) if runs <= 3 else "taking turns"
    single = bool(((np.abs(moved[:, -1]) > 1e-9 + 1e-6 * freq).sum(0) == 1).all())
    axes = f"sections {sections} of (time, height, width), {'in blocks: ' if runs <= 3 else ''}{order}"
    parameters = {"axes": axes, "section": sections, "interleaved": runs > 3}
    return _angles("mrope_fn", freq, got[0], parameters, [] if single else ["one axis a pair: some follow several"])


def _axis(axis: int, steps: Tensor) -> Tensor:
    ids = torch.zeros(3, len(steps), dtype=torch.int64)
    ids[axis] = steps
    return ids


def rope2d(subject: Any) -> Identification:
    """Identify table(h, w): which pairs follow x and which y, and the base."""
    h, w = 5, 7
    got = call(subject, h, w, what=f"table({h}, {w})").detach().double().numpy()
    if got.ndim != 2 or len(got) != h * w:
        return Identification("rope2d_table_fn", unknown=(f"a table of shape {got.shape}; it should be (35, pairs)",))
    right, down = got[w - 1] - got[0], got[(h - 1) * w] - got[0]
    follows = (np.abs(down) / (h - 1) > np.abs(right) / (w - 1)).astype(int)
    freq = np.maximum(np.abs(right) / (w - 1), np.abs(down) / (h - 1))
    half = len(freq) // 2
    said = {(0, 1): "the first half follows x and the second y", (1, 0): "the first half follows y and the second x"}
    halves = (int(follows[0]), int(follows[-1]))
    blocks = bool((follows[:half] == halves[0]).all() and (follows[half:] == halves[1]).all())
    axes = said.get(halves, "all pairs follow one axis") if blocks else "pairs of x and y take turns"
    first = freq[follows == 0] if (follows == 0).any() else freq
    return _angles("rope2d_table_fn", first, got[0], {"axes": axes}, [], len(freq))


def _angles(
    convention: str, freq: Array, start: Array, parameters: dict[str, Any], unknown: list[str], pairs: int | None = None
) -> Identification:
    rule = fit(freq, 1e-10, 2 * len(freq), 2 * len(freq))
    if np.abs(start).max(initial=0.0) > 1e-6:
        unknown.append("nothing more of the origin than that position 0 has angles of its own")
    return Identification(
        convention,
        "angles",
        base=rule.base,
        scaling=rule.kind,
        parameters=parameters | rule.parameters,
        unknown=(*unknown, *rule.unknown),
        measured={"pairs": pairs or len(freq), "frequencies": freq.tolist()},
    )


KINDS: dict[str, Callable[[Any], Identification]] = {
    "slopes_fn": slopes,
    "bucket_fn": buckets,
    "mrope_fn": mrope,
    "rope2d_table_fn": rope2d,
}
