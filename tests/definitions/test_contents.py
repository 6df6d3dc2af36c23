"""Biases that the content makes or paces: numbers typed by hand, and the public code in NumPy."""

import math

import numpy as np
import pytest

from posenc.definitions.contents import inkling


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
