import json

import numpy as np
import pytest

from posenc.explorer.frames import Frame, encode, plain, to_json


def decode(data):
    """Read a frame as the page does, by the form that the module's docstring gives."""
    length = int.from_bytes(data[:4], "little")
    assert length % 4 == 0
    header = json.loads(data[4 : 4 + length].decode("utf-8"))
    offset, arrays = 4 + length, []
    for about in header["arrays"]:
        size = int(np.prod(about["shape"]))
        arrays.append(np.frombuffer(data, "<f4", size, offset).reshape(about["shape"]))
        offset += 4 * size
    assert offset == len(data)
    return header, arrays


def test_arrays_come_back():
    first, second = np.arange(6.0).reshape(2, 3), np.array([1 / 3, -2.5e-7])
    header, arrays = decode(encode(Frame({"view": "heat", "kind": "matrix"}, [first, second])))
    assert header["view"] == "heat"
    assert header["arrays"] == [{"name": "0", "shape": [2, 3]}, {"name": "1", "shape": [2]}]
    np.testing.assert_array_equal(arrays[0], first)
    np.testing.assert_array_equal(arrays[1], second.astype(np.float32))


@pytest.mark.parametrize("letters", range(8))
def test_headers_of_any_length_leave_arrays_where_javascript_can_read_them(letters):
    header, arrays = decode(encode(Frame({"title": "ω" * letters}, [np.array([5.0])])))
    assert header["title"] == "ω" * letters
    assert arrays[0] == 5


def test_names_are_kept_and_shapes_are_measured():
    named = Frame({"arrays": [{"name": "score", "shape": "wrong"}]}, [np.zeros((1, 2))])
    assert decode(encode(named))[0]["arrays"] == [{"name": "score", "shape": [1, 2]}]
    with pytest.raises(ValueError, match="zip"):
        encode(Frame({"arrays": [{"name": "one"}]}, [np.zeros(1), np.zeros(1)]))


def test_no_arrays_and_empty_arrays():
    assert decode(encode(Frame({"notes": []}))) == ({"notes": [], "arrays": []}, [])
    assert decode(encode(Frame({}, [np.zeros((0, 3))])))[1][0].shape == (0, 3)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.int64).reshape(2, 3).T,  # in another order in memory
        np.arange(6, dtype=">f8").reshape(3, 2),  # with the other end first
        np.arange(12.0).reshape(3, 4)[:, ::2],  # with gaps
    ],
)
def test_any_array_is_written_row_by_row(array):
    np.testing.assert_array_equal(decode(encode(Frame({}, [array])))[1][0], array.astype(np.float64))


def test_what_no_number_stands_for_passes():
    _, arrays = decode(encode(Frame({}, [np.array([np.nan, np.inf, -np.inf, 1e300, -1e300])])))
    np.testing.assert_array_equal(arrays[0], [np.nan, np.inf, -np.inf, np.inf, -np.inf])


def test_headers_are_json_that_browsers_read():
    odd = {"low": float("-inf"), "n": np.int64(3), "x": np.float32(0.5), "a": np.array([1.0, np.nan]), 4: (True, None)}
    header, _ = decode(encode(Frame(odd)))
    assert header == {"low": None, "n": 3, "x": 0.5, "a": [1.0, None], "4": [True, None], "arrays": []}
    assert to_json({"v": [float("nan")]}) == b'{"v": [null]}'
    with pytest.raises(TypeError):
        encode(Frame({"value": object()}))


def test_plain_leaves_flags_and_words():
    assert plain([True, "inf", None, 2**70]) == [True, "inf", None, 2**70]
    assert plain(np.bool_(True)) is True
