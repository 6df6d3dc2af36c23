"""The scores of one attention, compared with what its configuration says: their scale, and the bias that is added.

Two texts at the same positions separate the two. What is added is the same for both, so their difference is the scale
times the difference of their products, and what is left after that is the bias.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from posenc.verify.engine import Fault
from posenc.verify.models.said import Said
from posenc.verify.models.watching import Attention

_SAME = 1e-3  # what half precision leaves of a number that queries and keys were multiplied by
_LINEAR = 1e-2
_HIDDEN = -1e9  # what a mask adds is below
_LEAST = 1e-2  # of a bias, whose rounding is never looked at more closely


def split(one: Attention) -> tuple[float, Tensor, Tensor] | None:
    """Return the scale, the bias, and which keys a query sees; None where scores are no such sum."""
    seen = (one.scores > _HIDDEN).all(0).all(0)
    shown, products = centred(one.scores, seen), centred(one.q @ one.k.mT, seen)
    change, by = (t[0] - t[1] for t in (shown, products))
    scale = float((change * by).sum() / by.square().sum().clamp_min(1e-300))
    if float((change - scale * by).norm()) > _LINEAR * float(change.norm()):
        return None
    return scale, (shown - scale * products).mean(0), seen


def centred(x: Tensor, seen: Tensor) -> Tensor:
    """Return it less its mean over the keys that each query sees, since no softmax sees that; 0 where none is seen."""
    shown = torch.where(seen, x, 0.0)
    mean = shown.sum(-1, keepdim=True) / seen.sum(-1, keepdim=True).clamp_min(1)
    return torch.where(seen, shown - mean, 0.0)


def of_scale(got: float, said: Said) -> list[Fault]:
    """Return the fault of scores that are multiplied by another number, if they are."""
    times = got / said.scale
    if math.isclose(times, 1, rel_tol=_SAME):
        return []
    words = f"multiplies scores by {got:.4g}, {times:.4g} times as much as it should: {said.because} {said.scale:.6g}"
    return [Fault("model.scores.scale", {}, {"said": words, "evidence": abs(times - 1)})]


def of_bias(got: Tensor, want: Tensor, said: Said, times: float) -> Iterator[Fault]:
    """Yield the fault of a bias; `times`: how many times too large the scale is, and the bias may be with it."""
    size = max(float(want.abs().max()), _LEAST)

    def is_times(factor: float) -> bool:
        return float((got - factor * want).abs().max()) <= _SAME * size * max(1, abs(factor))

    if is_times(1.0) or (is_times(times) and said.bias is not None):
        return
    factor = float((got * want).sum() / want.square().sum().clamp_min(1e-300))
    head, query, key = at = tuple(int(n) for n in torch.unravel_index((got - want).abs().argmax(), got.shape))
    code, words = "mismatch", "adds another bias for distance, also but for a factor and for the means of its rows"
    if said.bias is None:
        code, words = "unexpected", "adds a bias for position, where its configuration has none"
    elif is_times(0.0):
        code, words = "missing", "adds no bias for distance, where its configuration has one"
    elif is_times(factor):
        code, words = "scale" if factor > 0 else "sign", f"adds {factor:.6g} times the bias for distance"
    case = {"head": head, "query": query, "key": key, "found": float(got[at]), "expected": float(want[at])}
    yield Fault(f"model.bias.{code}", {}, {"said": words, "evidence": float((got - want).abs().max())}, case)
