import json
import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from posenc.study import index
from study.directories import add, make, name_of, result, write

CELLS = [result("alibi"), result("rope", "text", values=(2.0, 3.0)), result("rope", seed=1), result("rope", seed=10)]


@pytest.fixture
def study(tmp_path):
    return make(tmp_path / "a study?#%", CELLS)


def query(study, sql):
    with closing(index.open_index(study)) as opened:
        return opened.execute(sql).fetchall()


def problems(study):
    return dict(query(study, "SELECT name, problem FROM files WHERE problem NOT NULL"))


def stamp(study):
    return (study / "index.sqlite").stat().st_ino


def test_the_results_are_those_of_the_directories(study):
    assert index.results(study) == [CELLS[0], *CELLS[2:], CELLS[1]]  # by encoding, task, size and seed


def test_the_file_is_read_without_this_package(study):
    index.results(study)
    with closing(sqlite3.connect(study / "index.sqlite")) as file:
        rows = file.execute("SELECT encoding, length, value FROM measures JOIN cells USING (name) WHERE measure='bits'")
        assert rows.fetchall() == [("rope", 64, 2.0), ("rope", 1024, 3.0)]
        (step,) = file.execute("SELECT DISTINCT json_extract(result, '$.step_ms') FROM cells").fetchone()
        assert step == 33.1


def test_probes_and_values_that_are_no_numbers(study):
    probe = {"flip_flop:sparse": {"exact_by_length": {"20": 0.25}, "right_by_length": {"20": float("nan")}}}
    add(study, result("t5", probes=probe))
    rows = query(study, "SELECT measure, value FROM measures WHERE name LIKE 't5%' AND measure LIKE 'flip%'")
    assert rows == [("flip_flop:sparse/exact", 0.25), ("flip_flop:sparse/right", None)]
    assert index.results(study)[-1]["probes"]["flip_flop:sparse"]["right_by_length"] == {"20": None}


def test_cells_of_earlier_studies_count_as_text(tmp_path):
    cell = {k: v for k, v in result(task="text").items() if k not in ("task", "size")}
    study = make(tmp_path / "s")
    add(study, cell, "rope-s0")
    assert query(study, "SELECT encoding, task, size, seed FROM cells") == [("rope", "text", "64x2x4", 0)]


def test_only_what_is_new_or_changed_is_read_again(study, monkeypatch):
    index.results(study)
    before = stamp(study)
    add(study, result("rope", seed=1, values=(0.25, 0.0), lines=7))
    add(study, result("t5"))
    read, reader = [], index.read_object
    monkeypatch.setattr(index, "read_object", lambda path: read.append(str(path)) or reader(path))
    found = {name_of(cell): cell for cell in index.results(study)}
    assert sorted(path.split("/")[-2] for path in read) == ["rope-copy-64x2x4-s1", "t5-copy-64x2x4-s0"]
    assert found["rope-copy-64x2x4-s1"]["lines"] == 7
    assert len(found) == 5
    assert query(study, "SELECT value FROM measures WHERE name = 'rope-copy-64x2x4-s1' AND measure = 'exact'") == [
        (0.25,),
        (0.0,),
    ]
    after = stamp(study)
    assert len(index.results(study)) == 5
    assert (len(read), stamp(study)) == (2, after)  # nothing changed, so nothing was read or written
    assert before != after


def test_rows_of_cells_that_are_gone_are_dropped(study):
    index.results(study)
    (study / "cells" / name_of(CELLS[0]) / "result.json").unlink()
    for table in ("files", "cells", "measures"):
        assert query(study, f"SELECT count(*) FROM {table} WHERE name LIKE 'alibi%'") == [(0,)]
    assert len(index.results(study)) == 3


BROKEN = {
    "empty": ("", "Expecting value"),
    "truncated": (json.dumps(result())[:60], "Unterminated|Expecting|delimiter"),
    "no UTF-8": (b"\xff\xfe\x00", "utf-8"),
    "a list": ("[1]", "not a JSON object"),
    "nested": ("[" * 200_000, "nested too deeply"),
    "foreign": ('{"name": "left-pad", "version": "1.3.0"}', "lacks the encoding, task, size or seed"),
    "no measures": (json.dumps({"encoding": "rope", "seed": 0}), "no measure by length"),
    "a seed of text": (json.dumps(result(seed="0")), "lacks the"),
    "a seed too large": (json.dumps(result(seed=2**63)), "lacks the"),
    "a length too large": (json.dumps(result(extra_by_length={str(2**63): 1.0})), "length out of range"),
    "a length of text": (json.dumps(result(exact_by_length={"long": 1.0})), "invalid literal"),
    "a value too large": (json.dumps(result(exact_by_length={"20": 10**400})), "Out of range"),
    "half a character": (json.dumps(result("\ud800")), "surrogates"),
    "a table of numbers": (json.dumps(result(exact_by_length=[1, 2])), "items"),
    "probes of text": (json.dumps(result(probes="none")), "items"),
    "a number past the largest": ('{"encoding": "rope", "seed": 0, "x": 1e999}', "Out of range"),
    "too large": (b" " * (16 * 2**20 + 1), "larger than 16 MiB"),
}


@pytest.mark.parametrize("content", BROKEN)
def test_a_file_that_holds_no_result_is_skipped_and_counted(study, content):
    text, reason = BROKEN[content]
    path = write(study / "cells" / "broken" / "result.json", text)
    assert len(index.results(study)) == 4
    ((name, problem),) = problems(study).items()
    assert name == "broken"
    assert re.search(reason, problem)
    path.write_text(json.dumps(result("t5")))  # it was half written, and is whole now
    assert len(index.results(study)) == 5
    assert problems(study) == {}


def test_what_is_no_cell_is_passed_over(study):
    (study / "cells" / "unfinished").mkdir()
    write(study / "cells" / "notes.txt", "my notes")
    write(study / "cells" / ".rope-s0-77" / "result.json", json.dumps(result("t5")))
    write(study / "cells" / os.fsdecode(b"\xff") / "result.json", json.dumps(result("t5")))
    os.symlink(study / "cells" / "around", study / "cells" / "around")
    os.makedirs(study / "cells" / "pipe")
    os.mkfifo(study / "cells" / "pipe" / "result.json")
    assert len(index.results(study)) == 4
    assert problems(study) == {}


def newer(path):
    with closing(sqlite3.connect(path)) as file:
        file.executescript("PRAGMA user_version = 99; UPDATE cells SET result = '{}'")


def emptied(path):
    with closing(sqlite3.connect(path)) as file:
        file.executescript("DROP TABLE measures")


def cut(path):
    os.truncate(path, path.stat().st_size // 2)


def torn(path):
    content = path.read_bytes()
    path.write_bytes(content[:4096] + bytes(len(content) - 4096))


SPOILT = {
    "deleted": os.unlink, "empty": lambda path: os.truncate(path, 0), "cut": cut, "torn": torn,
    "foreign": lambda path: path.write_bytes(b"years of work" * 999), "a newer version": newer, "a table less": emptied,
}  # fmt: skip


@pytest.mark.parametrize("how", SPOILT)
def test_an_index_that_cannot_be_used_is_made_anew(study, how):
    found = index.results(study)
    SPOILT[how](study / "index.sqlite")
    assert index.results(study) == found
    assert query(study, "SELECT count(*) FROM measures") == [(16,)]
    before = stamp(study)
    assert len(index.results(study)) == 4
    assert stamp(study) == before  # the new one is there and holds


def test_where_nothing_can_be_written_there_is_no_index(study, monkeypatch):
    def refuse(*_, **__):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(index, "write", refuse)
    assert len(index.results(study)) == 4
    assert not (study / "index.sqlite").exists()


def test_a_directory_in_the_index_place_is_left_alone(study):
    write(study / "index.sqlite" / "mine", "precious")
    assert len(index.results(study)) == 4
    assert (study / "index.sqlite" / "mine").read_text() == "precious"
    assert sorted(entry.name for entry in study.iterdir()) == ["cells", "index.sqlite", "run.json"]


HOLD = """
import sqlite3, sys
file = sqlite3.connect(sys.argv[1], isolation_level=None)
file.execute("BEGIN EXCLUSIVE")
file.execute("DELETE FROM cells")
print("held", flush=True)
sys.stdin.read()
"""


def test_another_process_that_locks_the_index_stops_nobody(study):
    index.results(study)
    command = [sys.executable, "-c", HOLD, study / "index.sqlite"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        add(study, result("t5"))
        assert len(index.results(study)) == 5
        assert len(index.results(study)) == 5
        holder.stdin.close()
    assert len(index.results(study)) == 5


READ = """
import sys, pathlib
from posenc.study.index import results
for turn in range(20):
    pathlib.Path(sys.argv[1], "index.sqlite").unlink(missing_ok=True) if turn % 3 == 0 else None
    assert len(results(sys.argv[1])) == 4, turn
"""


def test_several_processes_at_once(study):
    readers = [subprocess.Popen([sys.executable, "-c", READ, study], stderr=subprocess.PIPE) for _ in range(3)]
    assert [(reader.communicate()[1], reader.returncode) for reader in readers] == [(b"", 0)] * 3
    assert sorted(entry.name for entry in study.iterdir()) == ["cells", "index.sqlite", "run.json"]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda path: None, "is not a directory, so it is not a study"),
        (lambda path: path.write_text("x"), "is not a directory, so it is not a study"),
        (lambda path: path.mkdir(), "has neither run.json nor cells/, so it is not a study"),
    ],
)
def test_a_path_that_is_no_study_is_named(tmp_path, made, said):
    path = tmp_path / "thesis"
    made(path)
    with pytest.raises(ValueError, match=f"^study: {path} {said}. Give the --out of a study.$"):
        index.results(path)
    assert not (path / "index.sqlite").exists()


def test_a_path_that_cannot_be_read_is_named():
    with pytest.raises(ValueError, match=r"^study: cannot read .*: File name too long\. Give the --out"):
        index.results("x" * 5000)


def test_a_study_before_its_first_cell_has_no_results(tmp_path):
    study = tmp_path / "s"
    write(study / "run.json", '{"schema"')
    assert index.results(study) == []
