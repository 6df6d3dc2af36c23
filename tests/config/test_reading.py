"""A configuration is read within limits, and nothing of it runs."""

import json
import os

import pytest
import torch

from posenc import config
from strategies import refuses


def test_a_file_its_directory_and_a_mapping_are_the_same(tmp_path):
    source = {"model_type": "llama", "unknown": [None, True, 1, 2.5, "é", {"a": []}], "auto_map": {"A": "evil--x.Y"}}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(source), encoding="utf-8")
    assert config.read(path) == config.read(str(tmp_path)) == config.read(source) == source


def test_a_mapping_is_copied_to_plain_values():
    class Whole(int):
        pass

    inner = {"tuple": (1, 2), 0: "LABEL_0", "whole": Whole(3)}
    out = config.read({"inner": inner})
    assert out == {"inner": {"tuple": [1, 2], "0": "LABEL_0", "whole": 3}}
    assert type(out["inner"]["whole"]) is int
    inner["tuple"] = None
    assert out["inner"]["tuple"] == [1, 2]


def test_nothing_is_imported_or_written(tmp_path):
    before = set(os.listdir(tmp_path))
    (tmp_path / "config.json").write_text('{"auto_map": {"AutoConfig": "code.C"}, "model_type": "x"}', encoding="utf-8")
    (tmp_path / "code.py").write_text("raise SystemExit", encoding="utf-8")
    config.read(tmp_path)
    assert set(os.listdir(tmp_path)) - before == {"config.json", "code.py"}


DEEP = '{"a":' * 40 + "1" + "}" * 40
BAD_FILES = {
    "2 MiB": (b'{"a": "' + b"x" * (2 << 20) + b'"}', "over 1048576 bytes"),
    "deep": (DEEP.encode(), "deeper than 32"),
    "deeper than Python": (b"[" * 500_000, "deeper than 32"),
    "twice": (b'{"rope_theta": 1, "rope_theta": 2}', "'rope_theta' twice"),
    "twice inside": (b'{"a": [{"b": 1, "b": 2}]}', "'b' twice"),
    "NaN": (b'{"rope_theta": NaN}', "NaN"),
    "Infinity": (b'{"a": [Infinity]}', "Infinity"),
    "-Infinity": (b'{"a": -Infinity}', "-Infinity"),
    "beyond float64": (b'{"a": 1e999}', "finite"),
    "many digits": (b'{"a": ' + b"1" * 5000 + b"}", "5000 digits"),
    "a list": (b"[1]", "JSON object"),
    "a number": (b"1", "JSON object"),
    "empty": (b"", "not JSON"),
    "cut off": (b'{"a": ', "not JSON"),
    "latin": (b'{"a": "\xff"}', "not JSON in UTF-8"),
    "long string": (b'{"a": "' + b"x" * 70_000 + b'"}', "65536 characters"),
    "long key": (b'{"' + b"k" * 600 + b'": 1}', "512 characters"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_files_beyond_the_limits_are_refused(name, tmp_path):
    data, words = BAD_FILES[name]
    (tmp_path / "config.json").write_bytes(data)
    with pytest.raises(ValueError, match="config.read: ") as caught:
        config.read(tmp_path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_just_within_the_limits(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"a":' * 32 + "1" + "}" * 32, encoding="utf-8")
    config.read(path)
    head, tail = '{"a": 1, "b": "', '"}'
    blank = " " * ((1 << 20) - len(head) - len(tail) - 10)
    path.write_text(head + "x" * 10 + tail + blank, encoding="utf-8")
    assert path.stat().st_size == 1 << 20
    assert config.read(path)["b"] == "x" * 10


def test_missing_files_and_other_kinds(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no file"):
        config.read(tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        config.read(tmp_path / "no.json")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileNotFoundError):
        config.read(tmp_path / "pipe")
    with pytest.raises(FileNotFoundError):
        config.read("a\0b")
    with pytest.raises(ValueError, match="cannot be read"):
        config.read("a" * 5000)
    with refuses(TypeError, "path or a mapping"):
        config.read(3)


def test_mappings_beyond_the_limits():
    many = []
    for _ in range(30):  # one list many times: a file cannot hold it
        many = [many, many]
    endless = {}
    endless["a"] = endless
    for source, kind, words in [
        ({"a": many}, ValueError, "values"),
        (endless, ValueError, "deeper than 32"),
        ({"a": float("nan")}, ValueError, "finite"),
        ({"a": 10**400}, ValueError, "finite"),
        ({"a": {1, 2}}, TypeError, "JSON values"),
        ({"a": {None: 1}}, TypeError, "keys must be strings"),
        ({"a": {0: 1, "0": 2}}, ValueError, "two keys are the same string"),
        ({"a": torch.zeros(2)}, TypeError, "JSON values"),
    ]:
        with pytest.raises(kind) as caught:
            config.read(source)
        assert words in str(caught.value)
