"""Attention as a whole: weights are read off its outputs, and with them scores, up to one number a row."""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from posenc.verify import guard
from posenc.verify.decoding.faults import RULES
from posenc.verify.decoding.scores import Setting, backwards, scores, setting
from posenc.verify.report import Cause, Findings

SEEN = 1e-30  # weights below it have no logarithm in float32
TOLERANCE = 2e-3  # of a score; a wrong position moves one by tenths
EQUAL = 0.01  # of a tolerance: faults that leave no more than rounding are equals, of which the first is named
_POSITIONS = (0, 1, 2, 3, 5, 8, 9, 13, 17, 22)  # neither evenly spaced nor from the index
_FAR = (900, 901, 1003, 1290, 1291, 1500, 1777, 1778, 2049, 2101)


@dataclass(frozen=True)
class Seen:
    """What one call shows: logarithms of its weights (batch, heads, n, n), and where they can be seen."""

    q: Tensor
    k: Tensor
    positions: Tensor
    logs: Tensor
    shown: Tensor


def check(subject: Any, spec: Mapping[str, Any]) -> Findings:
    """Hold the scores of attention(q, k, v, positions) against those of the encoding that is asked for.

    Where nobody says how lanes are paired, either way will do.
    """
    found = _check(subject, spec)
    if not found.causes or spec.get("layout") or spec.get("config") or spec.get("encoding") not in ("rope", "xpos"):
        return found
    other = _check(subject, {**spec, "layout": "interleaved"})
    vague = found.causes[0].code.endswith("mismatch") or found.causes[0].code == "rope.layout.wrong_pairing"
    named = other.causes and not other.causes[0].code.endswith("mismatch")
    return other if not other.causes or (vague and named) else found


def _check(subject: Any, spec: Mapping[str, Any]) -> Findings:
    found = Findings()
    asked = setting(spec)
    here = replace(asked, heads=_heads(subject, asked))
    near = [_look(subject, here, p, seed) for p, seed in ((_POSITIONS, 1), (range(7), 2))]
    found.causes = [c for s in near if (c := _of_weights(s, spec))][:1]
    if found.causes:
        return found
    found.measured = {"causal": _causal(near[0]), "heads": here.heads}
    found.definitions.append(f"{here.encoding or 'attention'}@{here.definition}")
    if here.encoding not in RULES:
        found.unknown = (
            f"Scores of the encoding that the spec names ({here.encoding!r}) are not known here; "
            f"known are {', '.join(RULES)}. {_invariance(subject, here)}"
        )
        return found
    calls = [*near, *(_far(subject, here, spec.get("max_positions")) if here.far else [])]
    found.measured["farthest_position"] = int(max(s.positions.max() for s in calls))
    scale, error = _fit(here, calls)
    if error <= 1:
        found.measured["score_scale"] = scale
        expected = here.scale
        if abs(scale / expected - 1) > 1e-3:
            found.unknown = (
                f"The scores have the right shape but are {scale / expected:.4g} times as large as {expected:.4g} q.k "
                "with this encoding: a gain and another softmax scale look alike here."
            )
        return found
    if here.encoding == "rope" and all(_with(backwards, here, s) <= 1 for s in calls):
        found.equivalent = (
            "Both q and k turn the other way, (x, y) to (x cos + y sin, y cos - x sin): scores are those of weights "
            "with every second lane negated. Weights trained with the usual direction must not be loaded into it."
        )
        return found
    found.causes = [_cause(subject, here, calls, error)]
    return found


def _heads(subject: Any, here: Setting) -> int:
    """Return how many heads the call takes: as told, else the first number that runs."""
    if here.told_heads:
        return here.heads
    for heads in (here.heads, 4, 8, 2, 1):
        with contextlib.suppress(guard.SubjectError):
            _look(subject, replace(here, heads=heads), range(5), 1)
            return heads
    return here.heads


def _look(subject: Any, here: Setting, positions: Iterable[int], seed: int) -> Seen:
    """Call with unit vectors as values, as many at a time as the values have lanes, and take logarithms."""
    p = torch.tensor(list(positions))
    n, d = len(p), here.head_dim
    g = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(2, here.heads, n, d, generator=g) for _ in range(2))
    columns = []
    for begin in range(0, n, d):
        v = torch.zeros(2, here.heads, n, d)
        for lane, j in enumerate(range(begin, min(begin + d, n))):
            v[:, :, j, lane] = 1
        out = _call(subject, q, k, v, p)
        columns.append(out[..., : min(d, n - begin)])
    weights = torch.cat(columns, -1).double()
    return Seen(q.double(), k.double(), p, weights.clamp(min=1e-300).log(), weights > SEEN)


def _far(subject: Any, here: Setting, told: int | None) -> list[Seen]:
    """Look at positions far out: as far as is told, or else as far as the call goes, for a table may have its end."""
    last = _FAR[-1]
    for end in (min(int(told) - 1, last),) if told else (last, 1023, 511, 255):
        if end <= _POSITIONS[-1]:
            return []
        try:
            return [_look(subject, here, sorted({p * end // last for p in _FAR}), 3)]
        except guard.SubjectError as error:
            if told or error.cause.code != "subject.raises":
                raise
    return []


def _call(subject: Any, q: Tensor, k: Tensor, v: Tensor, p: Tensor) -> Tensor:
    """Call with positions (seq,), or (batch, seq) where these are refused."""
    what = f"attention(q, k, v of {tuple(q.shape)}, positions of ({len(p)},))"
    try:
        out = guard.call(subject, q, k, v, p, what=what)
    except guard.SubjectError as error:
        if error.cause.code != "subject.raises":
            raise
        try:
            out = guard.call(subject, q, k, v, p.expand(len(q), -1), what=what)
        except guard.SubjectError:
            raise error from None
    if isinstance(out, tuple) and out:
        out = out[0]
    return guard.shaped(out, tuple(v.shape), what)


def _of_weights(s: Seen, spec: Mapping[str, Any]) -> Cause | None:
    """Look at the weights themselves: whether rows add up to one, and nothing ahead is seen where that is asked."""
    sums = torch.where(s.shown, s.logs.exp(), 0.0).sum(-1)
    off = float((sums - 1).abs().max())
    if off > 1e-3:
        row = tuple(int(i) for i in ((sums - 1).abs() == (sums - 1).abs().max()).nonzero()[0])
        message = f"The weights of a query do not add up to 1 (row {row[-1]}: {float(sums[row]):.4g}): no means of v."
        return Cause("attention.weights", message, off, {"row": row[-1]}, "Take a softmax over the keys.")
    if spec.get("causal") is True and not _causal(s):
        message = "A query gives weight to keys ahead of it, though the spec says causal."
        worst = float(torch.where(s.shown, s.logs.exp(), 0.0).triu(1).max())
        return Cause("attention.not_causal", message, worst, {"seq": 2}, "Mask keys ahead of the query.")
    return None


def _causal(s: Seen) -> bool:
    return not bool(s.shown.triu(1).any())


def _invariance(subject: Any, here: Setting) -> str:
    """Say whether scores stay when all positions move, which needs no definition."""
    one, other = (_look(subject, here, [p + c for p in _POSITIONS], 1) for c in (0, 11))
    moved = float((torch.where(one.shown & other.shown, one.logs - other.logs, 0.0)).abs().max())
    stay = moved < TOLERANCE
    return (
        f"Moving all positions by 11 {'leaves all weights as they are' if stay else f'changes them (by {moved:.2g})'}."
    )


def _fit(here: Setting, calls: list[Seen]) -> tuple[float, float]:
    """Return the scale of q.k that fits best, and the largest error in tolerances.

    The scale is fitted because it is no part of the encoding; a bias is not scaled.
    """
    parts = [(s, *scores(here, s.q, s.k, s.positions)) for s in calls]
    best = (here.scale, float("inf"))
    for scale in dict.fromkeys((here.scale, _least_squares(parts))):
        error = max(_apart(s, scale * product + bias) for s, product, bias in parts)
        if error < best[1]:
            best = (scale, error)
    return best


def _least_squares(parts: list[tuple[Seen, Tensor, Tensor]]) -> float:
    above = below = 0.0
    for s, product, bias in parts:
        x, y = _rowless(product, s.shown), _rowless(s.logs - bias, s.shown)
        above, below = above + float((x * y).sum()), below + float((x * x).sum())
    return above / below if below else 1.0


def _rowless(t: Tensor, shown: Tensor) -> Tensor:
    """Take the mean of what is seen from each row: a softmax does not see it."""
    kept = torch.where(shown, t, 0.0)
    return torch.where(shown, kept - kept.sum(-1, keepdim=True) / shown.sum(-1, keepdim=True).clamp(min=1), 0.0)


def _apart(s: Seen, wanted: Tensor) -> float:
    """Return the largest difference in tolerances, which grow with the angles of float32 positions."""
    allowed = TOLERANCE + 1e-6 * float(s.positions.max()) + 1e-5 * float(wanted.abs().max())
    return float((_rowless(s.logs, s.shown) - _rowless(wanted, s.shown)).abs().max()) / allowed


def _cause(subject: Any, here: Setting, calls: list[Seen], error: float) -> Cause:
    """Name the known fault that explains all calls."""
    left = [max(_with(fault, here, s) for s in calls) for _, fault, *_ in RULES[here.encoding]]
    least = min(left)
    index = next(i for i, one in enumerate(left) if one <= least + EQUAL)
    case = _smallest(subject, here)
    code, does, mend = (
        f"{here.encoding}.mismatch",
        "are those of no encoding that is known here",
        "Compare with the formula.",
    )
    if least <= 1:
        code, _, does, mend = RULES[here.encoding][index]
    absolute = error * TOLERANCE
    told = f" Smallest case: {case}." if case else ""
    message = f"The scores {does}: off by up to {absolute:.3g} (a constant per row left out).{told}"
    return Cause(code, message, absolute, case, mend)


def _with(fault: Callable[[Setting, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]], here: Setting, s: Seen) -> float:
    """Return the error that is left if the subject has a fault, with the scale as asked or as fitted."""
    product, bias = fault(here, s.q, s.k, s.positions)
    scales = (here.scale, _least_squares([(s, product, bias)]))
    return min(_apart(s, scale * product + bias) for scale in scales)


def _smallest(subject: Any, here: Setting) -> dict[str, Any]:
    """Return the least sequence whose weights differ."""
    for positions in ((0, 1), (1, 3), (0, 5), (0, 1, 2), (0, 2, 7), tuple(_POSITIONS), tuple(_FAR)):
        with contextlib.suppress(guard.SubjectError):
            s = _look(subject, here, positions, 4)
            product, bias = scores(here, s.q, s.k, s.positions)
            if _apart(s, here.scale * product + bias) > 1:
                off = (_rowless(s.logs, s.shown) - _rowless(here.scale * product + bias, s.shown)).abs()
                return {"positions": list(positions), "largest_error": round(float(off.max()), 5)}
    return {}
