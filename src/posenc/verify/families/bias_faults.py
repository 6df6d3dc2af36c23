"""Ways to get a linear bias wrong, and the slopes of one that is linear."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from posenc.verify.engine import Fault, Seen
from posenc.verify.engine.precision import SHORT, rounded
from posenc.verify.engine.records import Array
from posenc.verify.families import slopes
from posenc.verify.families.bias_calls import Size, distance
from posenc.verify.families.bias_cases import Mask, gone

if TYPE_CHECKING:
    from posenc.verify.families.bias import Alibi

FORMS: tuple[tuple[Callable[[Array], Array], str], ...] = (
    (np.abs, "|query - key {:+d}|"),
    (partial(np.maximum, 0), "max(query - key {:+d}, 0)"),
)
PRODUCTS: tuple[Callable[[Array, Array, Array, Callable[[Array], Array]], Array], ...] = (
    lambda m, d, k, r: r(r(m) * r(k)),  # Falcon's, in bfloat16
    lambda m, d, k, r: r(-m * np.abs(d)),
    lambda m, d, k, r: r(r(m) * r(-np.abs(d))),
    lambda m, d, k, r: r(r(m) * k),
)


def fit(seen: Seen, mask: Mask) -> Array | None:
    """Return the slopes for keys behind of a bias that is linear there; None if it is not."""
    d = distance(seen.case.args[:3])
    see = mask.sees(d) & (d > 0) & ~gone(seen).any(0)
    own = np.diagonal(seen.value, seen.value.shape[2] - seen.value.shape[1], 1, 2)
    if not see.any() or not np.isfinite(own).all():
        return None
    fall, x = (own[:, :, None] - seen.value)[:, see], d[see]
    found: Array = fall @ x / (x @ x)
    rounding = 16 * seen.eps * float(np.abs(seen.value[:, see]).max() + np.abs(own).max()) + 1e-9
    return found if bool((np.abs(fall - found[:, None] * x) <= rounding).all()) else None


def faults(family: "Alibi") -> Iterator[Fault]:
    """Yield wrong biases, with the numbers that were read off the answers."""
    right = family.truth
    for fault in slopes.faults(family.found, right, family.spec.get("head_dim")):
        if family.score_mod and fault.change.get("factor", 0) > 0:  # of score and bias together
            change = {**fault.change, "gain": fault.change["factor"]}
            yield Fault("alibi.scale.applied_to_bias", change, {**fault.values, "why": ", as the score is"})
        yield fault
    words = "as soon as there are more keys than queries the bias is the same for all keys"
    yield Fault("alibi.kv_cache.bias_zero", {"flat": lambda q, k: q < k}, {"words": words})
    words = "for a single query the bias is the same for all keys"
    yield Fault("alibi.kv_cache.bias_zero", {"flat": lambda q, k: q == 1 < k}, {"words": words})
    yield Fault("alibi.no_effect", {"factor": 0.0})
    for fault in (*_distances(family.limit, right["mask"].causal), *_rounded(family.definition)):
        yield replace(fault, change={"falcon": False, **fault.change})


def _distances(limit: int, causal: bool) -> Iterator[Fault]:
    """Yield other functions of the distance, and distances from another place."""
    for form, words in FORMS:
        for code, shift, said in (
            ("buffer_slice_shifted", lambda q, k: q - k, "queries are counted from 0"),
            ("kv_cache.query_off_by_one", lambda q, k: -(k > q), ""),
            ("distance.shifted", lambda q, k: 1, words.format(1)),
            ("distance.shifted", lambda q, k: -1, words.format(-1)),
        ):
            yield Fault(f"alibi.{code}", {"form": partial(_shifted, form, shift)}, {"words": said})
    if not causal:
        yield Fault("alibi.bidirectional.ahead_favoured", {"ahead": -1.0})
    if limit:
        yield Fault("alibi.distance.clamped", {"form": partial(_clamped, limit)}, {"limit": limit})
    for axis, name in ((1, "q_len"), (2, "k_len")):
        yield Fault("alibi.distance.normalised", {"form": partial(_divided, axis)}, {"by": name})
    for axis, name in ((1, "query"), (2, "key")):
        yield Fault("alibi.axis.queries", {"form": partial(_along, axis)}, {"axis": name})


def _rounded(asked: str) -> Iterator[Fault]:
    """Yield biases of which a stage is in half precision."""
    of = f". It is what {slopes.FALCON} defines, by which Falcon was trained, and not {asked}"
    fix = 'Form the bias in float32; for Falcon\'s weights write "variant": "falcon" in the specification.'
    change = {"form": partial(_product, PRODUCTS[0], "bfloat16")}
    yield Fault("alibi.precision.product_bf16", change, {"dtype": "bfloat16", "of": of, "fix": fix})
    for dtype, short in SHORT.items():
        values = {"dtype": dtype, "top": 256 if short == "bf16" else 2048, "of": ""}
        for inner in (None, dtype):
            yield Fault(f"alibi.precision.positions_{short}", {"form": partial(_positions, dtype, inner)}, values)
        for product in PRODUCTS:
            yield Fault("alibi.precision.product_bf16", {"form": partial(_product, product, dtype)}, values)


def _shifted(form: Callable[[Array], Array], shift: Callable[[int, int], int], m: Array, size: Size) -> Array:
    return -m * form(distance(size) + shift(*size[1:]))


def _clamped(limit: int, m: Array, size: Size) -> Array:
    return -m * np.minimum(np.abs(distance(size)), limit)


def _divided(axis: int, m: Array, size: Size) -> Array:
    return -m * np.abs(distance(size)) / size[axis]


def _along(axis: int, m: Array, size: Size) -> Array:
    along = m.flat[0] ** np.arange(1.0, size[axis] + 1)  # where heads are a power of two
    return -along.reshape((1, -1, 1) if axis == 1 else (1, 1, -1)) * distance(size)


def _positions(dtype: str, inner: str | None, m: Array, size: Size) -> Array:
    _, q_len, k_len = size
    at = rounded(np.arange(k_len), dtype)
    return -m * np.abs(rounded(at[k_len - q_len :, None] - at, inner))


def _product(product: Callable[..., Array], dtype: str, m: Array, size: Size) -> Array:
    return product(m, distance(size), np.arange(float(size[2])), partial(rounded, dtype=dtype))
