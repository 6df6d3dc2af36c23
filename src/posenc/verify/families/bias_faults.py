"""Ways to get a linear bias wrong, and what can be read off one that no formula explains."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from posenc.verify.engine import Fault, Seen
from posenc.verify.engine.precision import SHORT, rounded
from posenc.verify.engine.records import Array, Model
from posenc.verify.families import slopes
from posenc.verify.families.bias_calls import Places, Size, distance
from posenc.verify.families.masks import HIDDEN, Mask

if TYPE_CHECKING:
    from posenc.verify.families.bias import Alibi

Penalty = Callable[[Array, Size], Array]


def last_of(t: Array, shown: Places) -> Array:
    """Return each row's number at its last key that is seen, (.., q_len, 1)."""
    last = shown.shape[-1] - 1 - shown[:, ::-1].argmax(-1)
    return np.take_along_axis(t, np.broadcast_to(last[:, None], (*t.shape[:-1], 1)), -1)


def against_last(t: Array, shown: Places) -> Array:
    """Return a bias less its row's last seen key: what a softmax sees of it."""
    return np.where(shown, t - last_of(t, shown), 0.0)


def fit(seen: Seen, mask: Mask) -> tuple[Array, Array] | None:
    """Return the slopes for keys behind and ahead of a bias that is linear; None if it is not."""
    size = seen.case.args[:3]
    if seen.value.ndim != 3 or not np.isfinite(seen.value).any():
        return None
    shown = mask.shown(size) & ~(seen.value <= (seen.note or HIDDEN)).any(0)
    d = distance(size)
    sides = [np.maximum(d, 0)] if mask.causal else [np.maximum(d, 0), np.maximum(-d, 0)]
    bias = against_last(np.where(shown, seen.value, 0.0), shown)[:, shown]
    parts = np.stack([against_last(side, shown)[shown] for side in sides], 1)
    found = np.linalg.lstsq(parts, -bias.T, rcond=None)[0]
    rest = bias.T + parts @ found
    if not parts.any():
        return None
    rounding = 16 * seen.eps * float(np.abs(np.where(shown, seen.value, 0.0)).max(initial=0.0)) + 1e-9
    return (found[0], found[-1]) if bool((np.abs(rest) <= rounding).all()) else None


def faults(family: "Alibi") -> Iterator[Fault]:
    """Yield wrong biases, with the numbers that were read off the answers."""
    right = family.truth
    plain = {"falcon": False} if right["falcon"] else {}
    for fault in slopes.faults(family.found, right, family.spec.get("head_dim")):
        if family.score_mod and fault.change.get("factor", 0) > 0:  # of score and bias together
            change = {**fault.change, "gain": fault.change["factor"]}
            yield Fault("alibi.scale.applied_to_bias", change, {**fault.values, "why": ", as the score is"})
        yield fault
    yield from _cached(plain, right["falcon"])
    yield Fault("alibi.no_effect", {"factor": 0.0})
    yield from (replace(f, change={**plain, **f.change}) for f in _distances(right, family.limit))
    yield from _rounded(right)


def _cached(plain: Model, falcon: bool) -> Iterator[Fault]:
    """Yield what goes wrong once there are more keys than queries."""
    for when, words in (
        (lambda q, k: q < k, "as soon as there are more keys than queries the bias is the same for all keys"),
        (lambda q, k: q == 1 and k > 1, "for a single query the bias is the same for all keys"),
    ):

        def zero(d: Array, size: Size, when: Callable[[int, int], bool] = when) -> Array:
            return np.abs(d) * (not when(*size[1:]))

        yield Fault("alibi.kv_cache.bias_zero", {"penalty": zero}, {"words": words})
    if falcon:
        return
    forms: tuple[Callable[[Array], Array], ...] = (np.abs, partial(np.maximum, 0))
    for form in forms:
        change = {"place": _from_zero, "penalty": partial(_formed, form, 0)}
        yield Fault("alibi.buffer_slice_shifted", {**plain, **change}, {"words": "queries are counted from 0"})
        change = {"place": _one_low, "penalty": partial(_formed, form, 0)}
        yield Fault("alibi.kv_cache.query_off_by_one", {**plain, **change})


def _from_zero(size: Size) -> int:
    return 0


def _one_low(size: Size) -> int:
    return max(size[2] - size[1] - 1, 0)


def _formed(form: Callable[[Array], Array], shift: int, d: Array, size: Size) -> Array:
    return form(d + shift)


def _distances(right: Model, limit: int) -> Iterator[Fault]:
    """Yield other functions of the distance."""
    if not right["causal"]:
        yield Fault("alibi.bidirectional.ahead_favoured", {"ahead": -1.0})
    if limit:
        yield Fault("alibi.distance.clamped", {"penalty": partial(_clamped, limit)}, {"limit": limit})
    lengths: tuple[tuple[str, Callable[[Size], int]], ...] = (
        ("k_len", lambda size: size[2]),
        ("k_len - 1", lambda size: max(size[2] - 1, 1)),
        ("q_len", lambda size: size[1]),
    )
    for by, length in lengths:
        penalty = partial(_divided, length)
        yield Fault("alibi.distance.normalised", {"penalty": penalty}, {"by": by})
    forms: tuple[tuple[Callable[[Array], Array], str], ...] = (
        (np.abs, "|query - key {:+d}|"),
        (partial(np.maximum, 0), "max(query - key {:+d}, 0)"),
    )
    for shift in (1, -1):
        for form, words in forms:
            penalty = partial(_formed, form, shift)
            yield Fault("alibi.distance.shifted", {"penalty": penalty}, {"words": words.format(shift)})


def _clamped(limit: int, d: Array, size: Size) -> Array:
    return np.minimum(np.abs(d), limit)


def _divided(length: Callable[[Size], int], d: Array, size: Size) -> Array:
    return np.abs(d) / length(size)


def _rounded(right: Model) -> Iterator[Fault]:
    """Yield biases of which a stage is in half precision."""
    if right["falcon"]:
        return
    for dtype, short in SHORT.items():
        whole = {"dtype": dtype, "top": 256 if short == "bf16" else 2048, "of": ""}
        for inner in (None, dtype):
            change = {"bias": partial(_positions, dtype, inner)}
            yield Fault(f"alibi.precision.positions_{short}", change, whole)
        r = partial(rounded, dtype=dtype)
        products: tuple[Callable[[Array, Array, Array], Array], ...] = (
            lambda m, d, k, r=r: r(-m * np.abs(d)),  # type: ignore[misc]
            lambda m, d, k, r=r: r(r(m) * r(-np.abs(d))),  # type: ignore[misc]
            lambda m, d, k, r=r: r(r(m) * k),  # type: ignore[misc]
            lambda m, d, k, r=r: r(r(m) * r(k)),  # type: ignore[misc]
            lambda m, d, k, r=r: r(r(m) * r(k - k[-1])),  # type: ignore[misc]
        )
        for product in products:
            yield Fault("alibi.precision.product_bf16", {"bias": partial(_product, product)}, whole)


def _positions(dtype: str, inner: str | None, m: Array, size: Size) -> Array:
    _, q_len, k_len = size
    at = rounded(np.arange(k_len), dtype)
    return -m[:, None, None] * np.abs(rounded(at[k_len - q_len :, None] - at, inner))


def _product(product: Callable[[Array, Array, Array], Array], m: Array, size: Size) -> Array:
    return product(m[:, None, None], distance(size), np.arange(float(size[2])))


def limit(seen: Sequence[Seen], right: Model) -> int:
    """Return the distance from which on a bias stays as it is; 0 if there is none."""
    for s in sorted(seen, key=lambda s: -s.case.args[2]):
        with np.errstate(invalid="ignore"):
            row = (s.value[0, -1] - s.value[0, -1, -1]) / -slopes.slopes_of(right, s.case.args[0])[0]
        most = float(row.max())
        if np.isfinite(row).all() and 0 < round(most) < len(row) - 2 and abs(row[0] - round(most)) < 0.25:
            return round(most)
    return 0


def falcons(fault: Fault, definition: str) -> Fault:
    """Return a fault of rounding with the words for Falcon's own."""
    of = f". It is what {slopes.FALCON} defines, by which Falcon was trained, and not {definition}"
    fix = 'Form the bias in float32; for Falcon\'s weights write "variant": "falcon" in the specification.'
    return replace(fault, values={**fault.values, "of": of, "fix": fix})


def of_score(seen: Seen, code: str = "alibi.score.not_added") -> Fault:
    """Return what a score_mod does to a score where it comes back otherwise than with a bias added."""
    gain, bent = seen.value[0], seen.value[1] + 2.5 * seen.value[0]
    low, high = float(gain.min()), float(gain.max())
    words = f"a score comes back multiplied by {low:.5g}"
    if float(np.abs(bent).max()) > seen.note:
        words = f"a score comes back bent, off a straight line by {float(np.abs(bent).max()):.4g}"
    elif high - low > seen.note:
        words = f"a score comes back multiplied by numbers from {low:.4g} to {high:.4g}"
    elif abs(low) <= seen.note:
        words = "a score does not come back: the bias takes its place"
    return Fault(code, {}, {"words": words, "evidence": max(abs(low - 1), abs(high - 1))})


def sides(seen: Seen, mask: Mask) -> Fault | None:
    """Return the fault of a bias that is right behind a query and linear ahead of it."""
    linear = fit(seen, mask)
    if mask.causal or linear is None:
        return None
    h = int(np.abs(linear[0]).argmax())
    words = f"a key ahead counts {linear[1][h] / linear[0][h]:.4g} times as much as one behind"
    return Fault("alibi.bidirectional.sides", {}, {"words": words})


def along_axis(near: Sequence[Seen], mask: Mask) -> Fault | None:
    """Return the fault of a bias that is the same in all heads, with one slope for each query or each key."""
    wide = [s for s in near if s.case.args[1] > 3]
    if not wide or any(s.case.args[0] < 2 or not _shared(s, mask) for s in wide):
        return None
    for axis in ("queries", "keys"):
        found = [_along(s, mask, axis == "keys") for s in wide]
        if all(s is not None and np.ptp(s) > 1e-3 * np.abs(s).max() for s in found):
            some = ", ".join(f"{v:.4g}" for v in (found[0] if found[0] is not None else [])[:3])
            return Fault(f"alibi.axis.{axis}", {}, {"some": some})
    return None


def _shared(s: Seen, mask: Mask) -> bool:
    shown = mask.shown(s.case.args[:3])
    value = np.where(shown, s.value, 0.0)
    size = float(np.abs(value).max())
    return 0 < size < -HIDDEN and bool((np.abs(value - value[:1]) <= 16 * s.eps * size).all())


def _along(s: Seen, mask: Mask, by_key: bool) -> Array | None:
    """Return the slope of each row, whatever is added to it, or of each column; None where they are not linear."""
    d = distance(s.case.args[:3])
    shown, bias = mask.shown(s.case.args[:3]) & (d >= 0), s.value[0]
    if by_key:
        shown, d, bias = shown.T, d.T, bias.T
    found = []
    for see, x, y in zip(shown, d, bias, strict=True):
        x, y = x[see], y[see]
        if len(x) < 3:
            continue
        near, far = int(x.argmin()), int(x.argmax())
        origin = (0.0, 0.0) if by_key else (x[near], y[near])
        slope = (y[far] - origin[1]) / (x[far] - origin[0])
        if np.abs(y - origin[1] - slope * (x - origin[0])).max() > 16 * s.eps * np.abs(y).max() + 1e-9:
            return None
        found.append(-slope)
    return np.array(found) if found else None


def shifted(family: "Alibi", seen: Sequence[Seen], model: Model) -> Fault | None:
    """Return the fault of a bias that is cut out of a larger one, for each call at a place of its own."""
    if model["falcon"]:
        return None
    forms: tuple[Callable[[Array], Array], ...] = (np.abs, partial(np.maximum, 0))
    for form in forms:
        places = {}
        for s in (s for s in seen if s.case.kind in ("near", "cached")):
            home = s.case.args[2] - s.case.args[1]
            for place in sorted(range(-40, 41), key=lambda t, home=home: abs(t - home)):  # type: ignore[misc]
                changed = {**model, "place": lambda size, at=place: at, "penalty": partial(_formed, form, 0)}
                if (family.off(s, family.predict(changed, s.case), changed) <= 1).all():
                    places[s.case.args[:3]] = place
                    break
            else:
                break
        else:
            off = {size: at for size, at in places.items() if at != size[2] - size[1]}
            if off:
                size, at = next(iter(off.items()))
                words = f"query 0 of {family.asker.words(size)} counts as standing at {at}, not at {size[2] - size[1]}"
                return Fault("alibi.buffer_slice_shifted", {}, {"words": words})
    return None
