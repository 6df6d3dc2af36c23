"""The definitions of score encodings of images, against printed tables and numbers worked by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from posenc.definitions.images import Array, beit, decomposed_2d, dynamic_position_bias, swin, swin_v2

LN3 = 1.0986122886681098
# rows of the table for a window of 2 x 2, as printed for the public code
TWO_BY_TWO = [[4, 3, 1, 0], [5, 4, 2, 1], [7, 6, 4, 3], [8, 7, 5, 4]]
FOUR = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])


def counted(rows: int) -> Array:
    """A table of two heads which holds its own rows, from 100 on in the second."""
    return np.arange(float(rows))[:, None] + [0.0, 100.0]


def test_swin_two_by_two() -> None:
    got = swin(FOUR, FOUR, n_heads=2, window=(2, 2), weight=counted(9))
    np.testing.assert_array_equal(got, [TWO_BY_TWO, np.add(TWO_BY_TWO, 100)])


def test_swin_oblong() -> None:
    """2 x 3: rows of five columns; the farthest ahead has row 0, the same place 7, the farthest back 14."""
    q, k = np.array([[0, 0], [1, 2], [4, 9]]), np.array([[1, 2], [0, 0], [4, 8]])
    for i, j, row in ((0, 0, 0), (1, 1, 14), (0, 1, 7), (1, 0, 7), (2, 2, 8)):
        got = swin(q[i : i + 1], k[j : j + 1], n_heads=2, window=(2, 3), weight=counted(15))
        np.testing.assert_array_equal(got, [[[row]], [[row + 100]]])
    assert swin(q[:1], q[:1], n_heads=1, weight=counted(169)[:, :1]) == 84  # 7 x 7 by default, its middle


@pytest.mark.parametrize("place", [(2, 0), (0, 3), (-2, 0), (0, -3)])
def test_outside_the_window(place: tuple[int, int]) -> None:
    q, k = np.array([place]) + 5, np.array([[5, 5]])
    one = np.ones((1, 1, 1))
    for call in (
        lambda: swin(q, k, n_heads=2, window=(2, 3), weight=counted(15)),
        lambda: beit(q, k, n_heads=2, window=(2, 3), weight=counted(18)),
        lambda: decomposed_2d(one, one, q, k, head_dim=1, size=(2, 3), rel_h=np.ones((3, 1)), rel_w=np.ones((5, 1))),
    ):
        with pytest.raises(IndexError, match=r"does not occur in a window of 2 x 3"):
            call()


@pytest.mark.parametrize("first", [(-1, -1), (-1, 0)])
def test_beit_two_by_two(first: tuple[int, int]) -> None:
    """Class to patch 9, patch to class 10, class to class 11."""
    pos = np.array([first, *FOUR])
    want = [[11, 9, 9, 9, 9], *([10, *row] for row in TWO_BY_TWO)]
    got = beit(pos, pos, n_heads=2, window=(2, 2), weight=counted(12))
    np.testing.assert_array_equal(got, [want, np.add(want, 100)])
    assert beit(pos[:1], pos[1:2], n_heads=1, weight=counted(732)[:, :1]) == 729  # 14 x 14 by default: 27 * 27


@pytest.mark.parametrize("place", [(-1, 1), (-1, -2), (-2, -1), (-2, 0)])
def test_no_other_token_stands_in_a_negative_row(place: tuple[int, int]) -> None:
    for q, k in (([place], [[0, 0]]), ([[0, 0]], [place])):
        with pytest.raises(IndexError, match=r"neither a patch nor the class token"):
            beit(np.array(q), np.array(k), n_heads=2, window=(3, 3), weight=counted(28))


# of y: ln 3 (3 relu(y) - 3 relu(-y)) in head 0; of x: -6 ln 3 relu(x - 1/3) in head 1
CPB: dict[str, Any] = {
    "n_heads": 2,
    "width": 3,
    "w1": np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]]),
    "b1": np.array([0.0, 0.0, -1 / 3]),
    "w2": LN3 * np.array([[3.0, -3.0, 0.0], [0.0, 0.0, -6.0]]),
}


@pytest.mark.parametrize(
    ("step", "kw"),
    [(1, {"window": (9, 9)}), (2, {"window": (17, 17)}), (1, {"window": (25, 25), "pretrained_window": (9, 9)})],
)
def test_swin_v2_typed(step: int, kw: dict[str, Any]) -> None:
    """At 1/8, 3/8, 7/8 of the reach the logarithms are 1/3, 2/3, 1; 16 sigmoid(n ln 3) = 16 3^n / (1 + 3^n)."""
    at = {0: 8.0, 1: 12.0, 3: 16 * 9 / 10, 7: 16 * 27 / 28, -1: 4.0, -3: 16 / 10, -7: 16 / 28}
    pos, origin = np.array([[step * d, 0] for d in at]), np.array([[0, 0]])
    got = swin_v2(pos, origin, **CPB, **kw)
    np.testing.assert_allclose(got[0, :, 0], list(at.values()), rtol=1e-14)
    np.testing.assert_allclose(got[1], np.full((len(at), 1), 8.0), rtol=1e-14)
    columns = {1: 8.0, 3: 16 / 10, 7: 16 / 82, -7: 8.0}  # 6 * 1/3 = 2 and 6 * 2/3 = 4 powers of 1/3
    got = swin_v2(origin, np.array([[0, -step * d] for d in columns]), **CPB, **kw)
    np.testing.assert_allclose(got[1, 0], list(columns.values()), rtol=1e-13)
    np.testing.assert_allclose(got[0], np.full((1, len(columns)), 8.0), rtol=1e-14)


def test_swin_v2_sides() -> None:
    """Default 8 x 8: the whole reach is log_8 9; sides of their own; a side of one patch."""
    first: dict[str, Any] = {"n_heads": 1, "width": 1, "b1": np.zeros(1), "w2": np.ones((1, 1))}
    both = {"w1": np.array([[1.0, 10.0]])}
    log9 = math.log(9) / math.log(8)

    def reach(z: float) -> float:
        return 16 / (1 + math.exp(-z))

    end = swin_v2(np.array([[7, 0]]), np.array([[0, 0]]), **first, **both)
    np.testing.assert_allclose(end, [[[reach(log9)]]], rtol=1e-14)
    oblong = swin_v2(np.array([[8, 1]]), np.array([[0, 0]]), **first, **both, window=(9, 9), pretrained_window=(9, 2))
    np.testing.assert_allclose(oblong, [[[reach(11 * log9)]]], rtol=1e-14)
    line = swin_v2(np.array([[0, 4]]), np.array([[0, 0]]), **first, **both, window=(1, 5))
    np.testing.assert_allclose(line, [[[reach(10 * log9)]]], rtol=1e-14)


def test_decomposed_2d_typed() -> None:
    """q = (2, 3) and (1, -1), not divided by sqrt(2); a row down is row 2 of three, two columns left row 0 of five."""
    rel_h = np.array([[100.0, 0.0], [0.0, 0.0], [1.0, 10.0]])
    rel_w = np.array([[5.0, 0.0], [7.0, 7.0], [0.0, 1.0], [8.0, 8.0], [0.0, 2.0]])
    q = np.array([[[2.0, 3.0]], [[1.0, -1.0]]])
    k = np.array([[[4.0, 4.0]] * 3] * 2)  # does not enter
    got = decomposed_2d(
        q, k, np.array([[1, 0]]), np.array([[0, 2], [1, 0], [0, 0]]), head_dim=2, size=(2, 3), rel_h=rel_h, rel_w=rel_w
    )
    np.testing.assert_array_equal(got, [[[32.0 + 10.0, 3.0, 32.0 + 3.0]], [[-9.0 + 5.0, -1.0, -9.0 - 1.0]]])


def network(width: int, depth: int, n_axes: int = 1, n_heads: int = 1) -> dict[str, Any]:
    """Layers of ones and zeros, to be changed where a test needs more."""
    return {
        "n_heads": n_heads,
        "width": width,
        "depth": depth,
        "n_axes": n_axes,
        "w_in": np.zeros((width, n_axes)),
        "b_in": np.zeros(width),
        "ln_g": np.ones((depth, width)),
        "ln_b": np.zeros((depth, width)),
        "w_mid": np.zeros((depth - 1, width, width)),
        "b_mid": np.zeros((depth - 1, width)),
        "w_out": np.ones((n_heads, width)),
        "b_out": np.zeros(n_heads),
    }


def test_dynamic_position_bias_one_layer() -> None:
    """Lanes +-0.0045: 0.0045**2 + 1e-5 = 0.0055**2, so they normalise to +-9/11; at 0 to 0."""
    kw = network(2, 1, n_heads=2) | {"w_in": np.array([[0.0045], [-0.0045]])}
    kw |= {"ln_g": np.array([[2.0, 1.0]]), "ln_b": np.array([[0.0, 0.5]])}
    kw |= {"w_out": np.array([[1.0, 10.0], [0.0, 22.0]]), "b_out": np.array([3.0, 0.0])}
    got = dynamic_position_bias(np.array([5]), np.array([4, 5, 6]), **kw)
    want = [[[3 + 18 / 11, 3 + 5.0, 3 + 10 * (9 / 11 + 0.5)]], [[0.0, 11.0, 18.0 + 11.0]]]
    np.testing.assert_allclose(got, want, rtol=1e-13)


def test_dynamic_position_bias_deeper() -> None:
    """The first layer gives (9/11, 0) and (0, 9/11); the second takes 0.0055 of one or the other, and 0.01 more."""
    kw = network(2, 2) | {"w_in": np.array([[0.0045], [-0.0045]])}
    kw |= {"w_mid": np.array([[[0.011, 0.0], [0.0, 0.0]]]), "w_out": np.array([[11.0, 0.0]])}
    got = dynamic_position_bias(np.array([1, -1]), np.array([0]), **kw)  # 0.009 and 0: +-0.0045 about their mean
    np.testing.assert_allclose(got, [[[9.0], [0.0]]], rtol=1e-13)
    kw |= {"b_mid": np.array([[0.0, 0.009]])}
    got = dynamic_position_bias(np.array([1, -1]), np.array([0]), **kw | {"w_out": np.array([[0.0, 11.0]])})
    np.testing.assert_allclose(got, [[[0.0], [9.0]]], atol=1e-13)


@pytest.mark.parametrize("log_distance", [False, True])
def test_dynamic_position_bias_axes(log_distance: bool) -> None:
    """Only dy - dx counts here: +-0.0045 of it to +-9/11 where it is 1; e - 1 steps are 1 by the logarithm."""
    unit = math.e - 1 if log_distance else 1.0
    kw = network(2, 1, n_axes=2) | {"w_in": np.array([[0.009, 0.0], [0.0, 0.009]]), "log_distance": log_distance}
    kw |= {"w_out": np.array([[11.0, -11.0]])}
    places = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, -1.0], [1.0, 1.0], [-1.0, 0.0]])
    want = [9.0, -9.0, 9.0, 0.0, -9.0]
    got = dynamic_position_bias(unit * places, np.zeros((1, 2)), **kw)
    np.testing.assert_allclose(got[0, :, 0], want, atol=1e-12)


def test_dynamic_position_bias_second_form() -> None:
    """Five lanes and three layers by the variance as the mean of squares less the square of the mean."""
    rng = np.random.default_rng(3)
    kw: dict[str, Any] = {
        name: rng.standard_normal(value.shape) if isinstance(value, np.ndarray) else value
        for name, value in network(5, 3, n_axes=2, n_heads=2).items()
    }

    def normal(z: Array, layer: int) -> Array:
        z = (z - z.mean()) / np.sqrt((z * z).mean() - z.mean() ** 2 + 1e-5)
        return np.where((y := kw["ln_g"][layer] * z + kw["ln_b"][layer]) > 0, y, 0)

    q, k = np.array([[3.0, -2.0], [0.5, 7.0]]), np.array([[1.0, 1.0]])
    got = dynamic_position_bias(q, k, **kw)
    for i in range(2):
        z = normal((q[i] - k[0]) @ kw["w_in"].T + kw["b_in"], 0)
        for layer in (1, 2):
            z = normal(z @ kw["w_mid"][layer - 1].T + kw["b_mid"][layer - 1], layer)
        np.testing.assert_allclose(got[:, i, 0], z @ kw["w_out"].T + kw["b_out"], rtol=1e-10)


PLAIN = {"norm": False, "ln_g": None, "ln_b": None}  # no normalisation
MIDDLE = ("w_mid", "b_mid")


@pytest.mark.parametrize("absent", [False, True])
def test_dynamic_position_bias_without_norm(absent: bool) -> None:
    """Lanes 2 d + 1 and -d; ReLU leaves what is above 0. What is not used may be None or left out."""
    kw = network(2, 1) | {"w_in": np.array([[2.0], [-1.0]]), "b_in": np.array([1.0, 0.0])}
    kw |= {"w_out": np.array([[1.0, 10.0]]), "b_out": np.array([100.0])} | PLAIN | dict.fromkeys(MIDDLE)
    given = {name: value for name, value in kw.items() if not absent or value is not None}
    got = dynamic_position_bias(np.array([0, 3, -4]), np.array([0]), **given)
    np.testing.assert_allclose(got[0, :, 0], [101.0, 107.0, 140.0], rtol=1e-14)


def test_dynamic_position_bias_silu() -> None:
    """z / (1 + exp(-z)) is 3/4 z at log 3 and -1/4 of it at -log 3; far out z and 0, without an overflow."""
    kw = network(2, 1, n_heads=2) | {"w_in": np.array([[LN3], [-LN3]]), "w_out": np.eye(2)} | PLAIN
    got = dynamic_position_bias(np.array([1, 0, 5000]), np.array([0]), **kw, activation="silu")
    want = [[0.75 * LN3, 0.0, 5000 * LN3], [-0.25 * LN3, 0.0, 0.0]]
    np.testing.assert_allclose(got[..., 0], want, rtol=1e-14, atol=1e-300)


def test_dynamic_position_bias_silu_after_norm() -> None:
    """Lanes +-0.0045 normalise to +-9/11, shifted by 2/11 to 1 and -7/11; then both layers' SiLU."""
    kw = network(2, 2) | {"w_in": np.array([[0.0045], [-0.0045]]), "ln_b": np.array([[2 / 11, 2 / 11], [0.0, 0.5]])}
    kw |= {"b_mid": np.array([[0.0045, -0.0045]]), "w_out": np.array([[1.0, 0.0]]), "activation": "silu"}
    first, second = 1 / (1 + math.exp(-1.0)), -7 / 11 / (1 + math.exp(7 / 11))
    got = dynamic_position_bias(np.array([1]), np.array([0]), **kw)
    np.testing.assert_allclose(got, [[[9 / 11 / (1 + math.exp(-9 / 11))]]], rtol=1e-13)
    kw |= {"w_mid": np.array([[[1.0, 0.0], [0.0, 1.0]]]), "b_mid": np.zeros((1, 2))}
    got = dynamic_position_bias(np.array([1]), np.array([0]), **kw)
    half = (first - second) / 2
    upper = half / math.sqrt(half**2 + 1e-5)
    np.testing.assert_allclose(got, [[[upper / (1 + math.exp(-upper))]]], rtol=1e-13)


@pytest.mark.parametrize("missing", ["ln_g", "ln_b", "w_mid", "b_mid"])
def test_dynamic_position_bias_without_what_it_needs(missing: str) -> None:
    with pytest.raises(IndexError):
        dynamic_position_bias(np.array([1]), np.array([0]), **network(2, 2) | {missing: None})


@pytest.mark.parametrize("define", [swin, beit])
def test_any_corner_of_the_image(define: Callable[..., Array]) -> None:
    """Only the distance counts, not where in the image it lies."""
    kw: dict[str, Any] = {"n_heads": 2, "window": (2, 2), "weight": counted(12)}
    moved = FOUR + np.array([5, 8])
    np.testing.assert_array_equal(define(moved, moved, **kw), define(FOUR, FOUR, **kw))
