"""The additive definitions of several axes, against Vaswani's table and tables read by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from posenc.definitions import additive

# section 3.5 of arXiv 1706.03762 for d_model = 4: sin p, cos p, sin p/100, cos p/100
ROWS = np.array(
    [
        [0.0000000000, 1.0000000000, 0.0000000000, 1.0000000000],
        [0.8414709848, 0.5403023059, 0.0099998333, 0.9999500004],
        [0.9092974268, -0.4161468365, 0.0199986667, 0.9998000067],
        [0.1411200081, -0.9899924966, 0.0299955002, 0.9995500337],
    ]
)


@pytest.mark.parametrize("d_model", [8, 7, 6, 5])
def test_sinusoidal_2d_typed(d_model: int) -> None:
    """Two tables of width 4 side by side, cut at d_model."""
    got = additive.sinusoidal_nd(np.array([[1, 3], [2, 0]]), d_model=d_model)
    want = np.array([[*ROWS[1], *ROWS[3]], [*ROWS[2], *ROWS[0]]])
    np.testing.assert_allclose(got, want[:, :d_model], rtol=0, atol=1e-10)


@pytest.mark.parametrize("d_model", [12, 10, 9, 7])
def test_sinusoidal_3d_typed(d_model: int) -> None:
    got = additive.sinusoidal_nd(np.array([[1, 3, 2]]), d_model=d_model, n_axes=3)
    np.testing.assert_allclose(got, np.array([[*ROWS[1], *ROWS[3], *ROWS[2]]])[:, :d_model], rtol=0, atol=1e-10)


def test_sinusoidal_nd_runs_narrower_than_an_axis() -> None:
    """Width 3 for three axes: runs of two lanes, so that the last axis falls off whole."""
    got = additive.sinusoidal_nd(np.array([[1, 3, 2]]), d_model=3, n_axes=3)
    np.testing.assert_allclose(got, [[*ROWS[1][:2], ROWS[3][0]]], rtol=0, atol=1e-10)


def test_sinusoidal_nd_options_act_within_each_run() -> None:
    pos = np.array([[1, 3]])
    sines_first = additive.sinusoidal_nd(pos, d_model=8, order="concatenated")
    np.testing.assert_allclose(sines_first, [[*ROWS[1][[0, 2, 1, 3]], *ROWS[3][[0, 2, 1, 3]]]], rtol=0, atol=1e-10)
    slow = additive.sinusoidal_nd(pos, d_model=8, exponent="tensor2tensor", base=100.0)  # 1 and 1/100 again
    np.testing.assert_allclose(slow, [[*ROWS[1], *ROWS[3]]], rtol=0, atol=1e-10)
    base = additive.sinusoidal_nd(pos, d_model=8, base=400.0)
    np.testing.assert_allclose(base[0, 6:], [math.sin(0.15), math.cos(0.15)], rtol=1e-14)


def test_learned_2d_reads_the_flattened_image() -> None:
    """2 x 3 patches behind two prefixes: rows 2 3 4 / 5 6 7 of the table."""
    weight = np.arange(8.0)[:, None] * [1.0, 10.0]
    pos = np.array([[-1, 0], [0, 0], [0, 2], [1, 0], [1, 2], [-1, 1]])
    got = additive.learned_2d(pos, d_model=2, height=2, width=3, n_prefix=2, weight=weight)
    np.testing.assert_array_equal(got, np.array([0.0, 2.0, 4.0, 5.0, 7.0, 1.0])[:, None] * [1.0, 10.0])
    image = additive.learned_2d(pos[1:5], d_model=2, height=2, width=3, weight=weight[:6])
    np.testing.assert_array_equal(image[:, 0], [0.0, 2.0, 3.0, 5.0])


@pytest.mark.parametrize("place", [(2, 0), (0, 3), (0, -1), (-1, 2), (-1, -1), (-2, 0), (5, 0)])
def test_learned_2d_outside(place: tuple[int, int]) -> None:
    with pytest.raises(IndexError, match=r"outside 2 x 3 and 2 prefixes"):
        additive.learned_2d(np.array([place]), d_model=1, height=2, width=3, n_prefix=2, weight=np.ones((8, 1)))


def test_hierarchical_typed() -> None:
    pos = np.array([[0, 1], [1, 3]])  # the first sentence's second token, the second's fourth
    added = additive.hierarchical(pos, d_model=4)
    np.testing.assert_allclose(added, [ROWS[0] + ROWS[1], ROWS[1] + ROWS[3]], rtol=0, atol=1e-10)
    joined = additive.hierarchical(pos, d_model=8, combine="concat")
    np.testing.assert_allclose(joined, [[*ROWS[0], *ROWS[1]], [*ROWS[1], *ROWS[3]]], rtol=0, atol=1e-10)


def test_hierarchical_of_other_axes() -> None:
    """Chapter 5, sentence 2, token 1: 5, then 10 in bits, then sines of 1."""
    pos = np.array([[5, 2, 1]])
    joined = additive.hierarchical(pos, d_model=6, axes=("integer", "binary", "sine"), combine="concat")
    np.testing.assert_allclose(joined, [[5, 5, 1, 0, 0.8414709848, 0.4794255386]], rtol=0, atol=1e-10)
    added = additive.hierarchical(pos, d_model=2, axes=("integer", "binary", "sine"))
    np.testing.assert_allclose(added, [[6.8414709848, 5.4794255386]], rtol=0, atol=1e-10)
