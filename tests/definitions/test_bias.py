"""The score definitions, against typed numbers, series, integrals and literal loops."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest

from posenc.definitions.bias import Array, alibi, kerple, nope, relative_bias, t5, transformer_xl


def test_nope_typed() -> None:
    q = np.array([[[1.0, 2.0, 0.0, -1.0]], [[3.0, 0.0, 1.0, 0.0]]])
    k = np.array([[[2.0, 1.0, 5.0, 0.0], [0.0, 1.0, 0.0, 4.0]], [[1.0, 9.0, 1.0, 9.0], [0.0, 0.0, -2.0, 1.0]]])
    np.testing.assert_array_equal(nope(q, k), [[[2.0, -1.0]], [[2.0, -1.0]]])  # 4/2, -2/2; 4/2, -2/2


def alibi_slopes(n_heads: int, slopes: Any) -> Array:
    """Read off at distance 1."""
    got = alibi(np.array([1]), np.array([0]), n_heads=n_heads, slopes=slopes)
    assert got.shape == (n_heads, 1, 1)
    return -got[:, 0, 0]


# arXiv 2108.12409, section 3, for 8 and 16 heads; the authors' code for the others
EIGHT = [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
TWELVE_MORE = [0.7071067811865476, 0.35355339059327373, 0.17677669529663687, 0.08838834764831843]


@pytest.mark.parametrize(
    ("n_heads", "slopes", "want"),
    [
        (8, "authors", EIGHT),
        (8, "geometric", EIGHT),
        (12, "authors", EIGHT + TWELVE_MORE),
        (6, "authors", [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8]),
        (3, "authors", [1 / 16, 1 / 256, 1 / 4]),
        (1, "authors", [1 / 256]),
        (2, "authors", [1 / 16, 1 / 256]),
        (3, "geometric", [0.15749013123685915, 0.0248031414370031, 1 / 256]),  # 2**(-8/3), 2**(-16/3)
    ],
)
def test_alibi_slopes_typed(n_heads: int, slopes: Any, want: list[float]) -> None:
    np.testing.assert_allclose(alibi_slopes(n_heads, slopes), want, rtol=1e-14)


@pytest.mark.parametrize("slopes", ["authors", "geometric"])
def test_alibi_sixteen_heads_average_eight(slopes: Any) -> None:
    """Section 3: the slopes of 16 heads are those of 8, with the geometric means of neighbours between."""
    want = []
    for before, slope in zip([1.0, *EIGHT[:-1]], EIGHT, strict=True):
        want += [math.sqrt(before * slope), slope]
    np.testing.assert_allclose(alibi_slopes(16, slopes), want, rtol=1e-14)


def test_alibi_matrix() -> None:
    """The figure of the paper, 0 on the diagonal and -1, -2.. to its left; mirrored to its right."""
    figure = np.array([[0, -1, -2, -3], [-1, 0, -1, -2], [-2, -1, 0, -1], [-3, -2, -1, 0]])
    got = alibi(np.arange(4), np.arange(4), n_heads=3)
    np.testing.assert_array_equal(got, [figure / 16, figure / 256, figure / 4])


CAUSAL_STARTS = [*range(17), 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]
SIDE_STARTS = [*range(9), 12, 16, 23, 32, 46, 64, 91]


def t5_buckets(distances: list[int], n_buckets: int, max_distance: int, bidirectional: bool) -> list[int]:
    """The buckets, read from a weight that holds 1000 * head + bucket."""
    weight = np.arange(n_buckets)[:, None] + 1000.0 * np.arange(2)[None, :]
    kw: dict[str, Any] = {
        "n_buckets": n_buckets,
        "max_distance": max_distance,
        "bidirectional": bidirectional,
    }
    got = t5(np.array(distances), np.array([0]), n_heads=2, weight=weight, **kw)
    np.testing.assert_array_equal(got[1], got[0] + 1000.0)
    return [int(x) for x in got[0, :, 0]]


def starts_of(buckets: list[int]) -> list[int]:
    return [buckets.index(b) for b in range(max(buckets) + 1)]


def test_t5_typed_starts() -> None:
    causal = t5_buckets(list(range(400)), 32, 128, False)
    assert starts_of(causal) == CAUSAL_STARTS
    assert causal == sorted(causal)
    assert t5_buckets([-1, -2, -50, -1000], 32, 128, False) == [0, 0, 0, 0]
    behind = t5_buckets(list(range(400)), 32, 128, True)
    assert starts_of(behind) == SIDE_STARTS
    assert behind == sorted(behind)
    ahead = t5_buckets([-d for d in range(400)], 32, 128, True)
    assert ahead == [0, *(b + 16 for b in behind[1:])]


def test_t5_defaults() -> None:
    weight = np.arange(32.0)[:, None]
    got = t5(np.array([200, 100]), np.array([0, 101, 87]), n_heads=1, weight=weight)
    np.testing.assert_array_equal(got, [[[31, 30, 31], [30, 0, 13]]])  # distances 200 99 113, 100 -1 13


def test_t5_whole_number_edges() -> None:
    """10 buckets to 160: edges 5 * 2**j, whole; truncating log(n/5) / log(32) * 5 misses 10, 20 and 80."""
    assert starts_of(t5_buckets(list(range(300)), 10, 160, False)) == [0, 1, 2, 3, 4, 5, 10, 20, 40, 80]
    assert starts_of(t5_buckets(list(range(300)), 20, 160, True)) == [0, 1, 2, 3, 4, 5, 10, 20, 40, 80]


@pytest.mark.parametrize(
    ("n_buckets", "max_distance", "bidirectional"),
    [(32, 128, False), (32, 128, True), (20, 50, False), (9, 128, False), (26, 77, True), (64, 1000, False)],
)
def test_t5_float_formula_away_from_edges(n_buckets: int, max_distance: int, bidirectional: bool) -> None:
    distances = list(range(-2 * max_distance, 2 * max_distance))
    side = n_buckets // 2 if bidirectional else n_buckets
    exact = side // 2
    compared = 0
    for distance, got in zip(distances, t5_buckets(distances, n_buckets, max_distance, bidirectional), strict=True):
        n = abs(distance) if bidirectional else max(distance, 0)
        place: float = n
        if n >= exact:
            place = exact + math.log(n / exact) / math.log(max_distance / exact) * (side - exact)
            if abs(place - round(place)) < 1e-9:
                continue
        upper = side if bidirectional and distance < 0 else 0
        assert got == min(int(place), side - 1) + upper, distance
        compared += 1
    assert compared > 3 * max_distance


def test_kerple_typed() -> None:
    """r1 = r2 = 1: -log 2, -log 4; r1 = 2, r2 = 1/2: -2 log 1.5, -2 log 2.5; keys ahead like keys behind."""
    log_r1, log_r2 = np.array([0.0, 0.6931471805599453]), np.array([0.0, -0.6931471805599453])
    got = kerple(np.array([3, 2]), np.array([2, 0, 5]), n_heads=2, log_r1=log_r1, log_r2=log_r2)
    log2, log3, log4 = 0.6931471805599453, 1.0986122886681098, 1.3862943611198906
    log1_5, log2_5 = 0.4054651081081644, 0.9162907318741551
    want = [
        [[-log2, -log4, -log3], [0.0, -log3, -log4]],
        [[-2 * log1_5, -2 * log2_5, -2 * log2], [0.0, -2 * log2, -2 * log2_5]],
    ]
    np.testing.assert_allclose(got, want, rtol=1e-14, atol=0)


def test_kerple_is_an_integral() -> None:
    """log(1 + x) is the integral over t > 0 of (1 - exp(-x t)) exp(-t) / t."""
    log_r1, log_r2 = np.array([0.3, -1.2]), np.array([-0.5, 0.8])
    got = kerple(np.array([10.0]), np.array([9.5, 3.0]), n_heads=2, log_r1=log_r1, log_r2=log_r2)
    for h in range(2):
        r1, r2 = mpmath.exp(log_r1[h]), mpmath.exp(log_r2[h])
        for j, distance in enumerate((0.5, 7.0)):
            x = r2 * distance
            integral = mpmath.quad(lambda t, x=x: (1 - mpmath.exp(-x * t)) * mpmath.exp(-t) / t, [0, 1, mpmath.inf])
            np.testing.assert_allclose(got[h, 0, j], float(-r1 * integral), rtol=1e-11)


def test_kerple_is_conditionally_positive_definite() -> None:
    """What the paper asks of the kernel: c' K c >= 0 for every c whose entries sum to 0."""
    pos = np.arange(12)
    kernel = kerple(pos, pos, n_heads=1, log_r1=np.array([0.5]), log_r2=np.array([0.2]))[0]
    centring = np.eye(12) - 1 / 12
    eigenvalues = np.linalg.eigvalsh(centring @ kernel @ centring)
    assert abs(eigenvalues[0]) < 1e-12
    assert eigenvalues[1] > 0.01


def test_relative_bias_by_hand() -> None:
    """Columns are distances -2 -1 0 1 2; letters a..e of head 0, their capitals (x 10) of head 1."""
    a, b, c, d, e = 1.0, 2.0, 3.0, 4.0, 5.0
    weight = np.array([[a, b, c, d, e], [10 * a, 10 * b, 10 * c, 10 * d, 10 * e]])
    toeplitz = np.array([[c, b, a, a, a], [d, c, b, a, a], [e, d, c, b, a], [e, e, d, c, b], [e, e, e, d, c]])
    got = relative_bias(np.arange(5), np.arange(5), n_heads=2, max_distance=2, weight=weight)
    np.testing.assert_array_equal(got, [toeplitz, 10 * toeplitz])
    one_row = relative_bias(np.array([7]), np.array([6, 0, 9]), n_heads=2, max_distance=2, weight=weight)
    np.testing.assert_array_equal(one_row[0], [[d, e, a]])


def test_transformer_xl_four_terms() -> None:
    """A^rel of section 3.3 from token vectors, entry by entry: (a) + (b) + (c) + (d), over sqrt(head_dim)."""
    n_heads, head_dim, d_model = 2, 3, 4
    rng = np.random.default_rng(5)
    q_pos, k_pos = np.array([3, 4, 6]), np.arange(7)  # 7 keys; the queries are among them
    e_q, e_k = rng.standard_normal((3, d_model)), rng.standard_normal((7, d_model))
    w_q, w_ke, w_kr = rng.standard_normal((3, n_heads, head_dim, d_model))
    u, v = rng.standard_normal((2, n_heads, head_dim))
    want = np.zeros((n_heads, 3, 7))
    for h, i, j in np.ndindex(want.shape):
        t = float(q_pos[i] - k_pos[j])
        r = [math.sin(t), math.sin(t * 0.01), math.cos(t), math.cos(t * 0.01)]
        for c in range(head_dim):
            for x in range(d_model):
                for y in range(d_model):
                    want[h, i, j] += e_q[i, x] * w_q[h, c, x] * w_ke[h, c, y] * e_k[j, y]  # (a)
                    want[h, i, j] += e_q[i, x] * w_q[h, c, x] * w_kr[h, c, y] * r[y]  # (b)
                want[h, i, j] += u[h, c] * w_ke[h, c, x] * e_k[j, x]  # (c)
                want[h, i, j] += v[h, c] * w_kr[h, c, x] * r[x]  # (d)
    q, k = np.einsum("hcx,ix->hic", w_q, e_q), np.einsum("hcx,jx->hjc", w_ke, e_k)
    sizes: dict[str, Any] = {"d_model": d_model, "n_heads": n_heads, "head_dim": head_dim}
    joins = transformer_xl(q, k, q_pos, k_pos, **sizes, u=u, v=v, weight=w_kr)
    content = np.einsum("hic,hjc->hij", q, k)
    np.testing.assert_allclose(content / math.sqrt(3) + joins, want / math.sqrt(3), rtol=1e-12, atol=1e-12)


def test_transformer_xl_typed_base() -> None:
    """Width 1, d_model 4, base 400: u k + (q + v) sin(2 * 0.05), for a weight on the second sine."""
    one = np.ones((1, 1, 1))
    kw: dict[str, Any] = {"d_model": 4, "n_heads": 1, "head_dim": 1, "base": 400.0}
    u, v, weight = np.array([[0.5]]), np.array([[0.25]]), np.array([[[0.0, 1.0, 0.0, 0.0]]])
    got = transformer_xl(2 * one, 3 * one, np.array([5]), np.array([3]), **kw, u=u, v=v, weight=weight)
    np.testing.assert_allclose(got, [[[1.5 + 2.25 * 0.09983341664682815]]], rtol=1e-14)
