"""Attention as a whole: weights are read off its outputs, and with them scores, up to one number a row."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posenc.verify import guard
from posenc.verify.engine import CannotTellError, Case, Choice, Family, Fault, Seen, precision
from posenc.verify.engine.observe import fresh
from posenc.verify.engine.records import Array, Model
from posenc.verify.families.attention_faults import faults, other
from posenc.verify.families.attention_scores import Shown, asked, rowless, scores, truth
from posenc.verify.families.attention_weights import judge_weights, judge_window, reach
from posenc.verify.guard import SubjectError
from posenc.verify.report import Cause

SEEN = 1e-30  # weights below it have no logarithm in float32
TOLERANCE = 2e-3  # of a score; a wrong position moves one by tenths
POSITIONS = (0, 1, 2, 3, 5, 8, 9, 13, 17, 22)  # neither evenly spaced nor from the index
FAR = (900, 901, 1003, 1290, 1291, 1500, 1777, 1778, 2049, 2101)
KNOWN = ("rope", "xpos", "alibi")
LONGEST = 80  # tokens of a call that looks for the end of a window


def family(convention: str, spec: Mapping[str, Any]) -> Family:
    """Return the family of `attention(q, k, v, positions)` for a specification."""
    return Attention(convention, spec)


@dataclass(frozen=True)
class Inputs:
    """What a call got, and what it showed.

    Args:
        q: Queries (batch, heads, n, head_dim), and k alike.
        positions: (n,).
        shown: Where a weight can be seen.
    """

    q: Array
    k: Array
    positions: Array
    shown: Shown


class Attention(Family):
    """Scores of `attention(q, k, v, positions)`, read off its outputs for unit vectors as values."""

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        self.here = asked(spec)
        self.heads = self.here.heads
        self.truth = truth(self.here, spec)
        self.mismatch = f"{self.here.encoding}.mismatch"
        name = {"alibi": "authors", "rope": "roformer"}.get(self.here.encoding, "posenc")
        self.definition = f"{self.here.encoding or 'attention'}@{name}"
        self.window = int(spec.get("window") or 0)
        self.order: tuple[int, ...] | None = None
        self.sink = False
        self.reach = 0
        both = spec.get("bidirectional") is True or spec.get("causal") is False
        self.causal = None if spec.get("causal") is None and not both else not both
        self.inputs: dict[Case, Inputs] = {}

    def cases(self) -> Iterator[Case]:
        """Yield near positions, as many as a window has keys, and far ones, as far as a table goes."""
        yield Case("near", (POSITIONS, 1), f"attention at positions {POSITIONS}")
        longest = max(7, min(self.window + 8, LONGEST))
        yield Case("near", (tuple(range(longest)), 2), f"attention at positions 0..{longest - 1}")
        if self.here.encoding != "rope":
            return
        named, last = self.spec.get("max_positions"), FAR[-1]
        ends = (min(int(named) - 1, last),) if named else (255, 511, 1023, last)
        case: Case | None = None
        for end in (e for e in ends if e > POSITIONS[-1]):
            at = tuple(sorted({p * end // last for p in FAR}))
            case = Case("far", (at, 3), f"attention at positions {at}", not named, case)
        if case is not None:
            yield case

    def observe(self, subject: Any, case: Case) -> Seen:
        """Return the logarithms of the weights (batch, heads, n, n), NaN where they are not seen."""
        if self.heads is None:
            self.heads = self._heads(subject)
        positions, seed = case.args
        n, d = len(positions), self.here.head_dim
        g = torch.Generator().manual_seed(seed)
        q, k = (torch.randn(2, self.heads, n, d, generator=g) for _ in range(2))
        columns = []
        for begin in range(0, n, d):
            v = torch.zeros(2, self.heads, n, d)
            for dimension, j in enumerate(range(begin, min(begin + d, n))):
                v[:, :, j, dimension] = 1
            columns.append(_call(fresh(subject), q, k, v, torch.tensor(positions))[..., : min(d, n - begin)])
        weights = torch.cat(columns, -1).double().numpy()
        shown = weights > SEEN
        judge_weights(weights, shown, causal=bool(self.causal), window=self.window)
        self.sink = self.sink or float(weights.sum(-1).min()) < 1 - 1e-3
        if positions == tuple(range(n)):
            self.reach = reach(shown)
            judge_window(shown, self.window, causal=bool(self.causal))
        self.inputs[case] = Inputs(q.double().numpy(), k.double().numpy(), np.array(positions, float), shown)
        logs = np.log(np.where(shown, weights, 1.0))
        return Seen(case, np.where(shown, logs, np.nan))

    def _heads(self, subject: Any) -> int:
        """Return the first number of heads with which a call runs."""
        for heads in (3, 4, 8, 2, 1):
            self.heads = heads
            with contextlib.suppress(SubjectError):
                self.observe(subject, Case("near", (tuple(range(5)), 1)))
                return heads
        return 3

    def predict(self, model: Model, case: Case) -> Array:
        """Return q.k before any scale, and the bias: (2, batch, heads, n, n)."""
        given = self.inputs[case]
        product, bias = scores(self.here, model, given.q, given.k, given.positions)
        return np.stack(np.broadcast_arrays(product, bias))

    def off(self, seen: Seen, predicted: Array, model: Model) -> Array:
        """Return how far scores are from a prediction, at the scale that is asked for or that fits best."""
        fits = [self._off(seen, s * predicted[0] + predicted[1], model) for s in self._scales(seen, predicted)]
        return min(fits, key=lambda off: float(off.max()))

    def _scales(self, seen: Seen, predicted: Array) -> tuple[float, float]:
        """Return the scale of q.k that is asked for, and the one that fits best: it is no part of the encoding."""
        shown = self.inputs[seen.case].shown
        x, y = rowless(predicted[0], shown), rowless(seen.value - predicted[1], shown)
        fitted = float((x * y).sum() / max((x * x).sum(), 1e-30))
        return self.here.scale, fitted

    def _off(self, seen: Seen, wanted: Array, model: Model) -> Array:
        given = self.inputs[seen.case]
        allowed = TOLERANCE + 1e-6 * given.positions.max() + 1e-5 * np.abs(wanted).max()
        off: Array = np.abs(rowless(seen.value, given.shown) - rowless(wanted, given.shown)) / allowed
        if self.sink and model["sums"]:
            off = np.maximum(off, self._of_sink(seen, wanted, given.shown)[..., None] / (5 * allowed))
        return off

    def _of_sink(self, seen: Seen, wanted: Array, shown: Shown) -> Array:
        """Return how far each row's sum is from one that a constant of its head in the denominator explains."""
        total = np.where(shown, np.exp(np.where(shown, wanted, 0.0)), 0.0).sum(-1)
        row = np.where(shown, seen.value - wanted, 0.0).sum(-1) / np.maximum(shown.sum(-1), 1)
        constant = np.maximum(np.median(np.exp(-row) - total, axis=(0, 2), keepdims=True), 0.0)
        difference: Array = np.abs(row + np.log(total + constant))
        return difference

    def visible(self, value: Array, case: Case) -> Array:
        """Return scores without a constant per row, which a softmax does not see."""
        wanted = self.here.scale * value[0] + value[1] if value.ndim == 5 else value
        return rowless(wanted, self.inputs[case].shown)

    def same(self, seen: Seen, predicted: Array) -> bool:
        """Return whether the scale of the scores is the one that is asked for."""
        return abs(self._scales(seen, predicted)[1] / self.here.scale - 1) <= 1e-3

    def unlike(self, seen: Sequence[Seen]) -> str:
        """Raise: another scale is not judged.

        Raises:
            CannotTellError: Always.
        """
        raise CannotTellError(
            "the scores have the right shape but another size than q.k / sqrt(head_dim) with this encoding: a gain and "
            "another softmax scale look alike here"
        )

    def look(self, seen: Sequence[Seen]) -> None:
        """Refuse an encoding that is not known, and find heads in another order.

        Raises:
            CannotTellError: Scores of the encoding are not known here.
        """
        if self.here.encoding not in KNOWN:
            raise CannotTellError(
                f"scores of the encoding that the specification names ({self.here.encoding!r}) are not known here; "
                f"known are {', '.join(KNOWN)}"
            )
        if self.sink:  # where nothing explains the scores
            self.mismatch = "attention.weights"
        if self.here.encoding == "alibi" and seen:
            self.order = self._order(seen[0])

    def _order(self, seen: Seen) -> tuple[int, ...] | None:
        """Return which head's slope each head has, if all have one of the asked slopes, in another order."""
        heads = seen.value.shape[1]
        fits = []
        for shift in range(heads):
            order = tuple((h + shift) % heads for h in range(heads))
            off = self.off(seen, self.predict({**self.truth, "order": order}, seen.case), self.truth)
            fits.append(np.roll(off.max((0, 2, 3)), shift))  # [slope] of the head that got it
        found = tuple(int(np.argmin([fits[(s - h) % heads][s] for s in range(heads)])) for h in range(heads))
        return found if sorted(found) == list(range(heads)) and found != tuple(range(heads)) else None

    def free(self) -> Iterator[Choice]:
        """Yield the pairing where the specification is silent, and what weights cannot see."""
        pairings: list[dict[str, Any]] = [{}]
        if self._open():
            pairings.append({"layout_q": other(self.here), "layout_k": other(self.here)})
            yield Choice(pairings[1])
        if self.here.encoding == "rope":
            because = (
                "both q and k rotate the other way, (x, y) to (x cos + y sin, y cos - x sin): scores are those of "
                "weights with every second dimension negated, and weights trained with the usual direction must not be "
                "loaded into it"
            )
            for pairing in pairings:
                yield Choice({**pairing, "sign_q": -1, "sign_k": -1}, because)
        half = str(self.spec.get("activation_dtype", ""))
        if half in precision.SHORT:  # cos and sin may be rounded to it, once they are formed
            for pairing in pairings:
                yield Choice({**pairing, "round_table": half})
        if self.order is not None and self.spec.get("order") == "any":
            yield Choice({"order": self.order})

    def _open(self) -> bool:
        return not (self.spec.get("layout") or self.spec.get("config")) and self.here.encoding in ("rope", "xpos")

    def faults(self) -> Iterator[Fault]:
        """Yield the faults of the encoding; where the pairing is open, of either pairing."""
        if self.sink:
            yield Fault("attention.weights", {"sums": False}, {"row": "each", "sum": "less"})
        if self.order is not None:
            yield Fault("alibi.slopes.order", {"order": self.order}, {"first": self.order[0] + 1})
        yield from faults(self.here, self.spec, open_pairing=self._open())

    def raised(self, cause: Cause, case: Case) -> Fault | None:
        """Return a refusal of ours with its numbers."""
        return Fault(cause.code, {}, cause.smallest_case) if cause.code.startswith("attention.") else None

    def smallest(self, seen: Seen, predicted: Array, off: Array) -> dict[str, Any]:
        """Return the key of a query whose score, less that of the token itself, is farthest from what is right."""
        at, got = self.inputs[seen.case].positions, seen.value
        want = self._scales(seen, predicted)[0] * predicted[0] + predicted[1]
        less = [t - np.diagonal(t, axis1=-2, axis2=-1)[..., None] for t in (got, want)]
        apart = np.nan_to_num(np.abs(less[0] - less[1]))
        b, h, i, j = np.unravel_index(apart.argmax(), apart.shape)
        if not apart[b, h, i, j]:
            return {}
        return {
            "scores": f"of the key at {at[j]:.0f} less that of the token itself at {at[i]:.0f}, head {h}",
            "positions": [int(at[i]), int(at[j])],
            "found": float(less[0][b, h, i, j]),
            "expected": float(less[1][b, h, i, j]),
        }

    def measured(self, seen: Sequence[Seen], model: Model) -> dict[str, Any]:
        """Return what is hidden, how far was looked, and the scale."""
        scales = [self._scales(s, self.predict(model, s.case))[1] for s in seen]
        return {
            "causal": not any(np.triu(self.inputs[s.case].shown, 1).any() for s in seen),
            "heads": self.heads,
            "farthest_position": int(max(self.inputs[s.case].positions.max() for s in seen)),
            "score_scale": float(np.mean(scales)),
            **({"farthest_key": self.reach} if self.window else {}),
            **({"sink": True} if self.sink else {}),
        }

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return what scores up to a constant do not show."""
        if not seen:
            return []
        found = ["how large the sink of each head is: positions are judged by ratios of weights"] if self.sink else []
        farthest = max((int(self.inputs[s.case].positions.max()) for s in seen), default=0)
        if self.window >= LONGEST:
            found.append(f"a window of {self.window}: calls of at most {LONGEST} tokens were looked at")
        return [*found, f"positions beyond {farthest}", "gradients, and dtypes other than float32"]


def _call(subject: Any, q: Tensor, k: Tensor, v: Tensor, p: Tensor) -> Tensor:
    """Call with positions (seq,), or (batch, seq) where these are refused."""
    what = f"attention(q, k, v of {tuple(q.shape)}, positions of ({len(p)},))"
    try:
        out = guard.call(subject, q, k, v, p, what=what)
    except SubjectError as error:
        if error.cause.code != "subject.raises":
            raise
        try:
            out = guard.call(subject, q, k, v, p.expand(len(q), -1), what=what)
        except SubjectError:
            raise error from None
    return guard.shaped(out[0] if isinstance(out, tuple) and out else out, tuple(v.shape), what)
