"""Attention as a whole: weights are read off its outputs, and with them scores, up to one number a row."""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posenc import definitions, frequencies
from posenc.verify.engine import CannotTellError, Case, Choice, Family, Fault, Seen
from posenc.verify.engine.observe import fresh
from posenc.verify.engine.read import rowless
from posenc.verify.engine.records import Array, Model
from posenc.verify.families import rotation, rotation_asked
from posenc.verify.families.attention_weights import Shown, judge, of_sink, weights_of
from posenc.verify.families.rotation_calls import Ask
from posenc.verify.guard import SubjectError
from posenc.verify.report import Cause

SEEN = 1e-30  # weights below it have no logarithm in float32
TOLERANCE = 2e-3  # of a score; a wrong position moves one by tenths
POSITIONS = (0, 1, 2, 3, 5, 8, 9, 13, 17, 22)  # neither evenly spaced nor from the index
FAR = (900, 901, 1003, 1290, 1291, 1500, 1777, 1778, 2049, 2101)
ROTATIONS = {"rope": "rope_fn", "xpos": "xpos_fn"}  # and as what each is called that has vectors for an answer
LONGEST = 80  # tokens of a call that looks for the end of a window


def family(convention: str, spec: Mapping[str, Any]) -> Family:
    """Return the family of `attention(q, k, v, positions)` for a specification."""
    return Attention(convention, spec)


class Attention(Family):
    """Scores of `attention(q, k, v, positions)`, read off its outputs for unit vectors as values."""

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        self.encoding = str(spec.get("encoding") or "")
        self.heads = int(spec["heads"]) if spec.get("heads") else 0
        self.rotation: Family | None = None
        self.head_dim, score_factor = int(spec.get("head_dim") or 16), 1.0
        self.truth = {
            "moved": None,  # where tokens stand, as a function of the positions that are given
            "slopes": "authors",
            "bias": -1.0,
            "sums": True,  # the weights of a row add up to 1, or a sink takes the rest
        }
        if self.encoding in ROTATIONS:
            filled = spec if spec.get("config") else {"head_dim": spec.get("rotary_dim") or 16, **spec}
            self.rotation = rotation.family(ROTATIONS[self.encoding], filled)
            self.truth = {**self.truth, **self.rotation.truth}
            asked = rotation_asked.read(filled)
            self.head_dim = asked.head_dim
            if asked.source is not None:
                pairing: Any = asked.layout or "half"
                score_factor = frequencies.from_config(asked.source, pairing=pairing).score_factor
        self.scale = score_factor / math.sqrt(self.head_dim)
        self.mismatch = f"{self.encoding}.mismatch"
        name = {"alibi": "authors", "rope": "roformer"}.get(self.encoding, "posenc")
        self.definition = f"{self.encoding or 'attention'}@{name}"
        self.window = int(spec.get("window") or 0)
        self.sink = False
        self.causal = spec.get("causal") is True or spec.get("bidirectional") is False
        self.shown: dict[Case, Shown] = {}  # where a weight can be seen
        self.slopes: tuple[float, ...] = ()  # ALiBi's in the order of the heads, where that is another one

    def cases(self) -> Iterator[Case]:
        """Yield near positions, as many as a window has keys, and far ones, as far as a table goes."""
        yield Case("near", (POSITIONS, 1), f"attention at positions {POSITIONS}")
        longest = max(7, min(self.window + 8, LONGEST))
        yield Case("near", (tuple(range(longest)), 2), f"attention at positions 0..{longest - 1}")
        if self.encoding != "rope":
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
        self.heads = self.heads or self._heads(subject)
        weights = weights_of(fresh(subject), *self._drawn(case), case.args[0])
        shown = self.shown[case] = weights > SEEN
        judge(weights, shown, causal=self.causal, window=self.window)
        self.sink = self.sink or float(weights.sum(-1).min()) < 1 - 1e-3
        return Seen(case, np.where(shown, np.log(np.where(shown, weights, 1.0)), np.nan))

    def _drawn(self, case: Case) -> tuple[Tensor, Tensor]:
        """Return queries and keys, (batch, heads, n, head_dim) each."""
        positions, seed = case.args
        g = torch.Generator().manual_seed(seed)
        q, k = (torch.randn(2, self.heads, len(positions), self.head_dim, generator=g) for _ in range(2))
        return q, k

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
        q, k = (x.double().numpy() for x in self._drawn(case))
        at, bias = np.array(case.args[0], float), np.zeros(1)
        at = at if model["moved"] is None else model["moved"](at)
        if self.encoding == "alibi":
            bias = model["bias"] * _slopes(model["slopes"], self.heads)[:, None, None] * np.abs(at[:, None] - at)
        if self.rotation is not None:
            asked = Case("near", (Ask(tuple(at.astype(int).tolist()), "basis", heads=self.heads),))
            q, k = (
                np.einsum("bhnd,dne->bhne", x, each)
                for x, each in zip((q, k), self.rotation.predict(model, asked), strict=True)
            )
        return np.stack(np.broadcast_arrays(q @ k.swapaxes(-1, -2), bias))

    def off(self, seen: Seen, predicted: Array, model: Model) -> Array:
        """Return how far scores are from a prediction, at the scale that is asked for or that fits best."""
        if not np.isfinite(predicted).all():
            return np.full(1, np.inf)
        fits = [self._off(seen, s * predicted[0] + predicted[1], model) for s in self._scales(seen, predicted)]
        return min(fits, key=lambda off: float(off.max()))

    def _scales(self, seen: Seen, predicted: Array) -> tuple[float, float]:
        """Return the scale of q.k that is asked for, and the one that fits best: it is no part of the encoding."""
        shown = self.shown[seen.case]
        x, y = rowless(predicted[0], shown), rowless(seen.value - predicted[1], shown)
        return self.scale, float((x * y).sum() / max((x * x).sum(), 1e-30))

    def _off(self, seen: Seen, wanted: Array, model: Model) -> Array:
        shown = self.shown[seen.case]
        allowed = TOLERANCE + 1e-6 * seen.case.args[0][-1] + 1e-5 * np.abs(wanted).max()
        off: Array = np.abs(rowless(seen.value, shown) - rowless(wanted, shown)) / allowed
        if self.sink and model["sums"]:
            off = np.maximum(off, of_sink(seen.value, wanted, shown)[..., None] / (5 * allowed))
        return off

    def visible(self, value: Array, case: Case) -> Array:
        """Return scores without a constant per row, which a softmax does not see."""
        wanted = self.scale * value[0] + value[1] if value.ndim == 5 else value
        return rowless(wanted, self.shown[case])

    def same(self, seen: Seen, predicted: Array) -> bool:
        """Return whether the scale of the scores is the one that is asked for."""
        return abs(self._scales(seen, predicted)[1] / self.scale - 1) <= 1e-3

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
        """Refuse an encoding that is not known, and find heads that have each other's slopes.

        Raises:
            CannotTellError: Scores of the encoding are not known here.
        """
        if self.sink:  # where nothing explains the scores
            self.mismatch = "attention.weights"
        if self.encoding == "alibi":
            (product, _), shown = self.predict(self.truth, seen[0].case), self.shown[seen[0].case]
            x = rowless(np.abs(np.subtract.outer(POSITIONS, POSITIONS)) + 0 * product, shown)
            y = rowless(seen[0].value - self.scale * product, shown)
            want, found = _slopes("authors", self.heads), -(x * y).sum((0, 2, 3))
            if (order := np.argsort(np.argsort(-found))).tolist() != np.argsort(np.argsort(-want)).tolist():
                self.slopes = tuple(np.sort(want)[::-1][order])
        elif self.rotation is None:
            known = ", ".join((*ROTATIONS, "alibi"))
            raise CannotTellError(
                f"scores of the encoding that the specification names ({self.encoding!r}) are not known here; "
                f"known are {known}"
            )

    def free(self) -> Iterator[Choice]:
        """Yield what weights cannot see, and what the specification leaves free."""
        if self.rotation is not None:
            yield from self.rotation.free()
        if self.slopes and self.spec.get("order") == "any":
            yield Choice({"slopes": self.slopes})

    def faults(self) -> Iterator[Fault]:
        """Yield the faults of the encoding, and wrong positions of any."""
        if self.sink:
            yield Fault("attention.weights", {"sums": False}, {"row": "each", "sum": "less"})
        yield Fault(f"{self.encoding}.not_applied" if self.rotation else "alibi.no_effect", {"moved": _nowhere})
        how = "tokens are counted, whatever positions are given"
        yield Fault("positions.given_ignored", {"moved": _counted}, {"how": how})
        if self.rotation is None:
            yield from self._of_alibi()
            return
        for rows in (64, 128, 256, 512, 1024, 2048):
            yield Fault("rope.table.too_short", {"moved": partial(np.minimum, rows - 1)}, {"rows": rows})
            yield Fault("rope.table.wraps", {"moved": partial(_wrapped, rows)}, {"rows": rows})
        yield from self.rotation.faults()

    def _of_alibi(self) -> Iterator[Fault]:
        if self.slopes:
            want = _slopes("authors", self.heads)
            words = [", ".join(f"{-math.log2(slope):.4g}" for slope in each[:4]) for each in (self.slopes, want)]
            values = {"how": "", "exponents": words[0], "usual": words[1]}
            yield Fault("alibi.slopes.head_order", {"slopes": self.slopes}, values)
        yield Fault("alibi.sign", {"bias": 1.0})
        yield Fault("alibi.slopes.not_power_of_two", {"slopes": "geometric"})
        from_one = tuple(2.0 ** (-8.0 * np.arange(self.heads) / self.heads))
        yield Fault("alibi.slopes.exponent_off_by_one", {"slopes": from_one})
        yield Fault("alibi.scale.applied_to_bias", {"bias": -self.scale})

    def raised(self, cause: Cause, case: Case) -> Fault | None:
        """Return a refusal of ours with its numbers."""
        return Fault(cause.code, {}, cause.smallest_case) if cause.code.startswith("attention.") else None

    def smallest(self, seen: Seen, predicted: Array, off: Array) -> dict[str, Any]:
        """Return the key of a query whose score, less that of the token itself, is farthest from what is right."""
        at = seen.case.args[0]
        want = self._scales(seen, predicted)[0] * predicted[0] + predicted[1]
        less = [t - np.diagonal(t, axis1=-2, axis2=-1)[..., None] for t in (seen.value, want)]
        apart = np.nan_to_num(np.abs(less[0] - less[1]))
        b, h, i, j = np.unravel_index(apart.argmax(), apart.shape)
        found, expected = (float(t[b, h, i, j]) for t in less)
        if not apart[b, h, i, j]:
            return {}
        scores = f"of the key at {at[j]} less that of the token itself at {at[i]}, head {h}"
        return {"scores": scores, "positions": [at[i], at[j]], "found": found, "expected": expected}

    def measured(self, seen: Sequence[Seen], model: Model) -> dict[str, Any]:
        """Return what is hidden, how far was looked, and the scale."""
        scales = [self._scales(s, self.predict(model, s.case))[1] for s in seen]
        return {
            "causal": not any(np.triu(self.shown[s.case], 1).any() for s in seen),
            "heads": self.heads,
            "score_scale": float(np.mean(scales)),
            **({"sink": True} if self.sink else {}),
        }

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return what scores up to a constant do not show."""
        if not seen:
            return []
        found = ["how large the sink of each head is: positions are judged by ratios of weights"] if self.sink else []
        if self.window >= LONGEST:
            found.append(f"a window of {self.window}: calls of at most {LONGEST} tokens were looked at")
        farthest = max(s.case.args[0][-1] for s in seen)
        return [*found, f"positions beyond {farthest}", "gradients, and dtypes other than float32"]


def _slopes(slopes: Any, heads: int) -> Array:
    """Return ALiBi's slopes: numbers, or those of a definition, read off its bias at distance 1."""
    if not isinstance(slopes, str):
        return np.array(slopes)
    alibi = definitions.find("alibi")
    assert alibi is not None
    return np.asarray(-alibi(np.array([1.0]), np.array([0.0]), n_heads=heads, slopes=slopes)[:, 0, 0])


def _counted(positions: Array) -> Array:
    return np.arange(len(positions), dtype=np.float64)


def _nowhere(positions: Array) -> Array:
    return 0 * positions


def _wrapped(rows: int, positions: Array) -> Array:
    return positions % rows
