"""Learned, mixed and scaled rotations against typed numbers, matrix exponentials, complex numbers and a peer."""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest

from posenc.definitions import rotations
from posenc.definitions.rotary import Array, axial_rope, rope

LN2 = math.log(2)
THETAS = [1.0, 0.1, 0.01, 0.001]  # of 8 dimensions at base 10,000


def rotation(head_dim: int, angles: dict[tuple[int, int], float], length: float = 1.0) -> Array:
    """The identity, but each pair (x, y) rotates from x towards y by its angle in radians."""
    matrix = np.eye(head_dim)
    for (x, y), angle in angles.items():
        matrix[x, x] = matrix[y, y] = length * math.cos(angle)
        matrix[y, x], matrix[x, y] = length * math.sin(angle), -length * math.sin(angle)
    return matrix


def exponential(generator: Array) -> Array:
    with mpmath.workdps(40):
        return np.array(mpmath.expm(mpmath.matrix(generator.tolist())).tolist(), dtype=np.float64)


def close(got: Any, want: Any, atol: float = 1e-13) -> None:
    np.testing.assert_allclose(got, want, rtol=0, atol=atol)


def both_close(got: tuple[Array, Array], want: Any, atol: float = 1e-13) -> None:
    """Queries and keys rotate alike, by arrays of their own."""
    close(got[0], want, atol)
    close(got[1], want, atol)
    assert got[0] is not got[1]


def between(define: Callable[..., tuple[Array, Array]], p: Any, s: Any) -> Array:
    """The matrix between a query at p and a key at s in their score."""
    return np.swapaxes(define(p)[0], -1, -2) @ define(s)[1]


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def plain(p: float, **how: Any) -> Array:
    return rope(p, head_dim=8, **how)[0]


EYES, SKEW = np.stack([np.eye(8)] * 2), -np.array(THETAS)[None, :, None]
ONES: dict[str, Any] = {"short_factors": np.ones(4), "long_factors": np.ones(4)}
# LieRE's entry above the diagonal rotates clockwise, so it is minus theta
AS_ROPE: dict[str, tuple[tuple[Array, Array], Any]] = {
    "stretched by 0": (rotations.stretched_rope(-3.0, head_dim=8, stretch=np.zeros(4)), plain(-3.0)),
    "GRAPE-M on coordinate planes": (
        rotations.grape_m(7.25, n_kv_heads=2, head_dim=8, planes=EYES, log_freq=np.log([THETAS, THETAS])),
        [plain(7.25, pairing="interleaved")] * 2,
    ),
    "LieRE in pairs on one axis": (
        rotations.liere(7.25, head_dim=8, n_axes=1, block=2, skew=SKEW),  # type: ignore[arg-type]
        plain(7.25, pairing="interleaved"),
    ),
    "LongRoPE by 1": (rotations.longrope(6.5, head_dim=8, length=99, original_max_len=10, **ONES), plain(6.5)),
    "dynamic NTK": (rotations.dynamic_ntk(6.5, head_dim=8, length=1, factor=4.0, original_max_len=10), plain(6.5)),
}


@pytest.mark.parametrize("case", AS_ROPE)
def test_without_scaling_it_is_rope(case: str) -> None:
    both_close(*AS_ROPE[case])


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("side", ["first", "last"])
def test_stretched_rope_of_a_part(pairing: Any, side: Any) -> None:
    how: dict[str, Any] = {"head_dim": 10, "base": 50.0, "rotary_dim": 6, "rotary_side": side, "pairing": pairing}
    both_close(rotations.stretched_rope(7.25, stretch=np.zeros(3), **how), rope(7.25, **how)[0])


PLANES = {"planes": random(2, 6, 6), "log_freq": random(2, 3, seed=1)}
RELATIVE: dict[str, tuple[Callable[..., tuple[Array, Array]], int]] = {
    "stretched_rope": (lambda p: rotations.stretched_rope(p[0], head_dim=8, stretch=random(4)), 1),
    "grape_m": (lambda p: rotations.grape_m(p[0], n_kv_heads=2, head_dim=6, **PLANES), 1),
    "mixed_rope": (lambda p: rotations.mixed_rope(p, n_kv_heads=2, head_dim=8, inv_freq=random(2, 3, 4)), 3),
}


@pytest.mark.parametrize("name", RELATIVE)
def test_scores_depend_on_the_distance_only(name: str) -> None:
    define, n_axes = RELATIVE[name]
    p, s, shift = random(3, n_axes, seed=1) * 5
    close(between(define, p + shift, s + shift), between(define, p, s), 1e-11)
    assert np.abs(between(define, p, s) - between(define, p, s + 0.5)).max() > 0.1


def test_stretched_rope_typed() -> None:
    """Base 100, 4 dimensions: 1 twice as fast and 1/10 half as fast are 2 and 1/20, 6 and 0.15 at position 3."""
    stretch = np.array([LN2, -LN2])
    got = rotations.stretched_rope(3.0, head_dim=4, base=100.0, pairing="interleaved", stretch=stretch)
    both_close(got, rotation(4, {(0, 1): 6.0, (2, 3): 0.15}))
    got = rotations.stretched_rope(3.0, head_dim=6, base=100.0, rotary_dim=4, rotary_side="last", stretch=stretch)
    both_close(got, rotation(6, {(2, 4): 6.0, (3, 5): 0.15}))
    got = rotations.stretched_rope(3.0, head_dim=4, inv_freq=np.array([0.5, 4.0]), stretch=stretch)
    both_close(got, rotation(4, {(0, 2): 3.0, (1, 3): 6.0}))


def test_mixed_rope_typed() -> None:
    """Row 3, column -2: head 0 rotates by 3 * 1 - 2 * 2 and 3 * 0.5 - 2 * 0.25, head 1 by 3 * 0 - 2 * 1 and 3 * 7."""
    inv_freq = np.array([[[1.0, 0.5], [2.0, 0.25]], [[0.0, 7.0], [1.0, 0.0]]])
    how: dict[str, Any] = {"n_kv_heads": 2, "head_dim": 4, "inv_freq": inv_freq}
    want = [rotation(4, {(0, 2): -1.0, (1, 3): 1.0}), rotation(4, {(0, 2): -2.0, (1, 3): 21.0})]
    both_close(rotations.mixed_rope(np.array([3.0, -2.0]), **how), want)
    want = [rotation(4, {(0, 1): -1.0, (2, 3): 1.0}), rotation(4, {(0, 1): -2.0, (2, 3): 21.0})]
    both_close(rotations.mixed_rope(np.array([3.0, -2.0]), pairing="interleaved", **how), want)


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_mixed_rope_along_the_axes_is_axial(pairing: Any) -> None:
    """The first pairs read only the row and the last ones only the column, at 1 and 1/10 (base 100)."""
    inv_freq = np.array([[[1.0, 0.1, 0.0, 0.0], [0.0, 0.0, 1.0, 0.1]]])
    p = np.array([5.0, -2.5])
    got = rotations.mixed_rope(p, n_kv_heads=1, head_dim=8, pairing=pairing, inv_freq=inv_freq)
    both_close(got, axial_rope(p, head_dim=8, base=100.0, pairing=pairing)[0][None])


def test_retnet_typed() -> None:
    """Head 0 keeps 31/32 a position, heads 1 and 2 63/64 and 127/128: squared at position 2."""
    r_q, r_k = rotations.retnet(2.0, n_kv_heads=3, head_dim=2)
    by_2 = rotation(2, {(0, 1): 2.0})
    close(r_q, [(31 / 32) ** 2 * by_2, (63 / 64) ** 2 * by_2, (127 / 128) ** 2 * by_2])
    close(r_k, [(32 / 31) ** 2 * by_2, (64 / 63) ** 2 * by_2, (128 / 127) ** 2 * by_2])
    r_q, r_k = rotations.retnet(2.0, n_kv_heads=1, head_dim=4, base=100.0, pairing="half", centre=1.0)
    close(r_q, [31 / 32 * rotation(4, {(0, 2): 2.0, (1, 3): 0.2})])
    close(r_k, [32 / 31 * rotation(4, {(0, 2): 2.0, (1, 3): 0.2})])
    close(rotations.retnet(2.0, n_kv_heads=1, head_dim=4, centre=2.0)[0], [rotation(4, {(0, 1): 2.0, (2, 3): 0.02})])


@pytest.mark.parametrize("centre", [0.0, 40.0])
@pytest.mark.parametrize(("p", "s"), [(9.0, 2.0), (9.0, 9.0), (2.5, 9.0), (300.0, 44.0)])
def test_retnet_score_is_ropes_times_gamma_to_the_distance(centre: float, p: float, s: float) -> None:
    def define(p: float) -> tuple[Array, Array]:
        return rotations.retnet(p, n_kv_heads=2, head_dim=4, centre=centre)

    plain = rope(p, head_dim=4, pairing="interleaved")[0].T @ rope(s, head_dim=4, pairing="interleaved")[1]
    close(between(define, p, s), [(31 / 32) ** (p - s) * plain, (63 / 64) ** (p - s) * plain], 1e-11)


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize(("length", "n_kept"), [(6, 0), (7, 1), (62, 1), (63, 2), (6283, 3), (6284, 4)])
def test_fope_of_identities_is_rope_without_slow_pairs(pairing: Any, length: int, n_kept: int) -> None:
    """Wavelengths 6.28, 62.8, 628 and 6283.2 positions: kept where they fit into the trained length."""
    eye = np.stack([np.eye(n_kept)] * 2)
    got = rotations.fope(
        5.5, n_kv_heads=2, head_dim=8, original_max_len=length, pairing=pairing, cos_mix=eye, sin_mix=eye
    )
    inv_freq = np.array(THETAS[:n_kept] + [0.0] * (4 - n_kept))
    both_close(got, [rope(5.5, head_dim=8, pairing=pairing, inv_freq=inv_freq)[0]] * 2)


def test_fope_typed() -> None:
    """Two of three pairs kept (1 and 1/10; 1/100 is slow): pair k has column k of each mix."""
    cos_mix = np.array([[[2.0, 3.0], [5.0, 7.0]], np.eye(2)])
    sin_mix = np.array([[[0.5, -1.0], [0.25, 4.0]], np.eye(2)])
    got = rotations.fope(
        2.0, n_kv_heads=2, head_dim=6, base=1000.0, original_max_len=100, cos_mix=cos_mix, sin_mix=sin_mix
    )
    c_0, c_1 = 2 * math.cos(2) + 5 * math.cos(0.2), 3 * math.cos(2) + 7 * math.cos(0.2)
    s_0, s_1 = 0.5 * math.sin(2) + 0.25 * math.sin(0.2), -math.sin(2) + 4 * math.sin(0.2)
    x = np.array([1.0, 10.0, 100.0, 1000.0, 1e4, 1e5])  # pairs (1, 1000), (10, 1e4), (100, 1e5)
    want = [c_0 - 1000 * s_0, 10 * c_1 - 1e4 * s_1, 100, 1000 * c_0 + s_0, 1e4 * c_1 + 10 * s_1, 1e5]
    for matrix in got:
        np.testing.assert_allclose(matrix[0] @ x, want, rtol=1e-12)
    close(got[0][1], rotation(6, {(0, 3): 2.0, (1, 4): 0.2}))
    assert got[0] is not got[1]


def inverse_softplus(lengths: list[float]) -> Array:
    return np.log(np.expm1(np.array(lengths)))


@pytest.mark.parametrize(
    ("phase", "want"),
    [
        ((0.0, 0.0), 3 * math.cos(3) + 10 * math.cos(0.3)),
        ((-1.0, -2.0), 3 * math.cos(4) + 10 * math.cos(2.3)),  # key minus query is -3: -3 - 1, -0.3 - 2
        ((-3.0, -0.3), 3 * math.cos(6) + 10 * math.cos(0.6)),
        ((0.5, -7.0), 3 * math.cos(3) + 10 * math.cos(0.3)),  # bounded: 0 and -2 pi
    ],
)
def test_pope_typed(phase: tuple[float, float], want: float) -> None:
    """Query at 4, key at 1, base 100: theta 1 and 1/10; softplus (1, 2) and (3, 5)."""
    q, k = inverse_softplus([1.0, 2.0])[None, None], inverse_softplus([3.0, 5.0])[None, None]
    how: dict[str, Any] = {"head_dim": 2, "n_kv_heads": 1, "base": 100.0, "phase": np.array([phase])}
    assert rotations.pope(q, k, np.array([4.0]), np.array([1.0]), **how)[0, 0, 0] == pytest.approx(want, rel=1e-13)
    moved = rotations.pope(q, k, np.array([1004.0]), np.array([1001.0]), **how)
    assert moved[0, 0, 0] == pytest.approx(want, rel=1e-11)


def test_pope_in_complex_numbers() -> None:
    """Equation 5: the real part of conj(query) key; the queries of heads 0, 1 meet key head 0, those of 2, 3 head 1."""
    q, k, phase = random(4, 3, 6), random(2, 5, 6, seed=1) * 10, -abs(random(2, 6, seed=2))
    q_pos, k_pos = np.array([0.0, 7.5, -2.0]), np.array([3.0, 1.0, 4.0, 1.5, 9.0])
    got = rotations.pope(q, k, q_pos, k_pos, head_dim=6, n_kv_heads=2, phase=phase)
    assert got.shape == (4, 3, 5)
    for h, i, j in np.ndindex(4, 3, 5):
        want = 0.0
        for c in range(6):
            theta, delta = 1 / 10000 ** (c / 6), phase[h // 2, c]
            query = cmath.rect(math.log1p(math.exp(q[h, i, c])), theta * q_pos[i])
            key = cmath.rect(math.log1p(math.exp(k[h // 2, j, c])), theta * k_pos[j] + delta)
            want += (query.conjugate() * key).real
        assert got[h, i, j] == pytest.approx(want, rel=1e-11, abs=1e-11)


def test_pope_against_pypi() -> None:
    """PoPE-pytorch in float64, with phases on both sides of its bounds."""
    import torch
    from PoPE_pytorch import PoPE

    peer = PoPE(8, heads=2).double()
    peer.inv_freqs = 10000.0 ** -(torch.arange(8).double() / 8)  # it makes them in float32
    phase = random(2, 8, seed=3) * 4 - 3
    assert (phase > 0).any()
    assert (phase < -2 * math.pi).any()
    peer.bias.data = torch.from_numpy(phase)
    q, k, pos = random(2, 6, 8), random(2, 6, 8, seed=1), np.array([0.0, 1.0, 5.0, 40.0, 41.5, 3000.0])
    turned_q, turned_k = peer.apply_pope_to_qk(
        peer(torch.from_numpy(pos)), torch.from_numpy(q)[None], torch.from_numpy(k)[None]
    )
    want = (turned_q @ turned_k.mT)[0].detach().numpy()
    got = rotations.pope(q, k, pos, pos, head_dim=8, n_kv_heads=2, phase=phase)
    close(got, want, 1e-11)


@pytest.mark.parametrize("side", [1.0, -1.0])
def test_grape_m_makes_columns_orthonormal_in_order(side: float) -> None:
    """(3, 0) gives (1, 0); then (5, 2) gives (0, 1), and (5, -2) gives (0, -1): a rotation the other way."""
    planes = np.array([[[3.0, 5.0], [0.0, 2.0 * side]]])
    got = rotations.grape_m(1.5, n_kv_heads=1, head_dim=2, n_planes=1, planes=planes, log_freq=np.array([[LN2]]))
    both_close(got, [rotation(2, {(0, 1): 3.0 * side})])


def test_grape_m_typed_plane_in_space() -> None:
    """From e_0 towards (0, 3/5, 4/5) by 2 radians; (0, 4/5, -3/5) is in no plane and stays unchanged."""
    planes = np.array([[[2.0, 1.0], [0.0, 3.0], [0.0, 4.0]]])
    for matrix in rotations.grape_m(
        2.0, n_kv_heads=1, head_dim=3, n_planes=1, planes=planes, log_freq=np.zeros((1, 1))
    ):
        close(matrix[0] @ [1.0, 0.0, 0.0], [math.cos(2), 0.6 * math.sin(2), 0.8 * math.sin(2)])
        close(matrix[0] @ [0.0, 0.6, 0.8], [-math.sin(2), 0.6 * math.cos(2), 0.8 * math.cos(2)])
        close(matrix[0] @ [0.0, 0.8, -0.6], [0.0, 0.8, -0.6])


def test_grape_m_is_the_exponential_of_its_generator() -> None:
    """Given orthonormal columns: exp(p sum omega (v u^T - u v^T)), two planes in 6 dimensions."""
    planes = np.stack([np.linalg.qr(random(6, 6, seed=s))[0][:, :4] for s in (1, 2)])
    log_freq = random(2, 2, seed=3)
    got = rotations.grape_m(2.5, n_kv_heads=2, head_dim=6, n_planes=2, planes=planes, log_freq=log_freq)
    for h in range(2):
        generator = np.zeros((6, 6))
        for m in range(2):
            u, v = planes[h, :, 2 * m], planes[h, :, 2 * m + 1]
            generator += 2.5 * math.exp(log_freq[h, m]) * (np.outer(v, u) - np.outer(u, v))
        both_close((got[0][h], got[1][h]), exponential(generator), 1e-12)


def test_liere_typed_and_as_exponential() -> None:
    """Blocks of 3 at (2, -1): 2 A[0] - A[1], entries row by row (01, 02, 12)."""
    skew = np.array([[[1.0, 2.0, 3.0], [0.1, 0.2, 0.3]], [[5.0, 3.0, 5.5], [1.0, -1.0, 0.5]]])
    first = np.array([[0.0, -3.0, 1.0], [3.0, 0.0, 0.5], [-1.0, -0.5, 0.0]])
    second = np.array([[0.0, -0.8, 1.4], [0.8, 0.0, 0.1], [-1.4, -0.1, 0.0]])
    want = np.zeros((6, 6))
    want[:3, :3], want[3:, 3:] = exponential(first), exponential(second)
    both_close(rotations.liere(np.array([2.0, -1.0]), head_dim=6, block=3, skew=skew), want, 1e-12)
    assert not want[:3, 3:].any()
    close(rotations.liere(np.array([0.0, 0.0]), head_dim=6, block=3, skew=skew)[0], np.eye(6))


def test_dynamic_ntk_typed() -> None:
    """Twice the length at factor 2: 2 * 2 - 1 = 3, squared for 4 rotated dimensions: base 900, theta 1 and 1/30."""
    how: dict[str, Any] = {"length": 20, "factor": 2.0, "original_max_len": 10, "base": 100.0}
    both_close(rotations.dynamic_ntk(3.0, head_dim=4, **how), rotation(4, {(0, 2): 3.0, (1, 3): 0.1}))
    got = rotations.dynamic_ntk(
        3.0,
        head_dim=10,
        rotary_dim=4,
        rotary_side="last",
        pairing="interleaved",
        attention_factor=1.5,
        **how,
    )
    both_close(got, rotation(10, {(6, 7): 3.0, (8, 9): 0.1}, length=1.5))


LISTS: dict[str, Any] = {"short_factors": np.array([1.0, 2.0]), "long_factors": (4.0, 50.0), "original_max_len": 10}


@pytest.mark.parametrize(
    ("length", "long_gain", "angles", "gain"),
    [
        (1, None, (3.0, 0.15), 1.5),
        (10, 2.0, (3.0, 0.15), 1.5),
        (11, None, (0.75, 0.006), 1.5),
        (11, 2.0, (0.75, 0.006), 2.0),
        (500, 0.5, (0.75, 0.006), 0.5),
    ],
)
def test_longrope_typed(length: int, long_gain: float | None, angles: tuple[float, float], gain: float) -> None:
    """Position 3 at theta 1 and 1/10: divided by 1 and 2 up to length 10, by 4 and 50 beyond."""
    how = {"length": length, "base": 100.0, "attention_factor": 1.5, "long_attention_factor": long_gain, **LISTS}
    got = rotations.longrope(3.0, head_dim=4, **how)
    both_close(got, rotation(4, {(0, 2): angles[0], (1, 3): angles[1]}, length=gain))
    got = rotations.longrope(3.0, head_dim=7, rotary_dim=4, rotary_side="last", pairing="interleaved", **how)
    both_close(got, rotation(7, {(3, 4): angles[0], (5, 6): angles[1]}, length=gain))
