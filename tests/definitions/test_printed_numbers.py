"""The numbers that expositions of position encoding print, where the other files do not have them.

Elsewhere: the d_model = 4 table (test_additive), [1, 1] turned by RoPE (test_rotary), T5's bucket starts and
ALiBi's slopes for 12 heads (test_bias).
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from posenc.definitions import additive


def test_positions_1_and_3_of_the_table() -> None:
    """cos 2 + cos 0.02, and half of it between vectors of length sqrt 2; 0.2910 is printed in places."""
    table = additive.sinusoidal(np.arange(4), d_model=4)
    dot = table[1] @ table[3]
    assert dot == pytest.approx(0.583653, abs=5e-7)
    assert dot / (np.linalg.norm(table[1]) * np.linalg.norm(table[3])) == pytest.approx(0.291827, abs=5e-7)


def wavelengths(d_model: int) -> list[float]:
    """Of each pair of lanes, from how far it turns in one step (less than half a turn)."""
    step = additive.sinusoidal(np.array([1.0]), d_model=d_model)[0]
    return [2 * math.pi / math.atan2(sin, cos) for sin, cos in zip(step[::2], step[1::2], strict=True)]


def test_wavelengths_of_512() -> None:
    """Pairs 0, 64, 128, 192 and 255 of 256: 2 pi times 1, 10, 100, 1000 and 10000**(510/512) = 9646.6."""
    got = wavelengths(512)
    assert len(got) == 256
    np.testing.assert_allclose(got[0], 6.283185307179586, rtol=1e-14)
    np.testing.assert_allclose([got[64], got[128], got[192]], [62.83185307, 628.3185307, 6283.185307], rtol=1e-9)
    np.testing.assert_allclose(got[255], 6.283185307179586 * 9646.616199112, rtol=1e-9)
    assert got == sorted(got)


def test_shift_is_a_rotation() -> None:
    """PE(p + k) = T(k) PE(p) for random p and k, T orthogonal, of determinant 1, and found from other positions."""
    rng = np.random.default_rng(0)
    anchors = rng.uniform(-100, 100, 40)
    for p, k in zip(rng.uniform(-1000, 1000, 20), rng.uniform(-1000, 1000, 20), strict=True):
        here, there = (additive.sinusoidal(anchors + step, d_model=6) for step in (0, k))
        turn = np.linalg.lstsq(here, there)[0].T
        np.testing.assert_allclose(turn @ turn.T, np.eye(6), rtol=0, atol=1e-8)
        assert np.linalg.det(turn) == pytest.approx(1, abs=1e-8)
        before, after = (additive.sinusoidal(np.array([x]), d_model=6)[0] for x in (p, p + k))
        np.testing.assert_allclose(turn @ before, after, rtol=0, atol=1e-7)


def test_sine_of_width_2() -> None:
    want = [[0.841471, 0.479426], [0.909297, 0.841471], [0.141120, 0.997495]]
    np.testing.assert_allclose(additive.sine(np.array([1, 2, 3]), d_model=2), want, rtol=0, atol=5e-7)


def test_normalised_over_4() -> None:
    got = additive.normalised(np.arange(4), d_model=1, length=4)
    np.testing.assert_array_equal(got[:, 0], [0.0, 0.25, 0.5, 0.75])


def test_binary_neighbours_differ_in_both_bits() -> None:
    one, two = additive.binary(np.array([1, 2]), d_model=2)
    np.testing.assert_array_equal([one, two], [[0.0, 1.0], [1.0, 0.0]])
    assert (one != two).all()
