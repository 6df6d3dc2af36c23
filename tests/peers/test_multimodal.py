"""Plans of axes and positions of text among pictures, against numbers of the code of Huang 2025 (2510.23095).

`tests/data/multimodal.safetensors` has them; its metadata says of which sequences and with which settings.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import posenc
from posenc import positions

GOLDEN = load_file(Path(__file__).parents[1] / "data" / "multimodal.safetensors")
# a picture, and two frames of a video after their time stamps; and pictures of other sizes
PARTS: list[Any] = [6, (1, 2, 2), 5, (1, 2, 2), 4, (1, 2, 2), 2]
MORE: list[Any] = [3, (1, 3, 4), 2, (1, 1, 5), 4, (1, 2, 1), 3]
OFF_BY_ONE = (
    0,
    *(1, 2) * 23,
    1,
    *(0,) * 16,
)  # of their VideoRoPE: its authors' has row, column, row, .. from pair 0 on


def spans(parts: list[Any]) -> Tensor:
    """Each picture takes 16 positions."""
    return positions.v2pe(parts, step=[16 / math.prod(part) for part in parts if part not in range(9)])


def reset(parts: list[Any]) -> Tensor:
    return positions.mrope(parts, spatial_reset=True)


# the name, the options and the positions that a user writes
PLANS: dict[str, tuple[str, dict[str, Any], Callable[[list[Any]], Tensor]]] = {
    "mrope": ("mrope", {}, lambda parts: positions.mrope(parts, time_step=2)),
    "mrope-interleave": ("mrope", {"layout": "interleaved"}, positions.mrope),
    "mhrope": ("mhrope", {"n_kv_heads": 8}, reset),
    "videorope": ("videorope", {"layout": OFF_BY_ONE}, positions.videorope),
    "v2pe": ("v2pe", {}, spans),
    "circlerope": ("circle_rope", {}, lambda parts: positions.circle_rope(parts, grid_share=1)),
    "circlerope ring": ("circle_rope", {}, positions.circle_rope),
    "circlerope annulus": (
        "circle_rope",
        {},
        lambda parts: positions.circle_rope(parts, grid_share=0.25, radius=4, alpha=0.75),
    ),
    "hope": ("hope_video", {"layout": tuple(axis or None for axis in OFF_BY_ONE)}, positions.videorope),
    "ilrope": ("ilrope", {}, reset),
    "omnirope": ("omnirope", {}, reset),
    "mmrope": ("mmrope", {}, lambda parts: positions.mrope(parts, time_step=4, side_step=8)),
}


@pytest.mark.parametrize(("before", "parts"), [("", PARTS), ("more/", MORE)])
@pytest.mark.parametrize("name", PLANS)
def test_positions_are_those_of_the_published_code(name: str, before: str, parts: list[Any]) -> None:
    pos, theirs = PLANS[name][2](parts), positions.from_hf(GOLDEN[f"{before}{name}.position_ids"])[0]
    pos = positions.on_each_axis(pos, 3) if pos.ndim == 1 else pos
    torch.testing.assert_close(pos.double(), theirs.double(), rtol=0, atol=1e-5)  # theirs are float32


@pytest.mark.parametrize("name", PLANS)
def test_angles_are_those_of_the_published_code(name: str) -> None:
    named, options, number = PLANS[name]
    encoding = posenc.create(named, head_dim=128, base=5e6, **options)
    for got, part in zip(encoding.place(number(PARTS)).parts, ("cos", "sin"), strict=True):
        got = got.movedim(-2, -3) if got.ndim == 3 else got  # heads
        torch.testing.assert_close(got, GOLDEN[f"{name}.{part}"][0], rtol=0, atol=1e-5)
