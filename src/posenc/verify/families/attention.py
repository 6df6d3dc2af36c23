"""Attention as a whole: outputs give weights, and weights give scores up to a constant in each row."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from posenc import definitions, frequencies
from posenc.verify import guard
from posenc.verify.engine import CannotTellError, Case, Choice, Family, Fault, Seen
from posenc.verify.engine.observe import fresh
from posenc.verify.engine.read import rowless
from posenc.verify.engine.records import Array, Model, kind
from posenc.verify.families import bias, rotation, rotation_asked, scored, slopes
from posenc.verify.families.counts_faults import SPLITS
from posenc.verify.families.rotation_calls import Ask
from posenc.verify.guard import SubjectError
from posenc.verify.report import Cause

SEEN = 1e-30  # smaller weights have no logarithm in float32
TOLERANCE = 2e-3  # of a score; a wrong position changes one by tenths
POSITIONS = (0, 1, 2, 3, 5, 8, 9, 13, 17, 22)  # unevenly spaced and unequal to the index
OTHERS = (0, 1, 4, 6, 7, 10, 12, 15, 18, 22)  # of the second row of a batch
FAR = (900, 901, 1003, 1290, 1291, 1500, 1777, 1778, 2049, 2101)
ROTATIONS = {"rope": "rope_fn", "xpos": "xpos_fn"}  # the convention whose family predicts the rotated vectors
LONGEST = 80  # tokens of a call that finds the end of a window
KEPT = 4  # first tokens that each token may see outside its window


def _split(of: Callable[[int], Array], at: Array, rows: int) -> Array:
    return np.asarray(at[of(len(at)).astype(int)])


MOVES: Mapping[str, Callable[[Array, int], Array]] = {  # wrong positions of tokens
    "index": lambda at, rows: np.arange(float(len(at))),
    "nowhere": lambda at, rows: 0 * at,
    "too_short": lambda at, rows: np.minimum(at, rows - 1),
    "wraps": lambda at, rows: at % rows,
    "reversed": lambda at, rows: at[::-1],
    "summed": lambda at, rows: at.cumsum(),
    **{order: partial(_split, of) for order, of in SPLITS.items()},
}
ROWS = (64, 100, 128, 256, 500, 512, 1000, 1024, 2000, 2048)  # ends of tables
OF_SLOPES = {"series", "rest", "ranks", "factor", "round_slopes", "given"}


class Attention(Family):
    """Scores of `attention(q, k, v, positions)`, measured from its outputs for unit vectors as values."""

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        self.encoding = str(spec.get("encoding") or "")
        self.heads, self.window = int(spec.get("heads") or 0), int(spec.get("window") or 0)
        self.causal = spec.get("causal") is True or spec.get("bidirectional") is False
        # a key of MOVES and its rows; whether the weights of a row sum to 1, except for the share of a sink
        self.truth = {"moved": (None, 0), "slopes": "authors", "bias": -1.0, "form": None, "sums": True}
        self.rotation: Family | None = None
        self.head_dim, score_factor = int(spec.get("head_dim") or 16), 1.0
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
        # a bias fixes the scale of q.k; with a rotation, a gain is not distinguished from another scale
        self.truth["scale"] = self.scale if self.encoding == "alibi" else None
        self.mismatch = f"{self.encoding}.mismatch"
        self.kinds = (kind("attention.batch.rows_share", "rows", "near"),)
        name = {"alibi": "authors", "rope": "roformer"}.get(self.encoding, "posenc")
        self.definition = f"{self.encoding or 'attention'}@{name}"
        self.sink = False
        self.first: Seen | None = None
        self.shown: dict[Case, NDArray[np.bool_]] = {}  # where a weight is visible

    def cases(self) -> Iterator[Case]:
        """Yield near positions, as many as a window has keys, and far ones up to the end of a table."""
        yield Case("near", (POSITIONS, 1), f"attention at positions {POSITIONS}")
        longest = max(7, min(self.window + 8, LONGEST))
        yield Case("near", (tuple(range(longest)), 2), f"attention at positions 0..{longest - 1}")
        if self.heads > 2:  # with fewer, code for one row of positions may take rows for heads
            yield Case("rows", (POSITIONS, 1), "rows of a batch with other positions", optional=True)
        if self.encoding != "rope":
            return
        named, last = self.spec.get("max_positions"), FAR[-1]
        ends = (min(int(named) - 1, last),) if named else (255, 511, 1023, last)
        case: Case | None = None
        for end in (e for e in ends if e > POSITIONS[-1]):
            at = tuple(sorted({end - 1, *(p * end // last for p in FAR)}))  # a window hides all but neighbours
            case = Case("far", (at, 3), f"attention at positions {at}", not named, case)
        if case is not None:
            yield case

    def observe(self, subject: Any, case: Case) -> Seen:
        """Return the logarithms of the weights (batch, heads, n, n), NaN where they are not visible."""
        self.heads = self.heads or self._heads(subject)
        at = torch.tensor((POSITIONS, OTHERS) if case.kind == "rows" else case.args[0])
        weights, eps, least = _weights(fresh(subject), *self._drawn(case), at)
        shown = self.shown[case] = weights > max(SEEN, least)
        strange = max(-float(weights.min()), float(np.abs(weights.sum(-1) - 1).max()))
        if strange > 1e-3 + eps and self._rotates_values(fresh(subject), at):
            words = "v is rotated by positions too: outputs are means of rotated values"
            raise _refused("values_rotated", words, strange)
        self._refuse(weights, shown, eps, is_dense=int(at.max() - at.min()) < at.shape[-1])
        if float(weights.sum(-1).min()) < 1 - 1e-3 - eps:
            self.sink, self.mismatch = True, "attention.weights"  # if nothing explains the scores
        return Seen(case, np.where(shown, np.log(np.where(shown, weights, 1.0)), np.nan), eps)

    def _drawn(self, case: Case) -> tuple[Tensor, Tensor]:
        """Return queries and keys, (batch, heads, n, head_dim) each."""
        positions, seed = case.args
        g = torch.Generator().manual_seed(seed)
        q, k = (torch.randn(2, self.heads, len(positions), self.head_dim, generator=g) for _ in range(2))
        return q, k

    def _rotates_values(self, subject: Any, at: Tensor) -> bool:
        """Return True if equal values keep their size, and change unless all tokens are at position 0."""
        q, k, c = torch.randn(3, 2, self.heads, at.shape[-1], self.head_dim, generator=torch.Generator().manual_seed(5))
        c = c[:1, :1, :1].expand(q.shape).clone()
        what = "attention with equal values at equal positions"
        try:
            outs = [guard.call(subject, q, k, c, 0 * at + p, what=what) for p in (0, 5)]
            first, later = (guard.shaped(out, tuple(q.shape), what).to(c) for out in outs)
        except SubjectError:
            return False
        kept = torch.allclose(later.norm(dim=-1), c.norm(dim=-1), rtol=1e-3) and torch.allclose(first, c, atol=1e-3)
        return kept and not torch.allclose(later, c, atol=0.1)

    def _heads(self, subject: Any) -> int:
        """Return the first number of heads with which a call runs."""
        for heads in (3, 4, 8, 2, 1):
            self.heads = heads
            with suppress(SubjectError):
                self.observe(subject, Case("near", (tuple(range(5)), 1)))
                return heads
        return 3

    def _refuse(self, weights: Array, shown: NDArray[np.bool_], eps: float, *, is_dense: bool) -> None:
        """Refuse weights that do not average, and visible keys that must be hidden.

        A window may be counted any way: by index or, which dense positions do not distinguish, by positions.
        """
        sums, ahead = weights.sum(-1), bool(np.triu(shown, 1).any())
        if (least := float(weights.min())) < -1e-3:
            raise _refused("weights", f"a weight is {least:.3g}: outputs are not means of v", -least)
        if (most := float(sums.max())) > 1 + 1e-3 + eps:
            raise _refused("weights", f"the weights of a query sum to {most:.5g}: outputs are not means of v", most - 1)
        if self.causal and not shown.diagonal(axis1=-2, axis2=-1)[..., 1:].any():
            raise _refused("window", "a token does not see its own key", 1.0)
        if self.causal and ahead:
            raise _refused("not_causal", "a query attends to keys ahead of it, although causal is declared", 1.0)
        if int(shown.sum(-1).max()) < 2:
            if self.causal and self.window != 1:
                raise _refused("window", "each token sees only one key", 1.0)
            raise CannotTellError(
                "each token gives all weight to one key, so no score can be computed from the outputs"
            )
        if is_dense and self.window and self.window + KEPT < shown.shape[-1]:
            i, j = np.nonzero(shown[..., KEPT:].any(axis=(0, 1)))
            far, most = int(np.abs(i - j - KEPT).max(initial=0)), self.window - 1
            if far != most and (not ahead or far not in (self.window, self.window // 2)):  # counted in another way
                words = f"a token sees keys up to a distance of {far}, but should see them up to {most}"
                raise _refused("window", words, 1.0)
        if is_dense and (hidden := self._due(shown.shape[-1]) & ~shown.any(axis=(0, 1))).any():
            i, j = np.argwhere(hidden)[-1]
            which = "its own key" if i == j else f"the key at {j}"
            words = f"the query at {i} does not see {which}, which the specification does not hide"
            raise _refused("hidden", words, float(hidden.sum()))

    def _due(self, n: int) -> NDArray[np.bool_]:
        """Return which keys of n neighbours must be visible, (queries, keys), however a window of both sides counts."""
        apart = np.subtract.outer(np.arange(n), np.arange(n))
        is_open = self.spec.get("causal") is False or self.spec.get("bidirectional") is True
        reach = (self.window // 2 if is_open else self.window - 1) if self.window else n
        return np.asarray((np.abs(apart) <= reach) & ((apart >= 0) | is_open))

    def raised(self, cause: Cause, case: Case) -> Fault | None:
        """Return the positions of the call that shows wrong weights."""
        is_own = cause.code.startswith("attention.")
        return Fault(cause.code, {}, {}, {"positions": list(case.args[0])}) if is_own else None

    def predict(self, model: Model, case: Case) -> Array:
        """Return q.k before any scale, and the bias: (2, batch, heads, n, n)."""
        if case.kind == "rows":
            rows = [self.predict(model, Case("near", (at, case.args[1]))) for at in (POSITIONS, OTHERS)]
            return np.stack([rows[i][:, i] for i in (0, 1)], 1)
        q, k = (x.double().numpy() for x in self._drawn(case))
        (move, rows), at, added = model["moved"], np.array(case.args[0], float), np.zeros(1)
        at = MOVES[move](at, rows) if move else at
        if self.encoding == "alibi":
            m, form = _slopes(model["slopes"], self.heads)[:, None, None], model["form"]
            added = form(m, at[:, None], at, np.asarray) if form else model["bias"] * m * np.abs(at[:, None] - at)
        if self.rotation is not None:
            asked = Case("near", (Ask(tuple(at.astype(int).tolist()), "basis", heads=self.heads),))
            q, k = (
                np.einsum("bhnd,dne->bhne", x, each)
                for x, each in zip((q, k), self.rotation.predict(model, asked), strict=True)
            )
        return np.stack(np.broadcast_arrays(q @ k.swapaxes(-1, -2), added))

    def off(self, seen: Seen, predicted: Array, model: Model) -> Array:
        """Return the difference between scores and a prediction at the scale of a model, or else at the best one."""
        if not np.isfinite(predicted).all():
            return np.full(1, np.inf)
        scale = model["scale"] or self._scale(seen, predicted)
        shown, wanted = self.shown[seen.case], scale * predicted[0] + predicted[1]
        allowed = TOLERANCE + 2 * seen.eps + 1e-6 * seen.case.args[0][-1] + 1e-5 * np.abs(wanted).max()
        off: Array = np.abs(rowless(seen.value, shown) - rowless(wanted, shown)) / allowed
        if self.sink and model["sums"]:
            off = np.maximum(off, _of_sink(seen.value, wanted, shown)[..., None] / (5 * allowed))
        return off

    def _scale(self, seen: Seen, predicted: Array) -> float:
        shown = self.shown[seen.case]
        x, y = rowless(predicted[0], shown), rowless(seen.value - predicted[1], shown)
        return float((x * y).sum() / max((x * x).sum(), 1e-30))

    def visible(self, value: Array, case: Case) -> Array:
        """Return scores without a constant per row, which a softmax ignores."""
        wanted = self.scale * value[0] + value[1] if value.ndim == 5 else value
        return rowless(wanted, self.shown[case])

    def same(self, seen: Seen, predicted: Array) -> bool:
        """Return True if the scores have the declared scale; refuse another one."""
        scale = self._scale(seen, predicted)
        if self.truth["scale"] is None and abs(scale / self.scale - 1) > 1e-3:
            raise CannotTellError(
                f"the scores have the right shape but another size: {self._of_scale(scale)}, so scores are "
                f"{scale / self.scale:.5g} times as large; a gain of the encoding and another softmax scale cannot be "
                "distinguished here"
            )
        return True

    def _of_scale(self, scale: float) -> str:
        found, right = (f"{f:.5g}{scored.formula(f, self.head_dim, self.heads)}" for f in (scale, self.scale))
        return f"q.k is multiplied by {found}, and should be multiplied by {right}"

    def look(self, seen: Sequence[Seen]) -> None:
        """Refuse an unknown encoding."""
        if self.encoding not in (*ROTATIONS, "alibi"):
            known = ", ".join((*ROTATIONS, "alibi"))
            raise CannotTellError(
                f"posenc cannot predict the scores of the declared encoding ({self.encoding!r}) here; "
                f"it can predict {known}"
            )
        self.first = seen[0]

    def free(self) -> Iterator[Choice]:
        """Yield what weights do not show, and what the specification leaves open."""
        if self.rotation is not None:
            yield from self.rotation.free()
        elif self.spec.get("order") == "any":
            yield Choice({"slopes": np.sort(_slopes("authors", self.heads))[self._fall().argsort().argsort()]})

    def _fall(self) -> Array:
        """Return by how much the scores of each head fall from token to token."""
        assert self.first is not None
        shown, (product, _) = self.shown[self.first.case], self.predict(self.truth, self.first.case)
        x = rowless(np.abs(np.subtract.outer(POSITIONS, POSITIONS)) + 0 * product, shown)
        fall = -(x * rowless(self.first.value - self.scale * product, shown)).sum((0, 2, 3))
        return np.asarray(fall / (x * x).sum((0, 2, 3)))

    def faults(self) -> Iterator[Fault]:
        """Yield the faults of the encoding, and wrong positions of any encoding."""
        if self.sink:
            yield Fault("attention.weights", {"sums": False})
        yield Fault(f"{self.encoding}.not_applied" if self.rotation else "alibi.no_effect", {"moved": ("nowhere", 0)})
        how = "tokens are counted, whatever positions are given"
        yield Fault("positions.given_ignored", {"moved": ("index", 0)}, {"how": how})
        if self.rotation is None:
            yield from self._of_bias()
        if self.encoding != "xpos":  # it is predicted only at the positions of its own calls
            yield Fault("positions.reversed", {"moved": ("reversed", 0)})
            yield Fault("positions.summed", {"moved": ("summed", 0)})
            yield from (Fault("positions.zigzag", {"moved": (words, 0)}, {"words": words}) for words in SPLITS)
        if self.rotation is None:
            return
        for rows in ROWS:
            for name in ("too_short", "wraps"):
                yield Fault(f"rope.table.{name}", {"moved": (name, rows)}, {"rows": rows})
        yield from self.rotation.faults()

    def _of_bias(self) -> Iterator[Fault]:
        """Yield the faults of ALiBi's slopes, and of its distances."""
        yield Fault("alibi.sign", {"bias": 1.0})
        if self.first is not None:
            scale = self._scale(self.first, self.predict(self.truth, self.first.case))
            if scale > 0 and abs(scale / self.scale - 1) > 1e-3:
                yield Fault("attention.scale", {"scale": scale}, {"words": self._of_scale(scale)})
        yield Fault("alibi.slopes.not_power_of_two", {"slopes": "geometric"}, {"how": slopes.GEOMETRIC})
        yield Fault("alibi.scale.applied_to_bias", {"bias": -self.scale}, {"factor": f"{self.scale:.5g}", "why": ""})
        known = bias.Alibi("slopes_fn", {"heads": self.heads, "causal": True})
        known.found = {self.heads: self._fall()} if self.first else {}
        for fault in slopes.faults(known) if self.first else ():
            if set(fault.change) <= OF_SLOPES:
                wrong = slopes.slopes_of({**known.truth, **fault.change}, self.heads)
                if len(wrong) == self.heads:
                    yield Fault(fault.code, {"slopes": wrong}, fault.values)
        for code, words, form in slopes.FORMS:
            if code in ("distance.normalised", "distance.curved"):
                yield Fault(f"alibi.{code}", {"form": form}, {"words": words})

    def smallest(self, seen: Seen, predicted: Array, off: Array) -> dict[str, Any]:
        """Return the key of a query whose score, relative to that of the token itself, has the largest error."""
        at, want = seen.case.args[0], self.scale * predicted[0] + predicted[1]
        less = [t - np.diagonal(t, axis1=-2, axis2=-1)[..., None] for t in (seen.value, want)]
        apart = np.nan_to_num(np.abs(less[0] - less[1]))
        b, h, i, j = np.unravel_index(apart.argmax(), apart.shape)
        if not apart[b, h, i, j]:
            return {}
        found, expected = (float(t[b, h, i, j]) for t in less)
        scores = f"of the key at {at[j]} relative to the token itself at {at[i]}, head {h}"
        return {"scores": scores, "positions": [at[i], at[j]], "found": found, "expected": expected}

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return the properties that scores up to a constant do not show."""
        if not seen:
            return []
        found = ["the size of each head's sink: positions are judged by ratios of weights"] if self.sink else []
        if self.window >= LONGEST:
            found.append(f"a window of {self.window}: calls had at most {LONGEST} tokens")
        dense = next((shown for case, shown in self.shown.items() if case.args[0][-1] < len(case.args[0])), None)
        if self.window and dense is not None and (firsts := int(dense[..., -1, : -self.window].any(axis=(0, 1)).sum())):
            found.append(
                f"the first keys, of which {firsts} stay visible outside the window: attention sinks are allowed"
            )
        farthest = max(s.case.args[0][-1] for s in seen)
        found += [f"positions beyond {farthest}", "negative positions", "fewer queries than keys"]
        return [*found, "gradients, and dtypes other than float32"]


family = Attention


def _refused(code: str, message: str, evidence: float) -> SubjectError:
    return SubjectError(Cause(f"attention.{code}", message, evidence))


def _slopes(slopes: Any, heads: int) -> Array:
    """Return ALiBi's slopes: given numbers, or those of a definition, from its bias at distance 1."""
    if not isinstance(slopes, str):
        return np.asarray(slopes)
    alibi = definitions.find("alibi")
    assert alibi is not None
    return np.asarray(-alibi(np.array([1.0]), np.array([0.0]), n_heads=heads, slopes=slopes)[:, 0, 0])


def _of_sink(scores: Array, wanted: Array, shown: NDArray[np.bool_]) -> Array:
    """Return how far each row's sum is from one that a constant of its head in the denominator explains."""
    total = np.where(shown, np.exp(np.where(shown, wanted, 0.0)), 0.0).sum(-1)
    row = np.where(shown, scores - wanted, 0.0).sum(-1) / np.maximum(shown.sum(-1), 1)
    constant = np.maximum(np.median(np.exp(-row) - total, axis=(0, 2), keepdims=True), 0.0)
    return np.asarray(np.abs(row + np.log(total + constant)))


def _weights(subject: Any, q: Tensor, k: Tensor, p: Tensor) -> tuple[Array, float, float]:
    """Return the weights (batch, heads, n, n), which are the outputs for unit vectors as values.

    The other numbers are the relative error of their dtype, and the least weight that has no larger one.
    """
    columns, what = [], f"attention(q, k, v of {tuple(q.shape)}, positions of {tuple(p.shape)})"
    for unit in torch.eye(q.shape[2]).split(q.shape[-1], 1):
        v = torch.nn.functional.pad(unit, (0, q.shape[-1] - unit.shape[1])).expand(q.shape).clone()
        try:
            out = guard.call(subject, q, k, v, p, what=what)
        except SubjectError as error:
            if error.cause.code != "subject.raises" or p.ndim > 1:
                raise
            out = guard.call(subject, q, k, v, p.expand(len(q), -1), what=what)  # one row for each row of the batch
        out = guard.shaped(out[0] if isinstance(out, tuple) and out else out, tuple(v.shape), what)
        columns.append(out[..., : unit.shape[1]])
    weights = torch.cat(columns, -1)
    least = torch.finfo(weights.dtype).tiny if weights.is_floating_point() else 0.0
    return weights.double().numpy(), guard.rounding(weights), least
