"""Attention weights by themselves: whether they are a mean of values, and which keys they show."""

from typing import Any

import numpy as np

from posenc.verify.engine import CannotTellError
from posenc.verify.engine.records import Array
from posenc.verify.families.attention_scores import Shown
from posenc.verify.guard import SubjectError
from posenc.verify.report import Cause

KEPT = 4  # first tokens that each token may see outside its window


def judge_weights(weights: Array, shown: Shown, *, causal: bool, window: int) -> None:
    """Refuse weights that are no mean, and keys ahead where the specification hides them.

    Args:
        weights: (batch, heads, n, n).
        shown: Where they can be seen.
        causal: The specification hides keys ahead.
        window: How many keys a token may see; 0 for all.

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
            raise _refused("attention.sees_itself_only", 1.0, seq=2)
        raise CannotTellError("each token gives all weight to one key, so that no score can be read off the outputs")


def reach(shown: Shown) -> int:
    """Return the largest distance at which a key is seen, but for the first few, which some models always show."""
    seen: Shown = np.asarray(shown.any(axis=(0, 1)))
    i, j = np.nonzero(seen[:, KEPT:])
    return int(np.abs(i - j - KEPT).max(initial=0))


def judge_window(shown: Shown, window: int, *, causal: bool) -> None:
    """Compare how far a token sees with the window that is asked for, whichever way that is counted.

    Raises:
        SubjectError: It sees farther, or less far.
    """
    if not window or window + KEPT >= shown.shape[-1]:
        return
    allowed = {window - 1, window} | (set() if causal else {window // 2})
    if (far := reach(shown)) not in allowed:
        raise _refused("attention.window", 1.0, found=far, expected=window - 1, window=window)


def _refused(code: str, evidence: float, **case: Any) -> SubjectError:
    return SubjectError(Cause(code, "", evidence, case))
