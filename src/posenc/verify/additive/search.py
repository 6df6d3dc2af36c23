"""The model that explains what was measured: with no fault, with one, with one beside what is free, with two."""

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from posenc.verify.additive.asked import Asked
from posenc.verify.additive.models import EPS, Model, Seen, truths
from posenc.verify.additive.variants import merged, one_fault_each, parts_of, renamed, shifts

SEARCH_SECONDS = 1.2


def one_fault(seen: Seen, asked: Asked, dim: int, eps: float = EPS) -> Model | None:
    """Return the model with one fault at most that explains what was seen, or None."""
    right = truths(asked, dim)
    for model in right:
        if model.ratio(seen, eps, 1.0) <= 1:
            return model
    for truth in right:
        free = renamed([truth], asked)
        tried = [*free, *one_fault_each(truth, asked)]
        fits = [m for m in tried if m.ratio(seen, eps, 1.0) <= 1] or _scaled(seen, [truth, *free], eps)
        if fits:
            return fits[0]
    return None


def _moved(right: Sequence[Model], asked: Asked) -> list[Model]:
    """Return the models that differ in free ways alone: the order of lanes, the origin, or both."""
    lanes = renamed(right, asked)
    if asked.family == "relative_sinusoid" or not asked.origin_free:
        return lanes
    later = [m for truth in right for m in shifts(truth, asked) if m.shift]
    return [*lanes, *later, *(merged(a, b, right[0]) for a in lanes for b in later)]


def free_and_fault(seen: Seen, asked: Asked, dim: int, eps: float = EPS) -> Model | None:
    """Return a model that differs in what the spec leaves free, and in one fault of frequencies or grid at most."""
    right, seen = truths(asked, dim), _smallest_first(seen)
    free = _moved(right, asked)
    alone = next((m for m in free if m.ratio(seen, eps, 1.0) <= 1), None)
    if alone is not None:
        return alone
    wrong = [m for m in one_fault_each(right[0], asked) if not m.lanes_moved and not m.shift]
    few = [m for m in wrong if m.layout == right[0].layout and m.join == right[0].join]
    few = [
        m for m in few if asked.family != "sinusoidal2d" or not m.faults[0][0].startswith(("normal", "scale", "start"))
    ]
    until = time.monotonic() + SEARCH_SECONDS
    for a, b in itertools.product(free, few):
        both = merged(a, b, right[0])
        if both.ratio(seen, eps, 1.0) <= 1:
            return both
        if time.monotonic() > until:
            break
    return None


def _smallest_first(seen: Seen) -> Seen:
    """Return what was seen with the cheapest calls first, where most models fail; those of one row last."""
    return dict(sorted(seen.items(), key=lambda s: (math.prod(s[0]) < 5, math.prod(s[0]))))


def two_faults(seen: Seen, asked: Asked, dim: int, eps: float = EPS) -> Model | None:
    """Return a model with two faults that explains what was seen, or None where none was found in time."""
    right, seen = truths(asked, dim), _smallest_first(seen)
    until = time.monotonic() + SEARCH_SECONDS
    found = (_double(seen, parts_of(truth, asked), truth, eps, until) for truth in right)
    return next((model for model in found if model is not None), None)


def _double(seen: Seen, parts: Sequence[list[Model]], truth: Model, eps: float, until: float) -> Model | None:
    """Return a model with two parts that differ, or None; the fewest combinations first, while there is time."""
    ways = sorted(itertools.combinations(range(3), 2), key=lambda w: len(parts[w[0]]) * len(parts[w[1]]))
    for a, b in ways:
        for m, n in itertools.product(parts[a], parts[b]):
            both = merged(m, n, truth)
            if both.ratio(seen, eps, 1.0) <= 1:
                return both
            if time.monotonic() > until:
                return None
    return None


def _scaled(seen: Seen, tried: Sequence[Model], eps: float) -> list[Model]:
    """Return the models that a factor makes fit: a code added twice, or scaled like the tokens."""
    shape = max(seen, key=lambda s: math.prod(s))
    found = []
    for model in tried:
        code, _ = model.predict(shape)
        if code.shape[1:] != seen[shape].shape[1:]:
            continue
        gain = float(
            (code * seen[shape]).sum() / max(float((code * np.broadcast_to(code, seen[shape].shape)).sum()), 1e-30)
        )
        twice = abs(gain - 2) < 1e-3
        words = "the code is added twice" if twice else f"the code is multiplied by {gain:.6g}"
        fault = ("added_twice" if twice else "scaled", words, "Add the code once, as it is: x + code.")
        scaled = replace(model, gain=gain, faults=(fault,))
        if abs(gain) > 1e-6 and scaled.ratio(seen, eps, 1.0) <= 1:
            found.append(scaled)
    return found
