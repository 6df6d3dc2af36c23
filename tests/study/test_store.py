import json

import pytest

from posenc.study.config import Cell
from posenc.study.store import Store
from posenc.study.worker import Directory

IDENTITY = {"train_len": 8, "seeds": [0, 1]}
ROPE, NOPE = Cell("rope", "text", "32x2x2", 0), Cell("nope", "text", "32x2x2", 0)


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "s", IDENTITY)
    store.write_run({"config": {}, "steps": 7, "status": "running"})
    yield store
    store.close()


def outcome(cell=ROPE):
    return {"result.json": json.dumps(cell._asdict() | {"steps": 3}).encode(), "metrics.jsonl": b"{}\n"}


def files(path):
    return sorted(p.relative_to(path).as_posix() for p in path.rglob("*"))


def test_a_cell_appears_whole_and_is_read_back(tmp_path, store):
    Directory(store.path).add(ROPE.name, "w", outcome())
    at = f"s/cells/{ROPE.name}"
    assert files(tmp_path / "s" / "cells") == [ROPE.name, f"{ROPE.name}/metrics.jsonl", f"{ROPE.name}/result.json"]
    assert store.results([ROPE, NOPE]) == [json.loads((tmp_path / at / "result.json").read_text())]


def test_a_finished_cell_stays_as_it_is_and_half_a_cell_is_replaced(tmp_path, store):
    directory, made = Directory(store.path), tmp_path / "s/cells" / ROPE.name
    directory.add(ROPE.name, "one", outcome())
    directory.add(ROPE.name, "two", outcome() | {"metrics.jsonl": b"other\n"})
    assert (made / "metrics.jsonl").read_bytes() == b"{}\n"
    (made / "result.json").write_text('{"half')
    directory.add(ROPE.name, "three", outcome())
    assert len(store.results([ROPE])) == 1
    assert [p.name for p in (tmp_path / "s/cells").iterdir()] == [ROPE.name]


def test_the_same_configuration_goes_on(tmp_path, store):
    Directory(store.path).add(ROPE.name, "w", outcome())
    store.close()
    again = Store(tmp_path / "s", json.loads(json.dumps(IDENTITY)))
    assert again.run["steps"] == 7
    assert len(again.results([ROPE])) == 1
    again.close()


def test_another_configuration_is_refused_by_name_and_nothing_is_touched(tmp_path, store):
    store.write_run({"steps": 7})
    store.close()
    before = {p: p.read_bytes() for p in (tmp_path / "s").rglob("*") if p.is_file()}
    with pytest.raises(ValueError, match=r"made by another configuration: --train-len was 8 and is now 16\."):
        Store(tmp_path / "s", IDENTITY | {"train_len": 16})
    assert {p: p.read_bytes() for p in (tmp_path / "s").rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("content", [b"not json", b"[]", b'{"schema": 99}', b"\xff\xfe"])
def test_a_foreign_run_json_is_refused(tmp_path, content):
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(ValueError, match="not the record of a study that this version can resume"):
        Store(tmp_path, IDENTITY)
    assert (tmp_path / "run.json").read_bytes() == content


def test_a_foreign_directory_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match=r"holds thesis\.tex but no run\.json"):
        Store(tmp_path, IDENTITY)
    assert files(tmp_path) == ["thesis.tex"]


def test_a_path_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="cannot write to --out .*: Not a directory"):
        Store(tmp_path / "file", IDENTITY)
    with pytest.raises(ValueError, match="cannot write to --out .*: Not a directory"):
        Store(tmp_path / "file" / "deeper", IDENTITY)


def test_two_studies_cannot_share_a_directory(tmp_path, store):
    with pytest.raises(ValueError, match="another study is writing to"):
        Store(tmp_path / "s", IDENTITY)
    assert store.path.exists()


def test_what_was_made_for_nothing_is_removed(tmp_path, store):
    store.abandon()
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    "content", [b"{", b"", b"[1]", b"\xff", b'{"encoding": "alibi"}', outcome(NOPE)["result.json"]]
)
def test_a_result_that_is_broken_or_of_another_cell_counts_as_missing(store, content):
    Directory(store.path).add(ROPE.name, "w", outcome() | {"result.json": content})
    assert store.results([ROPE]) == []


def test_hidden_files_of_others_are_neither_ours_nor_touched(tmp_path):
    foreign = {"a": "cells/.git/objects", "b": "cells/.cache", "c": ".lock"}
    for name, file in foreign.items():
        path = tmp_path / name / file
        path.parent.mkdir(parents=True)
        path.write_text("precious")
        with pytest.raises(ValueError, match="no run.json"):
            Store(tmp_path / name, IDENTITY)
        assert path.read_text() == "precious"


def test_a_study_that_ended_before_its_first_cell_can_begin_again(tmp_path):
    for left in ("", "timing"):  # killed before its first record, and while it timed
        store = Store(tmp_path / "s", IDENTITY)
        if left:
            store.write_run({"config": {}, "status": "timing"})
        else:
            (tmp_path / "s/.run.json.77.tmp").write_text('{"ste')
        store.close()
        again = Store(tmp_path / "s", IDENTITY | {"train_len": 16})
        again.close()
        assert again.run == {}


def test_a_foreign_temporary_file_is_not_taken_for_ours(tmp_path):
    (tmp_path / "run.json.tmp").write_text("precious")
    with pytest.raises(ValueError, match=r"holds run\.json\.tmp"):
        Store(tmp_path, IDENTITY)
    assert (tmp_path / "run.json.tmp").read_text() == "precious"
