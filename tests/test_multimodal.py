"""Positions of text among pictures, as papers number them, against typed numbers and the definitions."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posenc import positions
from posenc.definitions.positions import circle_positions, mrope_positions, v2pe_positions, videorope_positions
from strategies import check, refuses

PART = st.one_of(st.integers(0, 5), st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 5)))
PARTS = st.lists(PART, max_size=6)
STEP = st.sampled_from([1, 0.5, 2, 1.25])


def same(got: torch.Tensor, wanted: np.ndarray) -> None:
    assert got.dtype in (torch.int64, torch.float64)
    np.testing.assert_allclose((got if got.ndim == 1 else got.mT).numpy(), wanted, rtol=0, atol=1e-12)


@given(PARTS, STEP, st.sampled_from(["all_axes", "sides"]), st.booleans(), st.integers(0, 8))
@check(60)
def test_mrope_with_resets_and_steps_is_its_definition(parts, step, after, reset, side) -> None:
    got = positions.mrope(parts, time_step=step, next_after=after, spatial_reset=reset, side_step=side)
    same(got, mrope_positions(parts, step, next_after=after, spatial_reset=reset, side_step=side))


@given(PARTS, STEP)
@check(60)
def test_videorope_is_its_definition(parts, step) -> None:
    same(positions.videorope(parts, time_step=step), videorope_positions(parts, step))


@given(PARTS, st.sampled_from([1, 0.5, 1 / 16, 1 / 256, 4]))
@check(60)
def test_v2pe_is_its_definition(parts, step) -> None:
    same(positions.v2pe(parts, step=step), v2pe_positions(parts, step))


@given(PARTS, STEP, st.sampled_from([0.0, 1.0, 10.0]), *[st.sampled_from([0.0, 0.3, 1.0])] * 2)
@check(60)
def test_circle_rope_is_its_definition(parts, step, radius, alpha, share) -> None:
    got = positions.circle_rope(parts, time_step=step, radius=radius, alpha=alpha, grid_share=share)
    same(got, circle_positions(parts, time_steps=step, radius=radius, alpha=alpha, grid_share=share))


def test_rows_and_columns_that_begin_anew() -> None:
    """The text goes on as if they did not: where the picture began, 2, and its four columns more."""
    pos = positions.mrope([2, (2, 1, 4), 1], spatial_reset=True)
    assert pos[2:10].T.tolist() == [[2] * 4 + [3] * 4, [0] * 8, [0, 1, 2, 3] * 2]
    assert pos[10].tolist() == [6, 6, 6]


def test_cells_that_lie_further_apart() -> None:
    """Lumos-1: 4 between frames and 8 between rows and columns, from 1 on; text goes on after the largest, 9."""
    pos = positions.mrope([1, (2, 2, 1), 1], time_step=4, side_step=8)
    assert pos.T.tolist() == [[0, 1, 1, 5, 5, 10], [0, 1, 9, 1, 9, 10], [0, 1, 1, 1, 1, 10]]


def test_frames_lie_on_the_diagonal() -> None:
    """Frames half a position apart around text's line; of four columns the second lies on it."""
    pos = positions.videorope([2, (3, 1, 4), 2], time_step=0.5)
    assert pos[2:14, 0].tolist() == [2.0] * 4 + [2.5] * 4 + [3.0] * 4
    assert torch.equal(pos[2:14, 1], pos[2:14, 0])
    assert (pos[2:14, 2] - pos[2:14, 0]).tolist() == [-1, 0, 1, 2] * 3
    assert pos[14:].tolist() == [[4.0] * 3, [5.0] * 3]


def test_cells_take_less_room_than_tokens() -> None:
    assert positions.v2pe([1, (1, 2, 2), 2], step=0.25).tolist() == [0, 0.25, 0.5, 0.75, 1, 2, 3]
    assert positions.v2pe([(1, 1, 3), (1, 1, 1), 1], step=[0.5, 2]).tolist() == [-0.5, 0, 0.5, 3, 4]


def test_every_cell_is_as_far_from_a_token_of_text_as_any_other() -> None:
    """The paper's per-token distance is 0, and the ring lies around the line of text; the grid does not."""
    pos = positions.circle_rope([3, (1, 4, 5), 2], radius=7.0, alpha=0.5)
    picture, line = pos[3:23], torch.full((3,), 3.0, dtype=torch.float64)
    torch.testing.assert_close((picture - line).norm(dim=1), torch.full((20,), 7.0, dtype=torch.float64))
    torch.testing.assert_close((picture - line).sum(1), torch.zeros(20, dtype=torch.float64))
    for token in pos[[0, 1, 2, 23, 24]]:
        assert float((picture - token).norm(dim=1).std()) < 1e-12
    assert float((positions.mrope([3, (1, 4, 5)])[3:] - pos[0]).norm(dim=1).std()) > 1
    assert math.isclose(float(pos[23, 0]), float(picture.max()) + 1)
    assert len({tuple(cell) for cell in picture.numpy().round(9)}) == 20


@pytest.mark.parametrize(
    ("number", "options", "kind", "words"),
    [
        (positions.mrope, {"side_step": -1}, ValueError, "positions.mrope: side_step must be 0 or more; got -1"),
        (positions.mrope, {"side_step": 0.5}, TypeError, "positions.mrope: side_step must be a whole number; got 0.5"),
        (positions.videorope, {"time_step": -1}, ValueError, "positions.videorope: time_step must be a finite number"),
        (
            positions.v2pe,
            {"step": [1, 2]},
            ValueError,
            "positions.v2pe: step must be one number, or one for each of the 1",
        ),
        (positions.circle_rope, {"radius": -1.0}, ValueError, "positions.circle_rope: radius must be a finite number"),
        (
            positions.circle_rope,
            {"alpha": 1.5},
            ValueError,
            "positions.circle_rope: alpha must be from 0 to 1; got 1.5",
        ),
        (positions.circle_rope, {"grid_share": -0.1}, ValueError, "grid_share must be from 0 to 1; got -0.1"),
    ],
)
def test_what_makers_do_not_take(number, options, kind, words) -> None:
    with refuses(kind, words):
        number([2, (1, 2, 2)], **options)


@pytest.mark.parametrize("number", [positions.mrope, positions.videorope, positions.v2pe, positions.circle_rope])
def test_pictures_without_cells_leave_the_text_alone(number) -> None:
    text = number([2, 3])
    assert torch.equal(number([2, (0, 0, 0), 3]), text)
    with refuses(TypeError, "a part must be a number of text tokens, or (frames, rows, columns) of a picture"):
        number([2, (1, 2)])
