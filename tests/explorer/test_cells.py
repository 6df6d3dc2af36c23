"""Why a cell has its value: the steps say what a person would compute."""

import math
from typing import Any

import numpy as np
import pytest

import posenc
from posenc.explorer import views


def why(view: str, row: float, column: float, **query: object) -> Any:
    asked = {key.replace("__", "."): str(value) for key, value in query.items()}
    return views.answer("cell", {**asked, "view": view, "row": str(row), "column": str(column)})


def said(view: str, row: float, column: float, **query: object) -> str:
    return " ".join(why(view, row, column, **query)["steps"])


def test_a_rotation_is_explained_as_one_would_compute_it() -> None:
    found = why("heat", 37, 3, a="rope", a__head_dim=8)
    assert found["formula"] == posenc.card("rope").formula
    assert found["value"] == pytest.approx(math.cos(0.037), abs=1e-15)
    steps = " ".join(found["steps"])
    assert "10,000^(-2 · 3 / 8) = 0.001" in steps
    assert f"cos(37 · 0.001) = {math.cos(0.037):.7g}" in steps
    rounded = f"{np.float32(math.cos(0.037)):.7g} in float32, 1 in bfloat16, {float(np.float16(math.cos(0.037))):.7g}"
    assert rounded in steps
    assert f"sin(37 · 0.001) = {math.sin(0.037):.7g}" in said("heat", 37, 7, a="rope", a__head_dim=8)
    still = why("heat", 37, 7, a="rope", a__head_dim=8, a__rotary_dim=4)
    assert (still["value"], "so lane 7 is 0" in " ".join(still["steps"])) == (0, True)


def test_digits_tables_and_fractions() -> None:
    assert "floor(6 / 2^(3 - 1 - 1)) % 2 = 1" in said("heat", 6, 1, a="binary", a__d_model=3)
    assert "weight[int(6) + 2]" in said("heat", 6, 0, a="learned", a__d_model=4, a__offset=2)
    assert why("heat", 6, 0, a="normalised", length=8)["value"] == 0.75


def test_biases_name_distance_slope_and_bucket() -> None:
    steps = said("bias", 1, 5, a="alibi", a__n_heads=4)
    assert "= (0.25, 0.0625, 0.015625, 0.00390625)" in steps
    assert "-0.0625 · abs(5) = -0.3125" in steps
    steps = said("bias", 9, 4, a="alibi", draw="matrix")
    assert "Query at 9, key at 4: distance i - j = 5, which looks back" in steps
    # of 16 buckets from 16 to 128 the second begins at 16·8^(1/16) = 18.2 and the third at 20.7
    assert "_t5_bucket(20, 32, 128, bidirectional) = 17" in said("bias", 0, 20, a="t5", a__n_heads=2)
    assert "min(max(90 - 0, -16), 16)) = 16" in said("bias", 0, 90, a="relative_bias", a__max_distance=16, length=91)


def test_sums_show_their_largest_terms_first() -> None:
    found = why("similarity", 5, 6, a="binary", a__d_model=3)
    assert found["value"] == 1
    first = "The dot product of position 5 and position 6 has 3 terms; the largest are lane 0, 1 · 1: 1"
    assert first in found["steps"][0]
    found = why("distances", 1, 6, a="binary", a__d_model=3, length=8)  # row 1: the cosine
    assert found["value"] == pytest.approx(1 / math.sqrt(2))


def test_index_maps_say_which_distance_they_see() -> None:
    found = why("distances", 20, 2, a="self_extend", a__window=4, a__group=2)
    assert found["value"] == 20 // 2 - 2 // 2 + 4 - 4 // 2
    assert "20 // 2 - 2 // 2 + 4 - 4 // 2 = 11" in " ".join(found["steps"])
    assert "min(i - j, window) = min(5 - 4, 3) = 1" in said("distances", 5, 4, a="rerope", a__window=3)


def test_a_class_without_a_definition_gives_the_number_of_its_own_code() -> None:
    found = why("heat", 3, 0, a="pope")
    assert found["steps"][0].startswith("PoPE computes it by the formula above: its code returns ")


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"a": "rope"}, "view is missing"),
        ({"a": "rope", "view": "heat", "row": "1"}, "column is missing"),
        ({"a": "rope", "view": "points", "row": "1", "column": "1"}, "view must be one of heat"),
        ({"a": "rope", "view": "heat", "row": "nan", "column": "1"}, "row must be a finite number"),
        ({"a": "rope", "view": "heat", "row": "0.5", "column": "1"}, "row must be a whole number from 0 to 511"),
        ({"a": "rope", "view": "heat", "row": "512", "column": "1"}, "row must be a whole number from 0 to 511"),
        ({"a": "rope", "view": "heat", "row": "1", "column": "64"}, "column must be a whole number from 0 to 63"),
        ({"a": "rope", "view": "heat", "row": "1", "column": "-1"}, "column must be a whole number from 0"),
        ({"a": "alibi", "view": "bias", "row": "4", "column": "1"}, "row must be a whole number from 0 to 3"),
        ({"a": "alibi", "view": "bias", "row": "0", "column": "128"}, "column must be a distance within 128"),
        ({"a": "alibi", "view": "heat", "row": "0", "column": "1"}, "neither adds vectors"),
        ({"a": "rope", "view": "heat", "row": "0", "column": "1", "magic": "1"}, "has no option 'magic'"),
    ],
)
def test_cells_that_are_not_there(query: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        views.answer("cell", query)
