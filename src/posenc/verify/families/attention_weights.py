"""Attention weights by themselves: whether they are a mean of values, and which keys they show."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from posenc.verify import guard
from posenc.verify.engine import CannotTellError
from posenc.verify.engine.records import Array
from posenc.verify.guard import SubjectError
from posenc.verify.report import Cause

Shown = NDArray[np.bool_]  # where a weight can be seen
KEPT = 4  # first tokens that each token may see outside its window


def judge(weights: Array, shown: Shown, *, causal: bool, window: int) -> None:
    """Refuse weights that are no mean, and keys that the specification hides; a window may be counted any way.

    Raises:
        SubjectError: Likewise.
        CannotTellError: Each token sees one key only, so that there is no score to read.
    """
    sums = weights.sum(-1)
    if (most := float(sums.max())) > 1 + 1e-3 or weights.min() < -1e-3:
        row = int(np.unravel_index(sums.argmax(), sums.shape)[-1])
        raise _refused("attention.weights", abs(most - 1), row=row, sum=round(most, 4))
    if causal and np.triu(shown, 1).any():
        raise _refused("attention.not_causal", float(np.triu(weights, 1).max()), seq=2)
    if int(shown.sum(-1).max()) < 2:
        if causal and window != 1:
            raise _refused("attention.window", 1.0, found=0, expected="the first token")
        raise CannotTellError("each token gives all weight to one key, so that no score can be read off the outputs")
    if window and window + KEPT < shown.shape[-1]:
        i, j = np.nonzero(shown[..., KEPT:].any(axis=(0, 1)))
        far = int(np.abs(i - j - KEPT).max(initial=0))
        one_sided = not np.triu(shown, 1).any()  # of both sides others count otherwise
        if far != window - 1 and (one_sided or far not in (window, window // 2)):
            raise _refused("attention.window", 1.0, found=far, expected=window - 1)


def _refused(code: str, evidence: float, **case: Any) -> SubjectError:
    return SubjectError(Cause(code, "", evidence, case))


def of_sink(scores: Array, wanted: Array, shown: Shown) -> Array:
    """Return how far each row's sum is from one that a constant of its head in the denominator explains."""
    total = np.where(shown, np.exp(np.where(shown, wanted, 0.0)), 0.0).sum(-1)
    row = np.where(shown, scores - wanted, 0.0).sum(-1) / np.maximum(shown.sum(-1), 1)
    constant = np.maximum(np.median(np.exp(-row) - total, axis=(0, 2), keepdims=True), 0.0)
    return np.asarray(np.abs(row + np.log(total + constant)))


def weights_of(subject: Any, q: Tensor, k: Tensor, positions: Sequence[int]) -> Array:
    """Return the weights (batch, heads, n, n), which are outputs for unit vectors as values."""
    columns = []
    for unit in torch.eye(len(positions)).split(q.shape[-1], 1):
        v = torch.nn.functional.pad(unit, (0, q.shape[-1] - unit.shape[1])).expand(q.shape).clone()
        columns.append(_call(subject, q, k, v, torch.tensor(positions))[..., : unit.shape[1]])
    return torch.cat(columns, -1).double().numpy()


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
