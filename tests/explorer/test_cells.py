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


def test_a_turn_is_told_as_one_would_compute_it() -> None:
    found = why("heat", 37, 3, a="rope", a__head_dim=8)
    assert found["formula"] == posenc.card("rope").formula
    said = " ".join(found["steps"])
    assert "10,000^(-2·3/8) = 0.001 radians per position" in said
    assert "37 · 0.001 = 0.037 radians" in said
    assert f"cos(0.037) = {math.cos(0.037):.7g}" in said
    assert found["value"] == pytest.approx(math.cos(0.037), abs=1e-15)
    assert (
        f"{np.float32(math.cos(0.037)):.7g} in float32, 1 in bfloat16, {float(np.float16(math.cos(0.037))):.7g}" in said
    )
    second = " ".join(why("heat", 37, 7, a="rope", a__head_dim=8)["steps"])
    assert f"sin(0.037) = {math.sin(0.037):.7g}" in second
    still = why("heat", 37, 7, a="rope", a__head_dim=8, a__rotary_dim=4)
    assert (still["value"], "Lane 7 does not turn" in " ".join(still["steps"])) == (0, True)


def test_half_precision_is_told_as_it_goes_wrong() -> None:
    said = " ".join(why("heat", 257, 0, a="sinusoidal", a__d_model=4)["steps"])
    assert "40 whole turns" in said
    # bfloat16 has no 257: its sine is that of 256
    assert "in bfloat16 (angle 256)" in said


def test_digits_tables_and_fractions() -> None:
    said = " ".join(why("heat", 6, 1, a="binary", a__d_model=3)["steps"])
    assert "p = 6 is 110 in binary" in said
    assert "digit 1, which is worth 2^1 = 2" in said
    said = " ".join(why("heat", 6, 0, a="learned", a__d_model=4, a__offset=2)["steps"])
    assert "6 + 2 = 8" in said
    assert why("heat", 6, 0, a="normalised", length=8)["value"] == 0.75


def test_biases_name_distance_slope_and_bucket() -> None:
    said = " ".join(why("bias", 1, 5, a="alibi", a__n_heads=4)["steps"])
    assert "2^(-8·(1 + 1)/4) = 0.0625" in said
    assert "-m·|i - j| = -0.0625 · 5 = -0.3125" in said
    said = " ".join(why("bias", 9, 4, a="alibi", draw="matrix")["steps"])
    assert "Query at 9, key at 4: distance i - j = 5, which looks back" in said
    said = " ".join(why("bias", 0, 20, a="t5", a__n_heads=2)["steps"])
    # of 16 buckets from 16 to 128 the second begins at 16·8^(1/16) = 18.2 and the third at 20.7
    assert "bucket(20) = 17, which 2 distances from 19 on share" in said
    said = " ".join(why("bias", 0, 90, a="relative_bias", a__max_distance=16)["steps"])
    assert "Clipped to -16..16, the distance is 16" in said


def test_sums_show_their_largest_terms_first() -> None:
    found = why("similarity", 5, 6, a="binary", a__d_model=3)
    assert found["value"] == 1
    assert (
        "The dot product of position 5 and position 6 has 3 terms; the largest are lane 0, 1 · 1: 1"
        in found["steps"][0]
    )
    found = why("distances", 1, 6, a="binary", a__d_model=3, length=8)  # row 1: the cosine
    assert found["value"] == pytest.approx(1 / math.sqrt(2))
    said = " ".join(why("profile", 0, 100, a="rope", a__head_dim=4, length=101)["steps"])
    expected = 0.5 * 2 * (math.cos(100) + math.cos(1))
    assert f"the average without chance is {expected:.7g}" in said


def test_index_maps_say_which_piece_holds_a_pair() -> None:
    found = why("distances", 20, 2, a="self_extend", a__window=4, a__group=2)
    assert found["value"] == 20 // 2 - 2 // 2 + 4 - 4 // 2
    assert "turned by the distance" in found["steps"][-1]
    near = why("distances", 5, 4, a="rerope", a__window=3)
    assert "|distance| = 1 is below 3: this pair is near" in near["steps"][-3].replace("|Distance|", "|distance|")


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
