import csv
import io

import numpy as np
import pytest

from posenc.explorer import tables
from posenc.explorer.frames import Frame

AXES = {"x": {"label": "key", "unit": "tokens"}, "y": {"label": "query", "unit": ""}}


def rows(frame):
    return list(csv.reader(io.StringIO(tables.write(frame))))


def test_series_are_one_row_a_point_with_their_band():
    header = {**AXES, "series": [{"label": "a, b", "x": 0, "array": 1, "low": 2}, {"label": "c", "x": 0, "array": 2}]}
    found = rows(Frame(header, [np.array([1.0, 2.0]), np.array([0.1, 0.2]), np.array([-1.0, np.nan])]))
    assert found == [
        ["series", "key (tokens)", "query", "low"],
        ["a, b", "1", "0.1", "-1.0"],
        ["a, b", "2", "0.2", "nan"],
        ["c", "1", "-1.0", ""],
        ["c", "2", "nan", ""],
    ]


def test_a_matrix_has_its_rows_and_columns_beside_it():
    header = {**AXES, "matrix": {"array": 0, "rows": 1, "columns": 2}}
    found = rows(
        Frame(header, [np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 1 / 3]]), np.array([10.0, 11.0]), np.arange(3.0)])
    )
    assert found == [
        ["query \\ key (tokens)", "0", "1", "2"],
        ["10", "1.0", "2.0", "3.0"],
        ["11", "4.0", "5.0", "0.3333333333333333"],
    ]


def test_points_have_their_positions_and_all_coordinates():
    header = {"x": {"label": "lane 0"}, "y": {"label": "lane 1"}, "z": {"label": "lane 2"}, "along": 3}
    header["series"] = [{"label": "positions", "x": 0, "array": 1, "z": 2}]
    found = rows(Frame(header, [np.array([0.5, 0.25]), np.array([1.0, 2.0]), np.array([3.0, 4.0]), np.arange(2.0)]))
    assert found == [
        ["series", "position", "lane 0", "lane 1", "lane 2"],
        ["positions", "0", "0.5", "1.0", "3.0"],
        ["positions", "1", "0.25", "2.0", "4.0"],
    ]


def test_curves_of_several_kinds_say_which_they_are():
    header = {"x": {"label": "pair"}, "y": {"label": "wavelength"}, "fates": ["kept", "blended", "divided"]}
    header["series"] = [
        {"label": "yarn", "group": "wavelength", "x": 0, "array": 1},
        {"label": "yarn", "group": "fate", "x": 0, "array": 2},
    ]
    assert rows(Frame(header, [np.array([0.0]), np.array([6.5]), np.array([2.0])])) == [
        ["series", "group", "pair", "value"],
        ["yarn", "wavelength", "0", "6.5"],
        ["yarn", "fate: 0 kept, 1 blended, 2 divided", "0", "2.0"],
    ]


def test_what_is_no_table_or_too_large_is_refused():
    with pytest.raises(ValueError, match="has no table"):
        tables.write({"formula": "x"})
    with pytest.raises(ValueError, match="at most 2,000,000 numbers; this one would have 2,000,001"):
        tables.write(Frame({}, [np.zeros(2_000_001)]))


def to_number(text):
    try:
        return float(text)
    except ValueError:
        return None


def test_every_view_can_be_written():
    from posenc.explorer import views

    n_written = 0
    for view in views.VIEWS.values():
        query = {"a": "alibi" if view.id == "bias" else "rope"} if view.refuses is not None else {}
        try:
            frame = view.answer(query)
        except ValueError:  # it must be asked about something
            continue
        if isinstance(frame, Frame):
            found = rows(frame)
            n_written += 1
            assert len(found) > 2, view.id
            numbers = {number for row in found for value in row if (number := to_number(value)) is not None}
            series = frame.header.get("series") or []
            shown = [frame.arrays[one["array"]] for one in series]
            if frame.header.get("matrix"):
                shown.append(frame.arrays[frame.header["matrix"]["array"]])
            assert shown, view.id
            assert all(set(array[np.isfinite(array)].ravel().tolist()) <= numbers for array in shown), view.id
    assert n_written >= 6
