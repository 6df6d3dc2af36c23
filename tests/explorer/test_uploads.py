"""Model files that are posted to the explorer, and the shelf that keeps them."""

import json
import struct

import pytest

from explorer_client import CONFIG, make, post
from posenc.explorer import shelf


@pytest.fixture(scope="module")
def loaded():
    return make()


def checkpoint(tensors, extra=b""):
    """Return the header of a safetensors file, and `extra` after it."""
    header = json.dumps(tensors).encode()
    return struct.pack("<Q", len(header)) + header + extra


def test_a_configuration_is_inspected_and_kept(loaded):
    answer = post(loaded, json.dumps(CONFIG).encode(), "my%20model.json")
    assert answer.status_code == 200
    found = answer.json()
    assert found["title"] == "my model.json"
    assert found["layers"][0]["count"] == 5
    assert len(found["layers"][0]["inv_freq"]) == 32
    kept = shelf.find(found["id"])
    assert kept["inspection"]["layers"] == found["layers"]
    assert kept["config"]["hidden_size"] == 512


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the file is empty"),
        (b"{", "is not JSON"),
        (b"[1]", "must be a JSON object; got"),
        (b"\x80\x02}q\x00.", "neither JSON nor the beginning of a .safetensors file"),
        (b'{"rope_theta": 1, "rope_theta": 2}', "has the key 'rope_theta' twice"),
        (b'{"rope_theta": NaN}', "not JSON"),
        (b'{"a":' * 40 + b"1" + b"}" * 40, "deeper than 32"),
        (b"[" * 100_000, "deeper than 32"),
        (json.dumps({**CONFIG, "head_dim": "wide"}).encode(), "head_dim"),
        (json.dumps({**CONFIG, "rope_theta": 0.0}).encode(), "rope_theta"),
        (checkpoint({"a": {"dtype": "F32"}}), "has no valid shape and dtype"),
        (checkpoint({"a": {"dtype": "F32", "shape": [-1]}}), "has no valid shape and dtype"),
        (checkpoint({"a": 3}), "has no valid shape and dtype"),
        (checkpoint({})[:-1], "Send all of it"),
        (struct.pack("<Q", 12) + b'{"a":1,"a":2', "Restore it"),
        (struct.pack("<Q", 20) + b"{" * 20, "Restore it"),
        (checkpoint({}, b"[]"), "must be a JSON object; got"),
    ],
)
def test_an_invalid_file_gets_an_error_message(loaded, body, message):
    answer = post(loaded, body)
    assert answer.status_code == 400
    assert message in answer.json()["error"]
    assert "\n" not in answer.json()["error"]


def test_a_header_lists_the_tensors_of_positions(loaded):
    tensors = {
        "__metadata__": {"format": "pt"},
        "transformer.wpe.weight": {"dtype": "F32", "shape": [1024, 768], "data_offsets": [0, 3145728]},
        "transformer.wte.weight": {"dtype": "BF16", "shape": [10, 768], "data_offsets": [3145728, 3161088]},
    }
    found = post(loaded, checkpoint(tensors), "model.safetensors").json()
    assert found["tensors"]["count"] == 2
    assert found["tensors"]["parameters"] == 1034 * 768
    table = {"name": "transformer.wpe.weight", "kind": "wpe", "shape": [1024, 768], "dtype": "F32"}
    assert found["tensors"]["tables"] == [table]
    assert found["layers"] == []
    assert found["warnings"][0]["code"] == "no_config"
    assert shelf.find(found["id"])["tensors"] == found["tensors"]


def test_a_configuration_may_follow_the_header(loaded):
    found = post(loaded, checkpoint({}, json.dumps(CONFIG).encode())).json()
    assert found["layers"][0]["count"] == 5
    assert found["tensors"]["count"] == 0


def test_a_header_whose_length_begins_with_a_brace_is_not_json(loaded):
    entry = {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}
    missing = ord("{") - len(json.dumps({"": entry}))
    body = checkpoint({"a" * missing: entry})
    assert body[:1] == b"{"
    assert post(loaded, body).json()["tensors"]["count"] == 1


def test_the_shelf_removes_the_oldest_model():
    first = shelf.keep({"title": "first"})
    assert shelf.find(first) == {"title": "first"}
    keys = {shelf.keep({"title": str(n)}) for n in range(shelf.MAX_KEPT)}
    assert len(keys) == shelf.MAX_KEPT
    with pytest.raises(ValueError, match="no longer in memory"):
        shelf.find(first)
