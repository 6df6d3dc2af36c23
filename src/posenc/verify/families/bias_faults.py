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
from posenc.verify.families.bias_calls import Mask, Size, distance, gone

if TYPE_CHECKING:
    from posenc.verify.families.bias import Alibi

FROM_0, LOW = "queries are counted from 0", "queries are counted one too low"
# codes, words and formulas of the slopes (heads, 1, 1), query - key and the call's size
FORMS: tuple[tuple[str, str, Callable[[Array, Array, Size], Array]], ...] = (
    ("buffer_slice_shifted", FROM_0, lambda m, d, size: -m * np.abs(d + size[1] - size[2])),
    ("buffer_slice_shifted", FROM_0, lambda m, d, size: -m * np.maximum(d + size[1] - size[2], 0)),
    ("kv_cache.query_off_by_one", LOW, lambda m, d, size: -m * np.abs(d - (size[2] > size[1]))),
    ("kv_cache.query_off_by_one", LOW, lambda m, d, size: -m * np.maximum(d - (size[2] > size[1]), 0)),
    ("distance.shifted", "|query - key + 1|", lambda m, d, size: -m * np.abs(d + 1)),
    ("distance.shifted", "|query - key - 1|", lambda m, d, size: -m * np.abs(d - 1)),
    ("distance.normalised", "q_len", lambda m, d, size: -m * np.abs(d) / size[1]),
    ("distance.normalised", "k_len", lambda m, d, size: -m * np.abs(d) / size[2]),
    # slopes of as many queries or keys as heads, if these are a power of two
    ("axis.queries", "query", lambda m, d, size: -(m.flat[0] ** np.arange(1.0, size[1] + 1)[None, :, None]) * d),
    ("axis.queries", "key", lambda m, d, size: -(m.flat[0] ** np.arange(1.0, size[2] + 1)[None, None]) * d),
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
    for fault in slopes.faults(family.found, family.truth, family.spec.get("head_dim")):
        if family.score_mod and fault.change.get("factor", 0) > 0:  # of score and bias together
            change = {**fault.change, "gain": fault.change["factor"]}
            yield Fault("alibi.scale.applied_to_bias", change, {**fault.values, "why": ", as the score is"})
        yield fault
    words = "as soon as there are more keys than queries the bias is the same for all keys"
    yield Fault("alibi.kv_cache.bias_zero", {"flat": lambda q, k: q < k}, {"words": words})
    words = "for a single query the bias is the same for all keys"
    yield Fault("alibi.kv_cache.bias_zero", {"flat": lambda q, k: q == 1 < k}, {"words": words})
    yield Fault("alibi.no_effect", {"factor": 0.0})
    if not family.truth["mask"].causal:
        yield Fault("alibi.bidirectional.ahead_favoured", {"falcon": False, "ahead": -1.0})
    limit = family.limit
    for fault in (
        *(Fault(f"alibi.{code}", {"form": form}, {"words": words}) for code, words, form in FORMS),
        *([Fault("alibi.distance.clamped", {"form": partial(_clamped, limit)}, {"limit": limit})] if limit else []),
        *_rounded(family.definition),
    ):
        yield replace(fault, change={"falcon": False, **fault.change})


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


def _clamped(limit: int, m: Array, d: Array, size: Size) -> Array:
    return -m * np.minimum(np.abs(d), limit)


def _positions(dtype: str, inner: str | None, m: Array, d: Array, size: Size) -> Array:
    at = rounded(np.arange(size[2]), dtype)
    return -m * np.abs(rounded(at[size[2] - size[1] :, None] - at, inner))


def _product(product: Callable[..., Array], dtype: str, m: Array, d: Array, size: Size) -> Array:
    return product(m, d, np.arange(float(size[2])), partial(rounded, dtype=dtype))
