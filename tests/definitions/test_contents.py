"""Biases and rotations that the content makes or paces: numbers typed by hand, and the public code in NumPy."""

import math

import numpy as np
import pytest

from posenc.definitions.bias import alibi
from posenc.definitions.contents import grape_a, grape_ap, inkling, selective_rope


def test_inkling_typed() -> None:
    """Two heads, two curves over three distances; the fourth token sees nothing of the first, nor what is ahead."""
    x = np.array([[1.0], [2.0], [4.0], [10.0]])
    weight = np.array([[1.0], [0.0], [0.0], [-1.0]])  # head 0 reads curve 0, head 1 curve 1 backwards
    profiles = np.array([[3.0, 5.0, 7.0], [0.5, 0.25, 2.0]])
    got = inkling(x, np.arange(4), n_heads=2, d_model=1, d_rel=2, extent=3, weight=weight, profiles=profiles)
    assert got[0].tolist() == [[3, 0, 0, 0], [10, 6, 0, 0], [28, 20, 12, 0], [0, 70, 50, 30]]
    assert got[1, 2].tolist() == [-8.0, -1.0, -2.0, 0.0]


def test_inkling_grows_from_its_length_on() -> None:
    """The query at position 7 is the eighth token: ln(8 / 4) more, times alpha; up to the fourth, nothing."""
    kw = {"n_heads": 1, "d_model": 1, "d_rel": 1, "extent": 9, "weight": np.eye(1), "profiles": np.ones((1, 9))}
    got = inkling(np.ones((3, 1)), np.array([0, 3, 7]), temperature=0.5, original_max_len=4, **kw)[0, :, 0]
    np.testing.assert_allclose(got, [1.0, 1.0, 1 + 0.5 * math.log(2)], rtol=1e-15)
    with pytest.raises(IndexError):  # a curve shorter than its extent
        inkling(np.ones((2, 1)), np.array([0, 9]), **{**kw, "extent": 10})


LN2 = math.log(2)


def test_grape_a_typed() -> None:
    """Two heads, slopes 1/16 and 1/256; u along lane 0 at any length, v along lane 1; omega 0 is worth ln 2."""
    q, k = np.zeros((2, 1, 4)), np.zeros((2, 2, 4))
    q[0, 0, 1], k[0, 0, 0] = 2 * math.log(3), 2 * math.log(7)  # over sqrt(4): softplus ln 4 and ln 8
    kw = {"n_heads": 2, "head_dim": 4, "omega": np.zeros(2)}
    u, v = np.tile([5.0, 0, 0, 0], (2, 1)), np.tile([0, 0.25, 0, 0], (2, 1))
    at = np.array([16]), np.array([0, 17])
    both = grape_a(q, k, *at, u=u, v=v, **kw)
    np.testing.assert_allclose(both[0], [[-LN2 * 5 * LN2, 0.0]], rtol=1e-14)
    np.testing.assert_allclose(both[1, 0, 0], -LN2 * 2 * LN2 / 16, rtol=1e-14)
    np.testing.assert_allclose(grape_a(q, k, *at, gates="query", v=v, **kw)[0, 0, 0], -LN2 * 2 * LN2, rtol=1e-14)
    np.testing.assert_allclose(grape_a(q, k, *at, gates="key", u=u, **kw)[0, 0, 0], -LN2 * 3 * LN2, rtol=1e-14)


def test_grape_a_with_contents_of_nothing_is_alibi() -> None:
    """Both gates are ln 2, and omega of softplus 1 / (2 ln 2) leaves the slopes."""
    omega = np.full(6, math.log(math.expm1(1 / (2 * LN2))))
    nothing, pos = np.zeros((6, 9, 3)), np.arange(9) * 7.5
    got = grape_a(nothing, nothing, pos, pos, n_heads=6, head_dim=3, omega=omega, u=np.ones((6, 3)), v=np.ones((6, 3)))
    np.testing.assert_allclose(got, alibi(pos, pos, n_heads=6, sides="one-sided"), rtol=1e-14, atol=1e-15)


def test_selective_rope_typed() -> None:
    """Head 0 reads the sign of lane 0 and head 1 that of lane 1, at length 1; taps 1, 2, 4, 8 from the oldest on."""
    x = np.array([[3.0, 5.0], [-4.0, 2.0], [9.0, -7.0], [1.0, 1.0], [2.0, 6.0], [8.0, 1.0]])
    pos = np.array([0, 1, 2, 3, 4, 0])  # the last begins a text
    kw = {"d_model": 2, "n_kv_heads": 2, "head_dim": 4, "rank": 2, "base": 100.0}
    w_out = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]) / 100
    conv = np.array([[1.0, 2.0, 4.0, 8.0]] * 4)
    turns = selective_rope(x, pos, **kw, w_in=np.eye(2), w_out=w_out, conv=conv)
    np.testing.assert_array_equal(*turns)
    assert turns[0].shape == (6, 2, 4, 4)
    # head 0: + - + + +; 8, then 4 - 8, 2 - 4 + 8, 1 - 2 + 4 + 8, -1 + 2 + 4 + 8, and 8 of the new text
    sums = np.cumsum([[8, 8], [-4, 12], [6, -2], [11, 7], [13, 11], [8, 8]], axis=0) / 100
    slow = sums / 10  # base^(-2/4)
    np.testing.assert_allclose(np.arctan2(turns[0][:, :, 2, 0], turns[0][:, :, 0, 0]), sums, rtol=1e-6)
    np.testing.assert_allclose(np.arctan2(turns[0][:, :, 3, 1], turns[0][:, :, 1, 1]), slow, rtol=1e-6)
    np.testing.assert_array_equal(turns[0][:, :, 0, 2], -turns[0][:, :, 2, 0])
    assert not turns[0][:, :, 0, [1, 3]].any()


def test_grape_ap_typed() -> None:
    """One head pays 2^-8 of -log sigmoid; tokens have length sqrt(2) and angles of so many radians to the query."""
    x = np.array([[3.0, 0.0], [0.0, 2.0], [-5.0, 0.0], [4.0, 0.0]])
    kw = {"d_model": 2, "n_heads": 1, "p_dim": 2, "weight": np.eye(2)}
    allowed = np.tril(np.ones((4, 4), bool))
    scores = np.arange(16.0).reshape(1, 4, 4)
    got = (scores - grape_ap(scores, x, np.arange(4), allowed, **kw))[0] * 2**8

    def toll(length: float, angle: float) -> float:
        return float(np.log1p(np.exp(-length * math.sqrt(2) * math.cos(angle) / 2)))

    right = toll(4, 3)  # the last query and its own token, rotated by 3
    left = toll(4, 2 + math.pi)
    up = toll(4, 1 + math.pi / 2)
    np.testing.assert_allclose(got[3], [up + left + right, left + right, right, 0.0], rtol=1e-6)
    np.testing.assert_allclose(got[1, :2], [toll(2, 1), 0.0], rtol=1e-6)
    some = allowed & (np.arange(4) != 2)  # what is masked costs nothing
    got = (scores - grape_ap(scores, x, np.arange(4), some, **kw))[0] * 2**8
    np.testing.assert_allclose(got[3, :2], [up + right, right], rtol=1e-6)
