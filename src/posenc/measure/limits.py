"""The limit of infinitely many pairs: the mean of exp(i · distance · theta(t)) over t in [0, 1], for any law theta."""

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
_NARROW = 0.1  # ln base below which the two cosine integrals cancel


def geometric_law(base: float) -> Law:
    """Return theta(t) = base^-t, the frequencies of RoPE and of sinusoidal vectors.

    >>> geometric_law(100.0)(np.array([0.0, 0.5])).round(12)
    array([1. , 0.1])
    """
    speed = -math.log(check_base(base, "geometric_law"))
    return lambda t: np.exp(speed * t)


def power_law(exponent: float) -> Law:
    """Return theta(t) = t^exponent for an exponent of at least 0; 0 gives a constant.

    >>> float(power_law(2.0)(np.array(0.5)))
    0.25
    """
    checked = float(reals("power_law", "exponent", [exponent])[0])
    if checked < 0:
        raise ValueError(
            f"power_law: exponent must not be negative, because frequencies would be infinite at t = 0; got {checked}."
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

    It equals (Ci(x) - Ci(x / base)) / ln base + i (Si(x) - Si(x / base)) / ln base. Its real part is the limit of
    `cosine_by_distance` for infinitely many pairs. It is 1 at 0; at -x it is the conjugate of its value at x. The error
    is at most 1e-12. Without SciPy it raises an ImportError.

    Args:
        distance: x, in positions, (n,).
        base: The base of the frequencies, above 1.

    >>> continuous_limit(100.0).real.round(12)
    array([0.43677329])
    """
    x, base = reals("continuous_limit", "distance", distance), check_base(base, "continuous_limit")
    if math.log(base) < _NARROW:
        return mean_wave(x, geometric_law(base))
    try:
        from scipy.special import sici
    except ImportError as error:
        raise ImportError("continuous_limit: needs SciPy; pip install 'posenc[plot]'.") from error
    (high_si, high_ci), (low_si, low_ci) = sici(np.abs(x)), sici(np.abs(x) / base)
    near = np.abs(x) < 1e-9  # here the cosine integrals are infinite, and their difference is ln base up to rounding
    real = np.subtract(high_ci, low_ci, out=np.full_like(x, math.log(base)), where=~near)
    return np.asarray(real / math.log(base) + 1j * (np.sign(x) * (high_si - low_si) / math.log(base)))


def law_limit(distance: Numbers, law: Law | str) -> Complex128[Array, " n"]:
    """Return the integral over t in [0, 1] of exp(i · distance · theta(t)), for any law of frequencies.

    The work does not grow with the distance: where the wave oscillates often, Levin's equation is solved instead of
    sampling it. For laws that are smooth except for a few corners and steps the error is at most
    2e-9 + 1e-16 |x| max |theta|, also at a distance of a million; rougher laws are refused.

    Args:
        distance: x, in positions, (n,).
        law: theta(t), radians per position: a name in `LAWS`, or a function of an array of t in [0, 1]. A function of a
            single number works as well, but is slower.

    >>> law_limit(math.pi, "t").imag.round(6)  # 2 / pi
    array([0.63662])
    """
    return mean_wave(reals("law_limit", "distance", distance), _law("law_limit", law))


def law_frequencies(law: Law | str, n_pairs: int) -> list[float]:
    """Return theta(i / n_pairs) for i = 0 .. n_pairs - 1, an inv_freq for `RoPE`; `law` is as in `law_limit`.

    >>> from posenc import RoPE
    >>> RoPE(head_dim=8, inv_freq=law_frequencies("t", 4)).frequencies().numpy()
    array([[0.  , 0.25, 0.5 , 0.75]])
    """
    n = count("law_frequencies", "n_pairs", n_pairs)
    return list(map(float, _law("law_frequencies", law)(np.arange(n) / n)))


def finite_size_error(distance: Numbers, n_pairs: int, base: float) -> Float64[Array, " n"]:
    """Return the mean of n_pairs cosines minus its limit for infinitely many pairs, by distance.

    At small distances it is about (cos(distance) - cos(distance / base)) / 2 n_pairs: pairs are at t = i / n_pairs, so
    the frequency 1 is included and 1 / base is not. At a distance of about pi n_pairs / ln base, neighbouring pairs are
    half a rotation apart, and the sum leaves the limit.

    >>> finite_size_error(0, 64, 10000.0)
    array([0.])
    """
    n = count("finite_size_error", "n_pairs", n_pairs)
    inv_freq = geometric(n, base=check_base(base, "finite_size_error"), width=2 * n)
    return np.asarray(cosine_by_distance(inv_freq, distance) - continuous_limit(distance, base=base).real)


def _law(who: str, law: Law | str) -> Law:
    """Return a law as a function that checks its results at every call."""
    if isinstance(law, str) and law not in LAWS:
        raise ValueError(f"{who}: law must be one of {', '.join(LAWS)}, or a function of t; got {short(law)}.")
    theta = LAWS[law] if isinstance(law, str) else law
    if not callable(theta):
        raise TypeError(f"{who}: law must be a name or a function of t; got {type(law).__name__}.")

    def checked(t: Array) -> Array:
        try:
            found = np.asarray(theta(t))
        except (TypeError, ValueError):  # a function of one number, such as those of `math`
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
