import json
import re
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from posenc.study.store import Store, cell_name, write_cell

IDENTITY = {"train_len": 8, "seeds": [0, 1]}


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "s", IDENTITY)
    yield store
    store.close()


def outcome(encoding="rope", seed=0):
    result = {
        "encoding": encoding, "seed": seed, "steps": 3, "step_ms": 1.5, "peak_mib": None, "parameters": 9,
        "position_parameters": 0, "undertrained": False,
        "bits_by_length": {"8": 2.5, "16": 2.75}, "bits_by_length_stderr": {"8": 0.1, "16": 0.2},
    }  # fmt: skip
    return SimpleNamespace(model=torch.nn.Linear(2, 2), metrics=[{"step": 1, "bits": 3.0}], result=result)


def files(path):
    return sorted(p.relative_to(path).as_posix() for p in path.rglob("*"))


def test_a_cell_appears_whole_and_is_read_back(tmp_path, store):
    made = outcome()
    write_cell(store.cell_path("rope", 0), made)
    assert files(tmp_path / "s" / "cells") == [
        "rope-s0", "rope-s0/metrics.jsonl", "rope-s0/model.safetensors", "rope-s0/result.json",
    ]  # fmt: skip
    assert store.results([("rope", 0), ("rope", 1)]) == [made.result]
    weights = load_file(tmp_path / "s/cells/rope-s0/model.safetensors")
    assert torch.equal(weights["weight"], made.model.weight)


def test_the_table_has_a_row_for_each_length(tmp_path, store):
    store.write_table([outcome().result])
    rows = (tmp_path / "s/results.csv").read_text().splitlines()
    assert rows[1] == "rope,0,8,2.5,0.1,3,1.5,,9,0,False"
    assert rows[2].startswith("rope,0,16,2.75,0.2")


def test_the_same_configuration_goes_on_and_clears_what_was_cut_off(tmp_path, store):
    store.write_run({"steps": 7, "status": "running"})
    write_cell(store.cell_path("rope", 0), outcome())
    (tmp_path / "s/cells/.alibi-s0-123").mkdir()
    store.close()
    again = Store(tmp_path / "s", json.loads(json.dumps(IDENTITY)))
    assert again.run["steps"] == 7
    assert len(again.results([("rope", 0)])) == 1
    again.close()
    assert not (tmp_path / "s/cells/.alibi-s0-123").exists()


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
    with pytest.raises(ValueError, match="not the record of a study that this version can continue"):
        Store(tmp_path, IDENTITY)
    assert (tmp_path / "run.json").read_bytes() == content


def test_a_foreign_directory_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match=r"holds thesis\.tex and no run\.json"):
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


def test_a_result_that_is_not_json_counts_as_missing(tmp_path, store):
    write_cell(store.cell_path("rope", 0), outcome())
    (store.cell_path("rope", 0) / "result.json").write_text("{")
    assert store.results([("rope", 0)]) == []


@pytest.mark.parametrize(
    ("encoding", "wanted"),
    [
        ("rope", r"rope-s1"),
        ("my.pe:MyPE", r"my\.pe_MyPE-\w{8}-s1"),
        ("../../x:Y", r"_\.\._x_Y-\w{8}-s1"),
        ("a/b:<C>", r"a_b__C_-\w{8}-s1"),
    ],
)
def test_cell_names_stay_inside_the_directory(encoding, wanted):
    assert re.fullmatch(wanted, cell_name(encoding, 1))


def test_two_names_never_share_a_cell():
    assert len({cell_name(name, 0) for name in ("a_B:C", "a:B_C", "a_B_C", "a.é:C", "a.è:C")}) == 5


def test_a_result_of_another_cell_counts_as_missing(tmp_path, store):
    write_cell(store.cell_path("rope", 0), outcome("alibi", 0))
    (store.cell_path("nope", 0)).mkdir()
    (store.cell_path("nope", 0) / "result.json").write_text("[1]")
    assert store.results([("rope", 0), ("nope", 0)]) == []


def test_hidden_files_of_others_are_neither_ours_nor_touched(tmp_path):
    foreign = {"a": "cells/.git/objects", "b": "cells/.cache", "c": ".lock"}
    for name, file in foreign.items():
        path = tmp_path / name / file
        path.parent.mkdir(parents=True)
        path.write_text("precious")
        with pytest.raises(ValueError, match="no run.json"):
            Store(tmp_path / name, IDENTITY)
        assert path.read_text() == "precious"


def test_a_study_that_ended_before_its_first_cell_can_begin_again(tmp_path, store):
    store.close()
    (tmp_path / "s/cells/.rope-s0-77").mkdir()
    again = Store(tmp_path / "s", IDENTITY | {"train_len": 16})
    again.close()
    assert again.run == {}


def test_a_study_killed_while_it_wrote_its_first_record_can_begin_again(tmp_path, store):
    store.close()
    (tmp_path / "s/run.json.tmp").write_text('{"ste')
    again = Store(tmp_path / "s", IDENTITY)
    again.close()
    assert again.run == {}


def test_a_foreign_temporary_file_is_not_taken_for_ours(tmp_path):
    (tmp_path / "run.json.tmp").write_text("precious")
    with pytest.raises(ValueError, match=r"holds run\.json\.tmp"):
        Store(tmp_path, IDENTITY)
    assert (tmp_path / "run.json.tmp").read_text() == "precious"
