"""The Fourier features, against the kernels that they approximate, closed forms and frozen draws."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from posenc.definitions.features import Array, gaussian_fourier, learnable_fourier, nerf_fourier


def plain_network(n_features: int) -> dict[str, Array]:
    """Weights that let the features through: gelu(z) - gelu(-z) = z."""
    one = np.eye(n_features)
    return {
        "weight_1": np.concatenate([one, -one]),
        "bias_1": np.zeros(2 * n_features),
        "weight_2": np.concatenate([one, -one], axis=1),
        "bias_2": np.zeros(n_features),
    }


def test_learnable_fourier_kernel() -> None:
    """Equation 3 of the paper: r(x) . r(y) is the mean of cos(W_r (x - y)), over d/2 of them, halved."""
    rng = np.random.default_rng(1)
    weight_r, pos = rng.standard_normal((5, 2)), 3 * rng.standard_normal((6, 2))
    r = learnable_fourier(pos, d_model=10, n_axes=2, weight_r=weight_r, **plain_network(10))
    for i, x in enumerate(pos):
        for j, y in enumerate(pos):
            cosines = [math.cos(w[0] * (x[0] - y[0]) + w[1] * (x[1] - y[1])) for w in weight_r]
            np.testing.assert_allclose(r[i] @ r[j], sum(cosines) / 10, rtol=0, atol=1e-14)


def test_learnable_fourier_lanes() -> None:
    """Cosines first: 60 and 90 degrees of one axis, over sqrt(4)."""
    weight_r = np.array([[math.pi / 3], [math.pi / 2]])
    for pos in (np.array([1.0, 0.0]), np.array([[1.0], [0.0]])):
        got = learnable_fourier(pos, d_model=4, weight_r=weight_r, **plain_network(4))
        want = [[0.25, 0.0, 0.4330127018922193, 0.5], [0.5, 0.5, 0.0, 0.0]]
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-15)


def test_learnable_fourier_network() -> None:
    """The normal distribution's table: gelu(1) = Phi(1), gelu(-1) = Phi(1) - 1, gelu(2) = 2 Phi(2)."""
    kw: dict[str, Any] = {
        "weight_r": np.ones((1, 1)),
        "weight_1": np.zeros((3, 2)),
        "bias_1": np.array([1.0, -1.0, 2.0]),
    }
    weight_2, bias_2 = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 10.0], [1.0, 1.0, 0.0]]), np.arange(4.0)
    got = learnable_fourier(np.array([7.0]), d_model=4, **kw, weight_2=weight_2, bias_2=bias_2)
    phi_1, phi_2 = 0.8413447460685429, 0.9772498680518208
    np.testing.assert_allclose(got, [[phi_1, phi_1, 2 + 20 * phi_2, 2 + 2 * phi_1]], rtol=1e-14)


def test_learnable_fourier_sizes() -> None:
    kw: dict[str, Any] = {"d_model": 4, "weight_r": np.ones((2, 1)), **plain_network(4)}
    agreed = learnable_fourier(np.array([1.0]), **kw, n_features=4, hidden=8)
    np.testing.assert_array_equal(agreed, learnable_fourier(np.array([1.0]), **kw))
    for wrong in ({"n_features": 2}, {"hidden": 4}):
        with pytest.raises(ValueError, match="do not fit the weights"):
            learnable_fourier(np.array([1.0]), **kw, **wrong)


# NumPy's RandomState(0).standard_normal, as printed in a great many tutorials
DRAWS_0 = [1.764052345967664, 0.4001572083672233, 0.9787379841057392, 2.240893199201458]


def test_gaussian_fourier_frozen_draws() -> None:
    """A turn is 2 pi: at c = 1/(4 b sigma) wave b is a quarter through."""
    for lane, b in enumerate(DRAWS_0):
        for sigma, extent in ((10.0, 1024.0), (2.0, 50.0)):
            quarter = np.array([0.0, extent / (4 * b * sigma)])
            for pos in (quarter, quarter[:, None]):
                got = gaussian_fourier(pos, d_model=8, sigma=sigma, extent=extent)
                np.testing.assert_allclose(got[:, lane], [0.0, 1.0], atol=1e-12)
                np.testing.assert_allclose(got[:, 4 + lane], [1.0, 0.0], atol=1e-12)


def test_gaussian_fourier_two_axes() -> None:
    """Row by row: wave 0 has draws 0 and 1, wave 1 has 2 and 3; half a turn on both axes together."""
    for wave, (b_0, b_1) in enumerate((DRAWS_0[:2], DRAWS_0[2:])):
        pos = np.array([[0.1 / b_0, 0.4 / b_1]])
        got = gaussian_fourier(pos, d_model=4, n_axes=2, sigma=1.0, extent=1.0)
        np.testing.assert_allclose(got[0, [wave, 2 + wave]], [0.0, -1.0], atol=1e-12)


def test_gaussian_fourier_kernel() -> None:
    """Bochner: the mean of the cosines tends to exp(-2 (pi sigma)**2 |difference|**2)."""
    pos = np.array([[0.0, 0.0], [3.0, 0.0], [1.5, 2.0], [4.0, 4.0]])
    for seed in (0, 7):
        got = gaussian_fourier(pos, d_model=20000, n_axes=2, sigma=1.0, extent=20.0, seed=seed)
        for i, j in np.ndindex(4, 4):
            squared = ((pos[i] - pos[j]) ** 2).sum() / 400
            assert got[i] @ got[j] / 10000 == pytest.approx(math.exp(-2 * math.pi**2 * squared), abs=0.03)
    seeds = [gaussian_fourier(pos, d_model=4, n_axes=2, seed=seed) for seed in (0, 7)]
    assert not np.allclose(*seeds)


def test_nerf_fourier_typed() -> None:
    """Halves, quarters and thirds of the extent; two octaves, alternating."""
    h, s = 0.7071067811865476, 0.8660254037844386
    want = [[0, 1, 0, 1], [1, 0, 0, -1], [h, h, 1, 0], [s, 0.5, s, -0.5]]
    for extent in (1.0, 1024.0):
        pos = extent * np.array([0, 1 / 2, 1 / 4, 1 / 3])
        for shaped in (pos, pos[:, None]):
            got = nerf_fourier(shaped, d_model=4, extent=extent)
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-15)
    np.testing.assert_allclose(nerf_fourier(np.array([512.0, 256.0]), d_model=4), want[1:3], rtol=0, atol=1e-15)


def test_nerf_fourier_axes_and_spare_lanes() -> None:
    """Axis 0's lanes, then axis 1's, then zeros."""
    got = nerf_fourier(np.array([[0.5, 0.25]]), d_model=11, n_axes=2, extent=1.0)
    h = 0.7071067811865476
    np.testing.assert_allclose(got, [[1, 0, 0, -1, h, h, 1, 0, 0, 0, 0]], rtol=0, atol=1e-15)
    one = nerf_fourier(np.array([[0.5, 0.25]]), d_model=11, n_axes=2, extent=1.0, n_octaves=1)
    np.testing.assert_allclose(one, [[1, 0, h, h, 0, 0, 0, 0, 0, 0, 0]], rtol=0, atol=1e-15)


def test_nerf_fourier_doubles() -> None:
    """Each octave from the last by sin 2x = 2 sin x cos x and cos 2x = 1 - 2 sin**2 x; ten, as in the paper."""
    got = nerf_fourier(np.array([1.0, 100.5, 777.0]), d_model=64)
    assert np.count_nonzero(np.abs(got).sum(axis=0)) == 20
    for lane in range(0, 18, 2):
        sin, cos = got[:, lane], got[:, lane + 1]
        np.testing.assert_allclose(got[:, lane + 2], 2 * sin * cos, rtol=0, atol=1e-12)
        np.testing.assert_allclose(got[:, lane + 3], 1 - 2 * sin**2, rtol=0, atol=1e-12)
