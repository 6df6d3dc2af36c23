"""Definitions of what transforms values: VO-RoPE against complex numbers, cameras against points in their images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from posenc.definitions.values import gta, prope, vo_rope

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


def turned(angle: float) -> np.ndarray:
    """Counter-clockwise by an angle."""
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def test_a_key_of_prope_that_is_a_pixel_becomes_the_point_that_the_camera_saw() -> None:
    """A camera one step behind the origin; the point (1, 2, 3) is 4 steps ahead of it, at pixel (125, 170) times 4."""
    views = np.eye(4)[None].copy()
    views[0, 2, 3] = 1.0
    lens = np.array([[100.0, 0.0, 100.0], [0.0, 140.0, 100.0], [0.0, 0.0, 1.0]])
    options = {"head_dim": 16, "viewmats": views, "intrinsics": lens, "image_size": (200, 400)}
    of_q, of_k, of_v, of_out = prope(np.array([0.0, 3.0, 2.0]), **options)
    in_image = np.array([4 * (125 / 400 - 0.5), 4 * (170 / 200 - 0.5), 4.0, 1.0])
    for matrix in (of_k, of_v):
        np.testing.assert_allclose(matrix[:4, :4] @ in_image, [1, 2, 3, 1], rtol=0, atol=1e-14)
    np.testing.assert_allclose(of_out[4:8, 4:8] @ [1, 2, 3, 1], in_image, rtol=0, atol=1e-14)
    np.testing.assert_array_equal(of_q, of_out.T)
    # head_dim 16: two pairs an axis, at 1 and 100^(-1/2) radians a patch; the column stands first, halves pair
    for start, at in ((8, 2.0), (12, 3.0)):
        for k, omega in enumerate((1.0, 0.1)):
            lanes = np.ix_([start + k, start + 2 + k], [start + k, start + 2 + k])
            for matrix, sign in ((of_q, -1), (of_k, -1), (of_v, -1), (of_out, 1)):
                np.testing.assert_allclose(matrix[lanes], turned(sign * at * omega), rtol=0, atol=1e-15)


def test_a_pose_of_gta_and_angles_of_the_sides_of_an_image() -> None:
    """In row 1 of 4 and column 3 of 6 a slow pair (half a turn a side) has 1/8 and 1/4 turn, a fast one 1/4 and 1/2."""
    views = np.stack([np.eye(4), np.array([[0.0, -1, 0, 5], [1, 0, 0, 6], [0, 0, 1, 7], [0, 0, 0, 1]])])
    of_q, of_k, of_v, of_out = gta(np.array([1.0, 1.0, 3.0]), head_dim=16, size=(4, 6), viewmats=views)
    np.testing.assert_array_equal(of_out[4:8, 4:8], views[1])
    np.testing.assert_allclose(of_k[:4, :4] @ [5, 6, 7, 1], [0, 0, 0, 1], rtol=0, atol=1e-14)  # where the world began
    np.testing.assert_array_equal(of_k, of_v)
    np.testing.assert_array_equal(of_q, of_out.T)
    for start, turns in ((8, 1 / 8), (10, 1 / 4), (12, 1 / 4), (14, 1 / 2)):
        for matrix, sign in ((of_q, 1), (of_k, 1), (of_out, -1)):
            block = matrix[start : start + 2, start : start + 2]
            np.testing.assert_allclose(block, turned(sign * 2 * np.pi * turns), rtol=0, atol=1e-14)


@pytest.mark.parametrize("define", [prope, gta])
def test_cameras_that_are_not_there_are_refused(define: Any) -> None:
    options = {"size": (2, 2)} if define is gta else {}
    for camera in (-1.0, 1.0):
        with pytest.raises(IndexError, match="outside 0..0"):
            define(np.array([camera, 0.0, 0.0]), head_dim=8, viewmats=np.eye(4)[None], **options)
