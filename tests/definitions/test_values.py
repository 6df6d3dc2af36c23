"""The definition of VO-RoPE, against complex numbers: what a query gets of a value depends on the distance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from posenc.definitions.values import vo_rope

POSITIONS = np.array([0.0, 1.0, 2.5, 7.0, -4.0])


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_an_output_is_the_sum_of_values_rotated_by_differences(pairing: Any) -> None:
    """Su 2025: o_i = sum_j a_ij R(p_j - p_i) v_j; as complex numbers, pair k turns by base^(-2k/d) a position."""
    random = np.random.default_rng(0)
    v, weights = random.normal(size=(5, 6)), random.uniform(size=(5, 5))
    lanes = [(0, 3), (1, 4), (2, 5)] if pairing == "half" else [(0, 1), (2, 3), (4, 5)]
    theta = np.array([1.0, 100.0 ** (-2 / 6), 100.0 ** (-4 / 6)])
    matrices = [vo_rope(p, head_dim=6, base=100.0, pairing=pairing) for p in POSITIONS]
    rotated = np.array([of_v @ row for (of_v, _), row in zip(matrices, v, strict=True)])
    out = np.array([of_out @ row for (_, of_out), row in zip(matrices, weights @ rotated, strict=True)])
    pairs = np.array([v[:, x] + 1j * v[:, y] for x, y in lanes])  # (3, n)
    turns = np.exp(1j * theta[:, None, None] * (POSITIONS[None, :] - POSITIONS[:, None]))  # (3, query, key)
    wanted = np.einsum("ij,kij,kj->ik", weights, turns, pairs)
    for k, (x, y) in enumerate(lanes):
        np.testing.assert_allclose(out[:, x] + 1j * out[:, y], wanted[:, k], rtol=0, atol=1e-13)


def test_a_part_of_the_lanes_rotates_at_its_own_width() -> None:
    """DeepSeek-V4: the last lanes, interleaved, at frequencies 1 and 0.01 for a width of 4."""
    of_v, of_out = vo_rope(3.0, head_dim=7, rotary_dim=4, rotary_side="last", pairing="interleaved")
    wanted = np.eye(7)
    for x, angle in ((3, 3.0), (5, 0.03)):
        wanted[x : x + 2, x : x + 2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    np.testing.assert_allclose(of_v, wanted, rtol=0, atol=1e-15)
    np.testing.assert_allclose(of_out, wanted.T, rtol=0, atol=1e-15)


def test_frequencies_of_ones_own() -> None:
    of_v, _ = vo_rope(2.0, head_dim=4, inv_freq=np.array([0.5, 0.0]))
    np.testing.assert_allclose(of_v @ [1, 1, 0, 1], [np.cos(1), 1, np.sin(1), 1], rtol=0, atol=1e-15)
