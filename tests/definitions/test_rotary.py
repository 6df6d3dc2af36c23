"""The rotary definitions, against typed numbers, matrix exponentials and complex numbers."""

from __future__ import annotations

import cmath
from typing import Any

import mpmath
import numpy as np
import pytest

from posenc.definitions.rotary import Array, axial_rope, p_rope, rope, xpos

POSITIONS = [0.0, 1.0, 2.0, 7.25, -4.0, 300.0]


def pairs_of(width: int, pairing: str, start: int = 0) -> list[tuple[int, int]]:
    """The lanes that turn together, typed: interleaved (0,1) (2,3)..., half (0,w/2) (1,w/2+1)..."""
    lanes = list(range(start, start + width))
    if pairing == "interleaved":
        return list(zip(lanes[::2], lanes[1::2], strict=True))
    return list(zip(lanes[: width // 2], lanes[width // 2 :], strict=True))


def exponential(p: float, head_dim: int, pairs: list[tuple[int, int]], thetas: list[float]) -> Array:
    """exp(p G), G the skew generator that has -theta at (x, y) and +theta at (y, x) of each pair."""
    generator = mpmath.zeros(head_dim)
    for (x, y), theta in zip(pairs, thetas, strict=True):
        generator[x, y], generator[y, x] = -theta, theta
    with mpmath.workdps(40):
        return np.array(mpmath.expm(p * generator).tolist(), dtype=np.float64)


@pytest.mark.parametrize(
    ("p", "want"),
    [
        (1, (-0.30116868, 1.38177329)),
        (2, (-1.32544426, 0.49315059)),
        (3, (-1.1311125, -0.84887249)),
    ],
)
def test_rope_typed(p: int, want: tuple[float, float]) -> None:
    """The vector [1, 1] turned by 1, 2 and 3 radians, counter-clockwise."""
    for pairing in ("half", "interleaved"):
        for turn in rope(p, head_dim=2, pairing=pairing):  # type: ignore[arg-type]
            np.testing.assert_allclose(turn @ np.ones(2), want, rtol=0, atol=1e-8)


@pytest.mark.parametrize("p", POSITIONS)
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_rope_is_exponential_of_its_generator(p: float, pairing: Any) -> None:
    want = exponential(p, 8, pairs_of(8, pairing), [1.0, 0.1, 0.01, 0.001])
    for turn in rope(p, head_dim=8, pairing=pairing):
        np.testing.assert_allclose(turn, want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize(
    ("share", "thetas"),
    [(0.5, [1, 0.1, 0, 0]), (0.7, [1, 0.1, 0, 0]), (0.75, [1, 0.1, 0.01, 0]), (0, [0] * 4), (1, [1, 0.1, 0.01, 0.001])],
)
def test_p_rope_is_exponential_of_its_generator(share: float, thetas: list[float], pairing: Any) -> None:
    """0.7 of four pairs are two: Hugging Face rounds down."""
    for p in POSITIONS:
        for turn in p_rope(p, head_dim=8, share=share, pairing=pairing):
            np.testing.assert_allclose(turn, exponential(p, 8, pairs_of(8, pairing), thetas), rtol=0, atol=1e-12)


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize(("side", "start"), [("first", 0), ("last", 4)])
def test_rope_partial(pairing: Any, side: Any, start: int) -> None:
    """4 of 8 lanes turn, at the frequencies of a head of width 4: 1 and 0.01."""
    want = exponential(3.0, 8, pairs_of(4, pairing, start), [1.0, 0.01])
    r_q, r_k = rope(3.0, head_dim=8, rotary_dim=4, rotary_side=side, pairing=pairing)
    np.testing.assert_allclose(r_q, want, rtol=0, atol=1e-14)
    np.testing.assert_allclose(r_k, want, rtol=0, atol=1e-14)


def test_rope_base_and_given_inv_freq() -> None:
    by_base, _ = rope(5.0, head_dim=4, base=400.0)
    np.testing.assert_allclose(by_base, exponential(5.0, 4, [(0, 2), (1, 3)], [1.0, 0.05]), atol=1e-14)
    given, _ = rope(5.0, head_dim=6, rotary_dim=4, base=3.0, inv_freq=np.array([0.3, 0.07]))
    np.testing.assert_allclose(given, exponential(5.0, 6, [(0, 2), (1, 3)], [0.3, 0.07]), atol=1e-14)


def test_rope_paper_equation_34() -> None:
    """x * cos + (-x2, x1, -x4, x3) * sin, the paper's efficient form, typed for width 4."""
    x1, x2, x3, x4 = x = np.array([0.5, -1.0, 2.0, 0.25])
    angle = np.array([7.0, 7.0, 0.07, 0.07])
    want = x * np.cos(angle) + np.array([-x2, x1, -x4, x3]) * np.sin(angle)
    turn, _ = rope(7.0, head_dim=4, pairing="interleaved")
    np.testing.assert_allclose(turn @ x, want, rtol=1e-14)


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_rope_knows_only_the_difference(pairing: Any) -> None:
    """Equation 16: R(p)^T R(q) = R(q - p)."""
    kw: dict[str, Any] = {"head_dim": 10, "rotary_dim": 6, "rotary_side": "last", "pairing": pairing}
    for p in POSITIONS:
        for q in POSITIONS:
            between = rope(p, **kw)[0].T @ rope(q, **kw)[1]
            np.testing.assert_allclose(between, rope(q - p, **kw)[0], rtol=0, atol=1e-12)


def xpos_scores(q: Array, k: Array, q_pos: list[float], k_pos: list[float], pairing: str, centre: float = 0.0) -> Array:
    """Scores by the definition's matrices."""
    kw: dict[str, Any] = {"head_dim": q.shape[1], "pairing": pairing, "centre": centre, "scale_base": 8.0}
    left = [xpos(p, **kw)[0] @ row for p, row in zip(q_pos, q, strict=True)]
    right = [xpos(p, **kw)[1] @ row for p, row in zip(k_pos, k, strict=True)]
    return np.array([[a @ b for b in right] for a in left])


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_xpos_score_in_complex_numbers(pairing: str) -> None:
    """Each pair is a complex number: the real part of q conj(k) (zeta**(1/B) exp(i theta))**distance."""
    rng = np.random.default_rng(3)
    q_pos, k_pos = [5.0, 6.0, 12.5], [0.0, 3.0, 5.0, 9.0]
    q, k = rng.standard_normal((3, 8)), rng.standard_normal((4, 8))
    want = np.zeros((3, 4))
    for i, p_q in enumerate(q_pos):
        for j, p_k in enumerate(k_pos):
            for (x, y), theta, quarter in zip(
                pairs_of(8, pairing), (1.0, 0.1, 0.01, 0.001), (0.0, 0.25, 0.5, 0.75), strict=True
            ):
                step = cmath.exp(cmath.log((quarter + 0.4) / 1.4) / 8.0 + 1j * theta)
                product = complex(q[i, x], q[i, y]) * complex(k[j, x], k[j, y]).conjugate()
                want[i, j] += (product * step ** (p_q - p_k)).real
    np.testing.assert_allclose(xpos_scores(q, k, q_pos, k_pos, pairing), want, rtol=1e-12, atol=1e-12)


def test_xpos_score_depends_on_the_difference() -> None:
    rng = np.random.default_rng(4)
    q, k = rng.standard_normal((2, 6)), rng.standard_normal((3, 6))
    here = xpos_scores(q, k, [4.0, 5.0], [1.0, 2.0, 5.0], "interleaved")
    moved = xpos_scores(q, k, [24.0, 25.0], [21.0, 22.0, 25.0], "interleaved")
    centred = xpos_scores(q, k, [4.0, 5.0], [1.0, 2.0, 5.0], "interleaved", centre=2.5)
    np.testing.assert_allclose(moved, here, rtol=1e-11)
    np.testing.assert_allclose(centred, here, rtol=1e-12)


@pytest.mark.parametrize("centre", [0.0, 100.0])
def test_xpos_typed_scale(centre: float) -> None:
    """B = 512 positions past the centre (gamma 0.4, d 4): queries times 2/7 and 9/14, keys 7/2 and 14/9."""
    p = 512.0 + centre
    r_q, r_k = xpos(p, head_dim=4, centre=centre)
    turn = exponential(p, 4, [(0, 1), (2, 3)], [1.0, 0.01])
    np.testing.assert_allclose(r_q, np.diag([2 / 7, 2 / 7, 9 / 14, 9 / 14]) @ turn, atol=1e-12)
    np.testing.assert_allclose(r_k, np.diag([7 / 2, 7 / 2, 14 / 9, 14 / 9]) @ turn, atol=1e-12)


def test_xpos_base_and_gamma() -> None:
    """gamma 0.5, d 2: zeta = 1/3; half of scale_base away: sqrt(1/3), sqrt(3). base in the second pair."""
    r_q, r_k = xpos(2.0, head_dim=2, gamma=0.5, scale_base=4.0)
    turn = exponential(2.0, 2, [(0, 1)], [1.0])
    np.testing.assert_allclose(r_q, 3**-0.5 * turn, rtol=1e-14)
    np.testing.assert_allclose(r_k, 3**0.5 * turn, rtol=1e-14)
    r_q, _ = xpos(2.0, head_dim=4, base=400.0, centre=2.0)  # at the centre only the rotation is left
    np.testing.assert_allclose(r_q, exponential(2.0, 4, [(0, 1), (2, 3)], [1.0, 0.05]), atol=1e-14)


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_axial_rope_is_exponential_of_its_generator(pairing: Any) -> None:
    """Two axes at 7.25 and -3: four pairs, the first two by axis 0 at 1 and 0.01, the others by axis 1."""
    want = exponential(1.0, 8, pairs_of(8, pairing), [7.25, 0.0725, -3.0, -0.03])
    for turn in axial_rope(np.array([7.25, -3.0]), head_dim=8, pairing=pairing):
        np.testing.assert_allclose(turn, want, rtol=0, atol=1e-14)


def test_axial_rope_three_axes_base_and_given_inv_freq() -> None:
    """Width 12 over three axes: pairs at 1 and 1/20 by base 400 on each; or at 0.3 and 0.07, as given."""
    p = np.array([2.0, 5.0, -1.0])
    by_base, _ = axial_rope(p, head_dim=12, n_axes=3, base=400.0)
    angles = [2.0, 0.1, 5.0, 0.25, -1.0, -0.05]
    np.testing.assert_allclose(by_base, exponential(1.0, 12, pairs_of(12, "half"), angles), atol=1e-14)
    given, _ = axial_rope(p, head_dim=12, n_axes=3, inv_freq=np.array([0.3, 0.07]), pairing="interleaved")
    angles = [0.6, 0.14, 1.5, 0.35, -0.3, -0.07]
    np.testing.assert_allclose(given, exponential(1.0, 12, pairs_of(12, "interleaved"), angles), atol=1e-14)


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_axial_rope_of_uneven_widths(pairing: Any) -> None:
    """Widths 2, 6 and 4 of 12, base 1000: one pair; 1, 1/10 and 1/100; 1 and 1000^(-1/2) = 0.0316. Or as given."""
    p, kw = np.array([2.0, 5.0, -1.0]), {"head_dim": 12, "widths": (2, 6, 4), "pairing": pairing}
    angles = [2.0, 5.0, 0.5, 0.05, -1.0, -0.03162277660168379]
    want = exponential(1.0, 12, pairs_of(12, pairing), angles)
    np.testing.assert_allclose(axial_rope(p, base=1000.0, **kw)[0], want, rtol=0, atol=1e-14)
    given = axial_rope(p, inv_freq=np.array([1.0, 1.0, 0.5, 0.1, 0.2, 2.0]), **kw)[1]
    angles = [2.0, 5.0, 2.5, 0.5, -0.2, -2.0]
    np.testing.assert_allclose(given, exponential(1.0, 12, pairs_of(12, pairing), angles), rtol=0, atol=1e-14)


def test_axial_rope_typed() -> None:
    """[1, 1, 1, 1] in row 1, column 3: the vectors of one axis at 1 and at 3, side by side."""
    r_q, r_k = axial_rope(np.array([1, 3]), head_dim=4, pairing="interleaved")
    for turn in (r_q, r_k):
        np.testing.assert_allclose(turn @ np.ones(4), [-0.30116868, 1.38177329, -1.1311125, -0.84887249], atol=1e-8)


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_axial_rope_knows_only_the_difference(pairing: Any) -> None:
    kw: dict[str, Any] = {"head_dim": 12, "pairing": pairing}
    for p, q in (([0.0, 5.0], [2.0, -1.5]), ([30.0, 4.0], [31.0, 4.0])):
        here, there = np.array(p), np.array(q)
        between = axial_rope(here, **kw)[0].T @ axial_rope(there, **kw)[1]
        np.testing.assert_allclose(between, axial_rope(there - here, **kw)[0], rtol=0, atol=1e-13)
