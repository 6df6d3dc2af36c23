"""The definitions that make new token vectors, against turns by hand and convolutions by hand."""

from __future__ import annotations

import math

import numpy as np

from posenc.definitions.embedded import complex_order, cpvt

GRID = np.array([[row, column] for row in range(3) for column in range(3)])


def test_complex_order_typed() -> None:
    """Quarter turns multiply by i; [1, 1] by 1, 2, 3 radians as in the expositions of RoPE."""
    x = np.array([[3.0, 4.0, 1.0, 1.0]] * 4)
    got = complex_order(x, np.array([0, 1, 2, 3]), d_model=4, inv_freq=np.array([math.pi / 2, 1.0]))
    want = [
        [3.0, 4.0, 1.0, 1.0],
        [-4.0, 3.0, -0.30116868, 1.38177329],
        [-3.0, -4.0, -1.32544426, 0.49315059],
        [4.0, -3.0, -1.1311125, -0.84887249],
    ]
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-8)


def test_complex_order_turns_add_up() -> None:
    """The paper's position-free offset: from p on to p + n is one turn by n, whatever p; lengths stay."""
    rng = np.random.default_rng(2)
    x, inv_freq, pos = rng.standard_normal((5, 6)), rng.standard_normal(3), 10 * rng.standard_normal(5)
    once = complex_order(x, pos + 3.5, d_model=6, inv_freq=inv_freq)
    twice = complex_order(
        complex_order(x, pos, d_model=6, inv_freq=inv_freq), np.full(5, 3.5), d_model=6, inv_freq=inv_freq
    )
    np.testing.assert_allclose(once, twice, rtol=0, atol=1e-13)
    np.testing.assert_allclose(np.linalg.norm(once, axis=1), np.linalg.norm(x, axis=1), rtol=1e-14)


def test_cpvt_counts_neighbours() -> None:
    """All weights 1 on tokens of ones: a corner has 4 in reach, an edge 6, the centre 9; plus the token itself."""
    got = cpvt(np.ones((9, 1)), GRID, d_model=1, weight=np.ones((1, 3, 3)), shift=np.zeros(1))
    np.testing.assert_array_equal(got[:, 0] - 1, [4, 6, 4, 6, 9, 6, 4, 6, 4])
    wide = cpvt(np.ones((9, 1)), GRID, d_model=1, weight=np.ones((1, 5, 5)), shift=np.array([0.5]), kernel_size=5)
    np.testing.assert_array_equal(wide[:, 0], np.full(9, 10.5))


def test_cpvt_by_hand() -> None:
    """A cross-correlation: the weight above the centre sees the token above, that to its right the one right."""
    x, weight = np.zeros((9, 2)), np.zeros((2, 3, 3))
    x[:, 0], x[:, 1] = np.arange(1.0, 10.0), 100 * np.arange(1.0, 10.0)
    weight[0, 0, 1], weight[0, 1, 2], weight[1, 2, 0] = 1.0, 10.0, 1.0  # lane 1: from below to the left
    got = cpvt(x, GRID, d_model=2, weight=weight, shift=np.array([0.0, 0.25]))
    np.testing.assert_array_equal(got[:, 0] - x[:, 0], [20, 30, 0, 51, 62, 3, 84, 95, 6])
    np.testing.assert_array_equal(got[:, 1] - x[:, 1] - 0.25, [0, 400, 500, 0, 700, 800, 0, 0, 0])


def test_cpvt_goes_by_places() -> None:
    """Order and origin of the tokens are nothing; a place without a token holds zeros."""
    rng = np.random.default_rng(3)
    x, weight, bias = rng.standard_normal((9, 2)), rng.standard_normal((2, 3, 3)), rng.standard_normal(2)
    straight = cpvt(x, GRID, d_model=2, weight=weight, shift=bias)
    shuffle = rng.permutation(9)
    np.testing.assert_array_equal(
        cpvt(x[shuffle], GRID[shuffle] + [7, -2], d_model=2, weight=weight, shift=bias), straight[shuffle]
    )
    kept = [0, 1, 2, 3, 5, 6, 7, 8]
    hole = x.copy()
    hole[4] = 0.0
    np.testing.assert_array_equal(
        cpvt(x[kept], GRID[kept], d_model=2, weight=weight, shift=bias),
        cpvt(hole, GRID, d_model=2, weight=weight, shift=bias)[kept],
    )
