"""The scores of one attention, compared with what its configuration says: their scale, and the bias that is added.

Two texts at the same positions separate the two. What is added is the same for both, so their difference is the scale
times the difference of their products, and what is left after that is the bias.
"""

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from posenc.verify.engine import Case, Family, Fault, Seen
from posenc.verify.engine.records import Array, Model
from posenc.verify.models.said import Said, versions
from posenc.verify.models.scored import Scored

SCALE, BIAS = "model.scores.scale", "model.bias."
_SAME = 1e-3
_HIDDEN = -1e9  # what a mask adds is below
_LEAST = 1e-2  # of a bias, whose rounding is never looked at more closely


def split(one: Scored) -> tuple[float, Tensor, Tensor, float]:
    """Return the scale, the bias, which keys a query sees, and how much of the scores they explain; 1 is all."""
    seen = (one.scores > _HIDDEN).all(0).all(0)
    shown = torch.where(seen, one.scores, 0.0)
    change, by = (torch.where(seen, t[0] - t[1], 0.0) for t in (shown, one.products))
    scale = float((change * by).sum() / by.square().sum().clamp_min(1e-300))
    linear = 1 - float((change - scale * by).norm() / change.norm().clamp_min(1e-300))
    return scale, torch.where(seen, (shown - scale * one.products).mean(0), 0.0), seen, linear


def centred(bias: Tensor, seen: Tensor) -> Array:
    """Return it less its mean over the keys that each query sees, since no softmax sees that; 0 where none is seen."""
    shown = torch.where(seen, bias, 0.0)
    mean = shown.sum(-1, keepdim=True) / seen.sum(-1, keepdim=True).clamp_min(1)
    found: Array = torch.where(seen, shown - mean, 0.0).numpy()
    return found


class Attention(Family):
    """One attention.

    Args:
        said: What its configuration says.
        scale: What products of queries and keys were multiplied by.
        head_dim: The width of a head.
        bias: What was added, (n_heads, q_len, k_len); None where that was not seen.
        shown: Which keys a query sees (q_len, k_len).
    """

    mismatch = SCALE
    branches = ("scale", "bias")
    pairs = 0

    def __init__(
        self, said: Said, scale: float, head_dim: int, bias: Tensor | None = None, shown: Tensor | None = None
    ) -> None:
        super().__init__("model", {})
        self.said, self.scale, self.head_dim, self.shown = said, scale, head_dim, shown
        self.truth = {"scale": said.scale, "weight": 1.0, "bias": np.zeros(1)}
        self._seen = [Seen(Case("scale"), np.array([scale]))]
        self.bias = np.zeros((1, 1, 1))
        if bias is not None and shown is not None:
            self.bias = centred(bias, shown)
            self.truth["bias"] = self._added(said.added(*shown.shape))
            self._seen.append(Seen(Case("bias"), self.bias))

    @property
    def bias_error(self) -> float:
        """The largest difference of the bias from the right one."""
        return float(np.abs(self.bias - self.truth["bias"]).max())

    def _added(self, bias: Tensor) -> Array:
        assert self.shown is not None
        return centred(bias.expand(self.bias.shape), self.shown)

    def cases(self) -> Iterator[Case]:
        """Yield what was seen; nothing is asked."""
        yield from (seen.case for seen in self._seen)

    def observe(self, subject: object, case: Case) -> Seen:
        """Return what was seen."""
        return next(seen for seen in self._seen if seen.case is case)

    def predict(self, model: Model, case: Case) -> Array:
        """Return the scale, or the bias."""
        found: Array = np.array([model["scale"]]) if case.kind == "scale" else model["weight"] * model["bias"]
        return found

    def slack(self, seen: Seen, predicted: Array, model: Model) -> float:
        """Return what half precision leaves of a number."""
        if seen.case.kind == "scale":
            return _SAME * abs(model["scale"])
        least = _LEAST if self.said.bias else 1.0
        return _SAME * max(float(np.abs(predicted).max()), float(np.abs(self.truth["bias"]).max()), least)

    def same(self, seen: Seen, predicted: Array) -> bool:
        """Return True: what is equal but for rounding passes."""
        return True

    def faults(self) -> Iterator[Fault]:
        """Yield the known faults; the last ones explain everything."""
        right = self.said.scale
        values = {"evidence": abs(self.scale / right - 1)}
        times = {f"{self.scale / right:.6g} times as much as it should": self.scale}
        for how, scale in {**self.said.wrong, **times}.items():
            said = f"multiplies scores by {self.scale:.4g} ({how}), where {self.said.because} {right:.6g}"
            for weight in (1.0, scale / right):
                change = {"scale": scale, "weight": weight}
                yield Fault(SCALE, change, {"said": said, **values}, {"head_dim": self.head_dim})
        if len(self._seen) > 1:
            yield from self._of_bias()

    def _of_bias(self) -> Iterator[Fault]:
        want, got = self.truth["bias"], self.bias
        h, i, j = (int(n) for n in np.unravel_index(np.abs(got - want).argmax(), got.shape))
        case, evidence = {"head": h, "query": i, "key": j}, self.bias_error

        def fault(code: str, words: str, **change: object) -> Fault:
            return Fault(BIAS + code, change, {"said": words, "evidence": evidence}, case)

        if self.said.bias is None:
            yield fault("unexpected", "adds a bias for position, where its configuration has none", bias=got)
            return
        yield fault("missing", "adds no bias for distance, where its configuration has one", weight=0.0)
        factor = float((got * want).sum() / np.square(want).sum().clip(1e-300))
        how = self._multiple(abs(factor))
        if factor < 0:
            yield fault("sign", f"adds the bias for distance with the other sign ({how})", weight=factor)
        yield fault("scale", f"adds {factor:.6g} times the bias for distance ({how})", weight=factor)
        for words, other in self._others():
            yield fault("mismatch", f"forms its bias {words}", bias=self._added(other))
        words = f"adds another bias for distance: {got[h, i, j]:.4g} for query {i} and key {j} of head {h}, where "
        yield fault("mismatch", words + f"{want[h, i, j]:.4g} is right, but for the mean of its row", bias=got)

    def _multiple(self, factor: float) -> str:
        """Return by what a bias is too large or too small."""
        root, divided = math.sqrt(self.head_dim), self.said.weight != 1
        into = "the bias is added after scores are divided by the root of head_dim, and not before"
        once = "divided by the root of head_dim, which the bias is not to be"
        known = {
            "added twice": 2.0,
            into if divided else "multiplied by the root of head_dim": root,
            "divided by the root of head_dim twice" if divided else once: 1 / root,
            "of the right size": 1.0,
        }
        return next((how for how, value in known.items() if math.isclose(factor, value, rel_tol=_SAME)), "no root")

    def _others(self) -> Iterator[tuple[str, Tensor]]:
        """Yield biases that faults would add, with the words for them."""
        assert self.said.bias is not None
        assert self.shown is not None
        q_len, k_len = self.shown.shape
        for words, other in versions(self.said.bias, len(self.bias)):
            yield words, self.said.added(q_len, k_len, other)
        want = self.said.added(q_len, k_len)
        yield "with its heads in reverse order", want.flip(0)
        if q_len == k_len:
            yield "with queries and keys exchanged", want.mT
            yield "with the keys in reverse order", want.flip(-1)
