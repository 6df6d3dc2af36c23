"""Limits of infinitely many pairs: known numbers, mpmath's integrals near and far, and the vectors of real models."""

import math
import sys
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import posenc
from posenc import frequencies, measure
from strategies import check, refuses

NEAR_AND_FAR = [0.0, 1e-12, 0.003, 1.0, -1.0, 7.5, 100.0, 1234.5, -20_000.0, 99_999.0, 1e6, -1e6]


def stated(x: float, largest: float = 1.0) -> float:
    """The error that law_limit states."""
    return 2e-9 + 1e-16 * abs(x) * largest


def by_quadosc(x: float, base: float) -> complex:
    """The integral over u = x base^-t, from x / base to x, of exp(iu) / u, by mpmath's rule for waves without end."""

    def beyond(start: float) -> complex:
        far = max(start, 8.0)
        near = mpmath.quad(lambda u: mpmath.expj(u) / u, [start * (far / start) ** (i / 8) for i in range(9)])
        parts = (
            mpmath.quadosc(lambda s, f=f: f(s) / (far + s), [0, mpmath.inf], omega=1) for f in (mpmath.cos, mpmath.sin)
        )
        return complex(near + mpmath.expj(far) * mpmath.mpc(*parts))

    return (beyond(x / base) - beyond(x)) / math.log(base)


def of_power(x: float, a: float) -> complex:
    """The integral of exp(i x t^a): Kummer's function M(1 / a, 1 / a + 1, ix)."""
    with mpmath.workdps(30):
        return complex(mpmath.hyp1f1(mpmath.mpf(1) / a, mpmath.mpf(1) / a + 1, mpmath.mpc(0, x)))


def of_base(x: float, base: float) -> complex:
    with mpmath.workdps(30):
        if x == 0:
            return 1.0 + 0j
        high, low = abs(mpmath.mpf(x)), abs(mpmath.mpf(x)) / base
        real, imaginary = mpmath.ci(high) - mpmath.ci(low), mpmath.si(high) - mpmath.si(low)
        return complex(real / mpmath.log(base), math.copysign(1, x) * imaginary / mpmath.log(base))


CLOSED: dict[str, Callable[[float], complex]] = {
    "10000^-t": lambda x: of_base(x, 10000.0),
    "1000^-t": lambda x: of_base(x, 1000.0),
    "t": lambda x: of_power(x, 1.0),
    "t^2": lambda x: of_power(x, 2.0),
    "t^0.5": lambda x: of_power(x, 0.5),
    "constant": lambda x: complex(math.cos(x), math.sin(x)),
}


def test_known_numbers() -> None:
    found = measure.continuous_limit([1, 100, 1000]).real
    np.testing.assert_allclose(found, [0.973962771210, 0.436773293209, 0.187690642512], atol=5e-13, rtol=0)
    assert measure.continuous_limit(1e4, base=5e5).real[0] == pytest.approx(0.254136902860, abs=5e-13)
    zeros = measure.zeros(lambda x: measure.continuous_limit(x).real, 1.0, 50_000.0)
    np.testing.assert_allclose(zeros, [6166.02848473, 33841.5178227], rtol=2e-12)


def test_the_zeros_of_a_law_are_those_of_its_closed_form() -> None:
    zeros = measure.zeros(lambda x: measure.law_limit(x, "10000^-t").real, 6100.0, 6200.0, step=1.0)
    np.testing.assert_allclose(zeros, [6166.02848473], rtol=1e-10)
    waves = measure.zeros(lambda x: measure.law_limit(x, "t").real, 0.5, 20.0)  # sin(x) / x
    np.testing.assert_allclose(waves, np.pi * np.arange(1, 7), rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("base", [2.0, 1e4, 5e5])
def test_the_closed_form_is_the_integral_that_mpmath_finds(base: float) -> None:
    x = [0.5, 3.0, 250.0, 8_000.0, 1e6]
    wanted = [by_quadosc(u, base) for u in x]
    np.testing.assert_allclose(measure.continuous_limit(x, base=base), wanted, atol=1e-12, rtol=0)


@given(x=st.floats(-1e6, 1e6), base=st.sampled_from([1.0001, 1.09, 1.2, 10.0, 1e4, 5e5, 1e12, 1e300]))
@check(150)
def test_the_closed_form_keeps_its_error(x: float, base: float) -> None:
    found = measure.continuous_limit(x, base=base)[0]
    assert abs(found - of_base(x, base)) <= (1e-12 if base > 1.11 else stated(x))


def test_small_distances_and_zero() -> None:
    x = np.array([0.0, -0.0, 5e-324, 1e-300, 1e-12, 9.9e-10, 1.01e-9, 1e-6])
    found = measure.continuous_limit(x)
    assert found[:2].tolist() == [1.0, 1.0]
    slope = (1 - 1e-4) / math.log(1e4)
    np.testing.assert_allclose(found.imag, x * slope, rtol=1e-6, atol=0)
    np.testing.assert_allclose(found.real, 1.0, atol=2e-14)
    np.testing.assert_array_equal(measure.continuous_limit(-x), found.conj())


def test_a_base_near_one_is_one_wave() -> None:
    found = measure.continuous_limit([3.0, 1e5], base=1 + 1e-12)
    np.testing.assert_allclose(found, np.exp(1j * np.array([3.0, 1e5])), atol=1e-6)


@pytest.mark.parametrize("law", measure.LAWS)
def test_named_laws_near_and_far(law: str) -> None:
    found = measure.law_limit(NEAR_AND_FAR, law)
    assert found.dtype == np.complex128
    for x, got in zip(NEAR_AND_FAR, found, strict=True):
        assert abs(got - CLOSED[law](x)) <= stated(x), (law, x)


@given(x=st.floats(-1e6, 1e6), law=st.sampled_from(sorted(CLOSED)))
@check(150)
def test_named_laws_keep_the_stated_error(x: float, law: str) -> None:
    assert abs(measure.law_limit(x, law)[0] - CLOSED[law](x)) <= stated(x)


@given(x=st.floats(0, 1e6), a=st.floats(0.3, 4.0))
@check(60)
def test_any_power(x: float, a: float) -> None:
    assert abs(measure.law_limit(x, measure.power_law(a))[0] - of_power(x, a)) <= stated(x)


@given(x=st.floats(-1e6, 1e6))
@check(40)
def test_a_law_with_points_of_rest_is_bessels_function(x: float) -> None:
    found = measure.law_limit(x, lambda t: np.cos(2 * np.pi * t))[0]
    assert abs(found - float(mpmath.besselj(0, x))) <= stated(x)
    once = measure.law_limit(x, lambda t: 3 * math.cos(math.pi * t))[0]  # a function of one number
    assert abs(once - float(mpmath.besselj(0, 3 * x))) <= stated(x, 3.0)


BESIDE = [eighth / 8 + off for eighth in (1, 6) for off in (-1e-3, 1e-4, 7e-6, -1e-8, 1e-10)]  # where pieces end


@given(x=st.floats(1e-3, 1e6), corner=st.floats(0.05, 0.95) | st.sampled_from(BESIDE))
@check(80)
def test_corners_and_steps(x: float, corner: float) -> None:
    def ramp(length: float) -> complex:
        return complex((mpmath.expj(mpmath.mpf(x) * length) - 1) / (1j * mpmath.mpf(x)))

    found = measure.law_limit(x, lambda t: np.abs(t - corner))[0]
    assert abs(found - ramp(corner) - ramp(1 - corner)) <= stated(x)
    found = measure.law_limit(x, lambda t: 0.0 if t < corner else 1.0)[0]  # no array fits into an if
    assert abs(found - corner - (1 - corner) * complex(mpmath.expj(x))) <= stated(x)


@pytest.mark.sample(1)
@pytest.mark.parametrize("x", [1.0, 40.0, 900.0])
def test_a_callable_against_a_plain_quadrature(x: float) -> None:
    def law(t: np.ndarray) -> np.ndarray:
        return 0.5 * np.sin(5 * t**2) + np.exp(-3 * t)

    ends = mpmath.linspace(0, 1, 2 + int(x))
    wanted = mpmath.quad(lambda t: mpmath.expj(x * (mpmath.sin(5 * t**2) / 2 + mpmath.exp(-3 * t))), ends)
    assert abs(measure.law_limit(x, law)[0] - complex(wanted)) <= stated(x)


def test_many_distances_are_each_themselves() -> None:
    x = np.linspace(-1e6, 1e6, 1001)
    found = measure.law_limit(x, "10000^-t")
    np.testing.assert_allclose(found, measure.continuous_limit(x), atol=1e-10)
    np.testing.assert_allclose(found[[17, 600]], measure.law_limit(x[[17, 600]], "10000^-t"), atol=1e-12)


@pytest.mark.parametrize("law", [*map(measure.LAWS.get, ["10000^-t", "t", "t^2"]), lambda t: 1 + 1e-4 * t])
def test_the_work_does_not_grow_with_the_distance(law: Callable) -> None:
    asked = []

    def counting(t: np.ndarray) -> np.ndarray:
        asked.append(t.size)
        return law(t)

    measure.law_limit(1e6, counting)
    assert sum(asked) < 3000  # of which a wave of 160,000 turns would need a million


@pytest.mark.parametrize("law", measure.LAWS)
def test_a_law_is_the_limit_of_the_models_that_take_its_frequencies(law: str) -> None:
    n, distance = 2000, [0, 1, 5, 30]
    inv_freq = measure.law_frequencies(law, n)
    sinusoidal, rope = (
        posenc.Sinusoidal(d_model=2 * n, inv_freq=inv_freq),
        posenc.RoPE(head_dim=2 * n, inv_freq=inv_freq),
    )
    vectors = sinusoidal.vectors(torch.tensor([100, *(100 - d for d in distance)])).numpy()
    limit = measure.law_limit(distance, law).real
    np.testing.assert_allclose(vectors[1:] @ vectors[0] / n, limit, atol=2.01 / (2 * n) * 30 / 8)
    q = torch.ones(1, 1, 1, 2 * n, dtype=torch.float64)
    keys = torch.ones(1, 1, len(distance), 2 * n, dtype=torch.float64)
    there, here = (rope.place(torch.tensor(p), dtype=torch.float64) for p in ([100], [100 - d for d in distance]))
    turned, keys = rope.rotate(q, keys, there, here)
    scores = (turned * keys).sum(-1).flatten().numpy() / (2 * n)
    np.testing.assert_allclose(scores, vectors[1:] @ vectors[0] / n, atol=1e-12)


def test_frequencies_of_the_papers_law_are_ropes() -> None:
    found = measure.law_frequencies("10000^-t", 64)
    assert all(type(f) is float for f in found)
    np.testing.assert_allclose(found, frequencies.geometric(64, base=1e4, width=128), rtol=1e-14)
    assert measure.law_frequencies("t^2", 4) == [0.0, 1 / 16, 1 / 4, 9 / 16]
    assert measure.law_frequencies(lambda t: 0.5, 2) == [0.5, 0.5]
    assert measure.law_frequencies(measure.geometric_law(100.0), 2) == pytest.approx([1.0, 0.1], rel=1e-15)


def test_the_error_of_finitely_many_pairs_is_that_of_real_vectors() -> None:
    sinusoidal = posenc.Sinusoidal(d_model=64, base=500.0)
    distance = np.array([0, 1, 10, 100, 5000])
    vectors = sinusoidal.vectors(torch.tensor([5000, *(5000 - distance).tolist()])).numpy()
    cosine = vectors[1:] @ vectors[0] / 32
    limit = [of_base(float(x), 500.0).real for x in distance]
    np.testing.assert_allclose(measure.finite_size_error(distance, 32, 500.0), cosine - limit, atol=1e-11)


def test_the_error_of_finitely_many_pairs_begins_with_its_ends() -> None:
    x, n = np.array([0.5, 2.0, 6.0, 9.0]), 4096
    ends = (np.cos(x) - np.cos(x / 1e4)) / (2 * n)  # Euler and Maclaurin
    np.testing.assert_allclose(measure.finite_size_error(x, n, 1e4), ends, atol=2e-6)
    assert measure.finite_size_error(x, n, 1e4)[1] == pytest.approx(ends[1], rel=2e-3)


@pytest.mark.parametrize("function", [measure.continuous_limit, lambda x: measure.law_limit(x, "t")])
def test_bad_distances_get_one_sentence(function: Callable) -> None:
    for bad in ([], [[1.0]], math.nan, [1.0, math.inf]):
        with refuses(ValueError, "_limit: distance must be"):
            function(bad)
    for bad in (1j, "far", None, [True], object()):
        with refuses(TypeError, "_limit: distance must be real numbers"):
            function(bad)


def test_bad_bases_get_one_sentence() -> None:
    for base in (1.0, 0.5, -3.0, math.nan, math.inf):
        for ask in (
            lambda b: measure.continuous_limit(1.0, base=b),
            lambda b: measure.finite_size_error(1.0, 4, b),
            measure.geometric_law,
        ):
            with refuses(ValueError, "base must be a finite number greater than 1"):
                ask(base)


def test_without_scipy_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    with pytest.raises(ImportError, match=r"continuous_limit: needs SciPy; pip install 'posenc\[plot\]'\."):
        measure.continuous_limit(1.0)
    assert measure.law_limit(1.0, "t")[0] == pytest.approx(of_power(1.0, 1.0))  # which needs none
