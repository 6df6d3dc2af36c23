"""The additive definitions, against numbers typed from the literature and against second forms."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest

from posenc.definitions import additive

# section 3.5 of arXiv 1706.03762 for d_model = 4: sin p, cos p, sin p/100, cos p/100
TABLE_4 = [
    [0.0000000000, 1.0000000000, 0.0000000000, 1.0000000000],
    [0.8414709848, 0.5403023059, 0.0099998333, 0.9999500004],
    [0.9092974268, -0.4161468365, 0.0199986667, 0.9998000067],
    [0.1411200081, -0.9899924966, 0.0299955002, 0.9995500337],
]
POS = np.array([0.0, 1.0, 2.5, 17.0, -3.0, 1000.0])


def waves(angles: list[float]) -> list[tuple[float, float]]:
    """(sin, cos) of each angle as the parts of exp(i angle), in 30 digits."""
    with mpmath.workdps(30):
        turned = [mpmath.expj(angle) for angle in angles]
        return [(float(z.imag), float(z.real)) for z in turned]


def test_sinusoidal_typed_table() -> None:
    np.testing.assert_allclose(additive.sinusoidal(np.arange(4), d_model=4), TABLE_4, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("d_model", "exponent", "omega"),
    [
        (8, "paper", [1.0, 0.1, 0.01, 0.001]),
        (4, "paper", [1.0, 0.01]),
        (8, "tensor2tensor", [1.0, 10000 ** (-1 / 3), 10000 ** (-2 / 3), 0.0001]),
        (6, "tensor2tensor", [1.0, 0.01, 0.0001]),
        (10, "tensor2tensor", [1.0, 0.1, 0.01, 0.001, 0.0001]),
        (2, "paper", [1.0]),
        (2, "tensor2tensor", [1.0]),
        (5, "paper", [1.0, 0.025118864315095794, 0.000630957344480193]),  # 10**-1.6, 10**-3.2
        (5, "tensor2tensor", [1.0, 0.01, 0.0001]),
        (1, "paper", [1.0]),
        (1, "tensor2tensor", [1.0]),
    ],
)
@pytest.mark.parametrize("order", ["alternating", "concatenated"])
def test_sinusoidal_lanes(d_model: int, exponent: Any, omega: list[float], order: Any) -> None:
    got = additive.sinusoidal(POS, d_model=d_model, exponent=exponent, order=order)
    assert got.shape == (len(POS), d_model)
    assert got.dtype == np.float64
    for row, p in zip(got, POS, strict=True):
        pairs = waves([p * w for w in omega])
        if order == "alternating":
            want = [lane for pair in pairs for lane in pair][:d_model]
        else:
            want = ([s for s, _ in pairs] + [c for _, c in pairs])[:d_model]
        np.testing.assert_allclose(row, want, rtol=0, atol=1e-12)


def test_sinusoidal_other_base() -> None:
    got = additive.sinusoidal(np.array([3.0]), d_model=4, base=400.0)
    np.testing.assert_allclose(got[0, 2:], [math.sin(0.15), math.cos(0.15)], rtol=1e-14)


def test_sinusoidal_given_inv_freq() -> None:
    got = additive.sinusoidal(np.array([2.0]), d_model=3, base=7.0, inv_freq=np.array([0.25, 3.0]))
    np.testing.assert_allclose(got, [[math.sin(0.5), math.cos(0.5), math.sin(6.0)]], rtol=1e-14)


def test_sinusoidal_wavelengths() -> None:
    """2 pi to 10000 * 2 pi by the code's exponent; by the paper's formula the last is a step short of it."""
    longest = {"tensor2tensor": 10000.0, "paper": 1000.0}  # d_model 8: 10000**(6/8)
    for exponent, reach in longest.items():
        quarter = 2 * math.pi * np.array([1.0, reach]) / 4
        got = additive.sinusoidal(quarter, d_model=8, exponent=exponent)  # type: ignore[arg-type]
        np.testing.assert_allclose(got[0, :2], [1.0, 0.0], atol=1e-12)
        np.testing.assert_allclose(got[1, 6:], [1.0, 0.0], atol=1e-12)


@pytest.mark.parametrize("step", [1.0, 5.0, -2.5])
def test_sinusoidal_shift_is_linear(step: float) -> None:
    """The paper's claim that PE(p + k) is one linear map T(k) of PE(p), the same at every p."""
    shift = np.zeros((8, 8))
    for lane, omega in zip((0, 2, 4, 6), (1.0, 0.1, 0.01, 0.001), strict=True):
        cos, sin = math.cos(step * omega), math.sin(step * omega)
        shift[lane : lane + 2, lane : lane + 2] = [[cos, sin], [-sin, cos]]
    here, there = (additive.sinusoidal(p, d_model=8) for p in (POS, POS + step))
    np.testing.assert_allclose(there, here @ shift.T, atol=1e-12)


def test_learned_reads_rows() -> None:
    weight = np.array([[9.0, 9.5], [8.0, 8.5], [1.0, 1.5], [2.0, 2.5], [3.0, 3.5]])
    got = additive.learned(np.array([2, 0, 1, 0]), d_model=2, max_len=3, weight=weight, offset=2)
    np.testing.assert_array_equal(got, [[3.0, 3.5], [1.0, 1.5], [2.0, 2.5], [1.0, 1.5]])
    one_hot = np.eye(5)[[4, 1]] @ weight  # second form: a one-hot row times the table
    np.testing.assert_array_equal(additive.learned(np.array([4, 1]), d_model=2, max_len=5, weight=weight), one_hot)


@pytest.mark.parametrize(("offset", "pos", "first"), [(0, -1, 0), (0, 3, 0), (2, -2, -1), (2, 3, -1), (1, -3, -1)])
def test_learned_outside_the_table(offset: int, pos: int, first: int) -> None:
    with pytest.raises(IndexError, match=rf"position {pos} is outside {first}\.\.2"):
        additive.learned(np.array([pos]), d_model=1, max_len=3, weight=np.ones((5, 1)), offset=offset)


def test_learned_padding() -> None:
    """RoBERTa's ids for `<s> Hi </s> <pad>` are 2 3 4 1: its rows, from positions 0 1 2 -1."""
    weight = np.arange(12.0).reshape(6, 2)
    pos, kw = np.array([0, 1, 2, -1]), {"d_model": 2, "max_len": 4, "weight": weight, "offset": 2}
    want = [[4.0, 5.0], [6.0, 7.0], [8.0, 9.0], [2.0, 3.0]]
    np.testing.assert_array_equal(additive.learned(pos, **kw), want)  # type: ignore[arg-type]
    np.testing.assert_array_equal(additive.learned(pos, **kw, padding_idx=1), want)  # type: ignore[arg-type]


@pytest.mark.parametrize("d_model", [1, 4, 7])
def test_binary_is_format_b(d_model: int) -> None:
    pos = np.arange(2**d_model)
    want = [[float(digit) for digit in format(n, f"0{d_model}b")] for n in pos.tolist()]
    got = additive.binary(pos, d_model=d_model)
    np.testing.assert_array_equal(got, want)
    assert got.dtype == np.float64


def test_binary_typed() -> None:
    np.testing.assert_array_equal(additive.binary(np.array([6]), d_model=4), [[0.0, 1.0, 1.0, 0.0]])
    np.testing.assert_array_equal(additive.binary(np.array([17]), d_model=4), [[0.0, 0.0, 0.0, 1.0]])
    assert additive.binary(np.array([], dtype=int), d_model=4).shape == (0, 4)


def test_integer_typed() -> None:
    got = additive.integer(np.array([0.0, 3.0, 2.5, -1.0]), d_model=2)
    np.testing.assert_array_equal(got, [[0.0, 0.0], [3.0, 3.0], [2.5, 2.5], [-1.0, -1.0]])
    assert additive.integer(np.array([]), d_model=3).shape == (0, 3)


def test_normalised_typed() -> None:
    for over, want in {"length": [0.0, 0.2, 0.5, 0.8], "last": [0.0, 0.25, 0.625, 1.0]}.items():
        got = additive.normalised(np.array([0.0, 1.0, 2.5, 4.0]), d_model=3, length=5, over=over)  # type: ignore[arg-type]
        np.testing.assert_allclose(got, np.transpose([want] * 3), rtol=1e-15)
    np.testing.assert_array_equal(additive.normalised(np.array([0]), d_model=2, length=1, over="last"), [[0.0, 0.0]])
    np.testing.assert_array_equal(additive.normalised(np.array([0]), d_model=2, length=1), [[0.0, 0.0]])


@pytest.mark.parametrize(
    ("d_model", "spectrum", "divisors"),
    [
        (4, "octaves", [1.0, 2.0, 4.0, 8.0]),
        (3, "geometric", [1.0, 100.0, 10000.0]),
        (5, "geometric", [1.0, 10.0, 100.0, 1000.0, 10000.0]),
        (1, "geometric", [1.0]),
        (1, "octaves", [1.0]),
    ],
)
def test_sine_lanes(d_model: int, spectrum: Any, divisors: list[float]) -> None:
    """Lane by lane, sin of 0, 30, 90, 150 and 210 degrees."""
    for lane, divisor in enumerate(divisors):
        pos = math.pi * divisor * np.array([0, 1 / 6, 1 / 2, 5 / 6, 7 / 6])
        got = additive.sine(pos, d_model=d_model, spectrum=spectrum)
        assert got.shape == (5, d_model)
        np.testing.assert_allclose(got[:, lane], [0.0, 0.5, 1.0, 0.5, -0.5], atol=1e-12)


def test_sine_base() -> None:
    got = additive.sine(np.array([25 * math.pi / 2]), d_model=2, spectrum="geometric", base=25.0)
    np.testing.assert_allclose(got, [[1.0, 1.0]], atol=1e-14)  # 12.5 pi, and a quarter turn


def test_sine_of_many_octaves() -> None:
    """Past 2**1024, where floats end, the lanes are 0 and nothing overflows."""
    got = additive.sine(np.array([3.0]), d_model=1200)
    np.testing.assert_array_equal(got[0, 1100:], np.zeros(100))
    assert got[0, 60] == 3.0 * 2.0**-60  # sin x = x for the smallest x


def test_sine_shift_is_not_linear() -> None:
    """What the cosines are for: no T takes PE(p) to PE(p + 1), whereas with them one does."""
    for define, exact in ((additive.sine, False), (additive.sinusoidal, True)):
        here, there = (define(np.arange(50) + step, d_model=4) for step in (0, 1))
        fitted = np.linalg.lstsq(here, there)[0]
        assert (np.abs(here @ fitted - there).max() < 1e-9) == exact


def test_sinusoidal_scale() -> None:
    """Each pair is a point on a circle of the scale's radius."""
    for kw, radius in (({"learned_scale": 0.5}, 0.5), ({"learned_scale": 0.5, "scale": np.array(3.0)}, 3.0)):
        got = additive.sinusoidal(POS, d_model=6, **kw)  # type: ignore[arg-type]
        np.testing.assert_allclose(np.hypot(got[:, ::2], got[:, 1::2]), np.full((6, 3), radius), rtol=1e-14)
    still = additive.sinusoidal(np.arange(4), d_model=4, learned_scale=0.5, scale=0.0)
    np.testing.assert_array_equal(still, np.zeros((4, 4)))  # a scale trained to 0 is one
    np.testing.assert_allclose(
        additive.sinusoidal(np.arange(4), d_model=4, scale=-2.0), -2 * np.array(TABLE_4), atol=1e-9
    )


def test_time2vec_typed() -> None:
    """2 p - 1; then sin of 30, 90 and 150 degrees; then, by a phase of 90 degrees, a cosine."""
    inv_freq, phase = np.array([2.0, math.pi / 3, 1.0]), np.array([-1.0, math.pi / 6, math.pi / 2])
    got = additive.time2vec(np.array([0.0, 1.0, 2.0]), d_model=3, inv_freq=inv_freq, phase=phase)
    want = [[-1.0, 0.5, 1.0], [1.0, 1.0, 0.5403023058681398], [3.0, 0.5, -0.4161468365471424]]
    np.testing.assert_allclose(got, want, rtol=1e-14)


def test_tape_is_the_sinusoid_at_another_pace() -> None:
    """Where length = d_model it is Vaswani's table; over twice the length it takes twice the steps."""
    for stretch in (1, 2, 5):
        got = additive.tape(stretch * np.arange(4), d_model=4, length=4 * stretch)
        np.testing.assert_allclose(got, TABLE_4, rtol=0, atol=1e-10)
    odd = additive.tape(np.array([2.0]), d_model=3, length=6, base=8.0)  # omega 1 and 8**(-2/3), halved
    np.testing.assert_allclose(odd, [[math.sin(1.0), math.cos(1.0), math.sin(0.25)]], rtol=1e-14)


def test_cape_typed() -> None:
    """Rows of Vaswani's table: undrawn, shifted, jittered, and (0.5 + 0.5 + 0.25) * 2.4 = 3."""
    table, first = np.array(TABLE_4), np.zeros(1)
    for pos, kw, rows in (
        (np.arange(4), {}, [0, 1, 2, 3]),
        (np.arange(3), {"shift": 1.0}, [1, 2, 3]),
        (np.arange(3), {"jitter": np.array([0.0, 1.0, -1.0])}, [0, 2, 1]),
        (np.arange(3), {"shift": -1.0, "jitter": np.array([1.0, 1.0, 2.0])}, [0, 1, 3]),
        (np.arange(4) / 2, {"scale": 2.0}, [0, 1, 2, 3]),
        (first + 0.5, {"shift": 0.5, "jitter": np.array([0.25]), "scale": 2.4}, [3]),
    ):
        got = additive.cape(pos, d_model=4, **kw)  # type: ignore[arg-type]
        np.testing.assert_allclose(got, table[rows], rtol=0, atol=1e-10)
    got = additive.cape(first + 3, d_model=4, base=400.0)
    np.testing.assert_allclose(got[0, 2:], [math.sin(0.15), math.cos(0.15)], rtol=1e-14)
