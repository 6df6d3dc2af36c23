"""Infinitely many pairs: the mean of exp(i · distance · theta(t)) over t in [0, 1], for any law of frequencies."""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from jaxtyping import Complex128, Float64

from posenc.config.values import short
from posenc.frequencies import check_base, geometric
from posenc.measure.oscillatory import mean_wave
from posenc.measure.values import Array, Numbers, count, reals
from posenc.measure.waves import cosine_by_distance

Law = Callable[[Array], Array]
_NARROW = 0.1  # of ln base: below it, the two cosine integrals cancel


def geometric_law(base: float) -> Law:
    """Return theta(t) = base^-t, the law of RoPE and of sinusoidal vectors.

    >>> geometric_law(100.0)(np.array([0.0, 0.5])).round(12)
    array([1. , 0.1])
    """
    speed = -math.log(check_base(base, "geometric_law"))
    return lambda t: np.exp(speed * t)


def power_law(exponent: float) -> Law:
    """Return theta(t) = t^exponent, of an exponent of at least 0, which makes it a constant.

    >>> float(power_law(2.0)(np.array(0.5)))
    0.25
    """
    checked = float(reals("power_law", "exponent", [exponent])[0])
    if checked < 0:
        raise ValueError(
            f"power_law: exponent must not be negative, because frequencies would have no end at t = 0; got {checked}."
        )
    return lambda t: np.asarray(t, dtype=np.float64) ** checked


LAWS: Mapping[str, Law] = MappingProxyType(
    {
        "10000^-t": geometric_law(10000.0),
        "1000^-t": geometric_law(1000.0),
        "t": power_law(1.0),
        "t^2": power_law(2.0),
        "t^0.5": power_law(0.5),
        "constant": power_law(0.0),
    }
)


def continuous_limit(distance: Numbers, *, base: float = 10000.0) -> Complex128[Array, " n"]:
    """Return the integral over t in [0, 1] of exp(i · distance · base^-t), by sine and cosine integrals.

    (Ci(x) - Ci(x / base)) / ln base + i (Si(x) - Si(x / base)) / ln base: what `cosine_by_distance` becomes with ever
    more pairs (the real part). At 0 it is 1; at -x the conjugate of that at x. It is within 1e-12 of the truth. Without
    SciPy it raises an ImportError.

    Args:
        distance: x, in positions, (n,).
        base: That of the frequencies, above 1.

    >>> continuous_limit(100.0).real.round(12)
    array([0.43677329])
    """
    x, base = reals("continuous_limit", "distance", distance), check_base(base, "continuous_limit")
    if math.log(base) < _NARROW:
        return mean_wave(x, geometric_law(base))
    try:
        from scipy.special import sici
    except ImportError as error:
        raise ImportError("continuous_limit: needs SciPy; install posenc[plot].") from error
    (high_si, high_ci), (low_si, low_ci) = sici(np.abs(x)), sici(np.abs(x) / base)
    near = np.abs(x) < 1e-9  # where cosine integrals are infinite and their difference is ln base to rounding
    real = np.subtract(high_ci, low_ci, out=np.full_like(x, math.log(base)), where=~near)
    return np.asarray(real / math.log(base) + 1j * (np.sign(x) * (high_si - low_si) / math.log(base)))


def law_limit(distance: Numbers, law: Law | str) -> Complex128[Array, " n"]:
    """Return the integral over t in [0, 1] of exp(i · distance · theta(t)), for any law of frequencies.

    The work does not grow with the distance: where the wave comes round often, Levin's equation is solved instead of
    sampling it. For laws that are smooth but for a few corners and steps the result is within
    2e-9 + 1e-16 |x| max |theta| of the truth, whether the distance is one or a million; rougher ones are refused.

    Args:
        distance: x, in positions, (n,).
        law: theta(t), radians per position: a name in `LAWS`, or a function of an array of t in [0, 1]; one of a single
            number works and is slower.

    >>> law_limit(math.pi, "t").imag.round(6)  # 2 / pi
    array([0.63662])
    """
    return mean_wave(reals("law_limit", "distance", distance), _law("law_limit", law))


def law_frequencies(law: Law | str, n_pairs: int) -> list[float]:
    """Return theta(i / n_pairs) of a law, as `law_limit` takes it, for i = 0 .. n_pairs - 1: an inv_freq for `RoPE`.

    >>> from posenc import RoPE
    >>> RoPE(head_dim=8, inv_freq=law_frequencies("t", 4)).frequencies().numpy()
    array([[0.  , 0.25, 0.5 , 0.75]])
    """
    n = count("law_frequencies", "n_pairs", n_pairs)
    return list(map(float, _law("law_frequencies", law)(np.arange(n) / n)))


def finite_size_error(distance: Numbers, n_pairs: int, base: float) -> Float64[Array, " n"]:
    """Return how far the mean of n_pairs cosines is from that of infinitely many, by distance.

    About (cos(distance) - cos(distance / base)) / 2 n_pairs at first: pairs stand at t = i / n_pairs, so that the
    frequency 1 counts and 1 / base does not. Where neighbouring pairs come to be half a turn apart, at a distance of
    about pi n_pairs / ln base, the sum leaves the limit.

    >>> finite_size_error(0, 64, 10000.0)
    array([0.])
    """
    n = count("finite_size_error", "n_pairs", n_pairs)
    inv_freq = geometric(n, base=check_base(base, "finite_size_error"), width=2 * n)
    return np.asarray(cosine_by_distance(inv_freq, distance) - continuous_limit(distance, base=base).real)


def _law(who: str, law: Law | str) -> Law:
    """Return a law whose numbers are checked at every call."""
    if isinstance(law, str) and law not in LAWS:
        raise ValueError(f"{who}: law must be one of {', '.join(LAWS)}, or a function of t; got {short(law)}.")
    theta = LAWS[law] if isinstance(law, str) else law
    if not callable(theta):
        raise TypeError(f"{who}: law must be a name or a function of t; got {type(law).__name__}.")

    def checked(t: Array) -> Array:
        try:
            found = np.asarray(theta(t))
        except (TypeError, ValueError):  # made for one number, as math's functions and an if are
            found = np.array([theta(one) for one in t.ravel().tolist()]).reshape(t.shape)
        if found.dtype.kind not in "iuf" or found.shape not in ((), t.shape):
            raise ValueError(
                f"{who}: law must return a real number for each t; got {found.dtype} of shape {found.shape} for "
                f"{t.shape}. Return a float, or an array of floats."
            )
        if not np.isfinite(found).all():
            raise ValueError(f"{who}: law must be finite for all t from 0 to 1; got {found[~np.isfinite(found)][0]}.")
        return np.broadcast_to(found.astype(np.float64), t.shape)

    return checked
