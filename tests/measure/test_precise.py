"""Where positions collide and how wrong angles are, against NumPy and against what is known."""

import math

import numpy as np
import pytest
import torch

import posenc
from posenc import measure


def test_integers_collide_where_their_dtype_ends() -> None:
    found = measure.collisions(posenc.Integer(d_model=2), 4096)
    assert found == {
        "float32": None,
        "bfloat16": {"position": 257, "same_as": 256},
        "float16": {"position": 2049, "same_as": 2048},
    }


def test_rotations_collide_where_their_slow_pairs_are_rounded_alike() -> None:
    """Of one pair that turns once in 62,832 positions, the first two whose cosine and sine round alike in float16."""
    slow = posenc.RoPE(head_dim=2, inv_freq=[0.0001])
    angle = np.arange(5000) * 0.0001
    rows = np.stack([np.cos(angle), np.sin(angle)], 1).astype(np.float32).astype(np.float16)
    first: dict[bytes, int] = {}
    again = next(p for p, row in enumerate(rows) if first.setdefault(row.tobytes(), p) != p)
    wanted = {"position": again, "same_as": first[rows[again].tobytes()]}
    assert measure.collisions(slow, 5000)["float16"] == wanted
    assert measure.collisions(slow, again)["float16"] is None


@pytest.mark.parametrize(("dtype", "digits"), [("float32", 24), ("float16", 11), ("bfloat16", 8)])
def test_phase_error_is_the_angle_between_rounded_and_exact(dtype: str, digits: int) -> None:
    rope = posenc.RoPE(head_dim=64)
    pos = np.array([0, 1, 255, 4095, 100_001])
    found = measure.phase_error(rope, pos, dtype)
    assert found.shape == (5,)
    assert found[0] == 0.0
    assert (found < 2.0 ** (1 - digits)).all()
    assert found[1:].max() > 2.0 ** (-digits - 2)
    if dtype != "float32":  # of which the tables themselves are rounded, so that NumPy's must not be
        angle = np.outer(pos, 10000.0 ** (-np.arange(32) / 32))
        cos, sin = (
            torch.from_numpy(f(angle)).float().to(getattr(torch, dtype)).double().numpy() for f in (np.cos, np.sin)
        )
        wanted = np.abs(np.angle((cos + 1j * sin) * np.exp(-1j * angle))).max(1)
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-7)


def test_formula_in_a_narrow_dtype_is_wrong_by_turns() -> None:
    """In bfloat16, 257 is 256 and 10,001 is 9,984: the fastest pair is wrong by 1, and by 17 less whole turns."""
    rope = posenc.RoPE(head_dim=2)
    found = measure.phase_error(rope, [256, 257, 10_001], torch.bfloat16, formula=True)
    assert found[0] < 0.01
    np.testing.assert_allclose(found[1:], [1.0, 6 * math.pi - 17], atol=0.01)


def test_lengths_are_resolved() -> None:
    assert measure.phase_error(posenc.DynamicNTK(head_dim=4, factor=2.0, original_max_len=8), [5000])[0] < 1e-6
    assert measure.collisions(posenc.TAPE(d_model=4), 50)["float32"] is None
