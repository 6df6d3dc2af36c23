import io
import json
import os
import time

import pytest
from rich.console import Console

from posenc.study.config import Cell
from posenc.study.status import print_status, status
from study.directories import add, make, name_of, result, write

DONE, RUNNING, WAITING, FAILED, LOST = (
    result(encoding, task)
    for encoding, task in (
        ("rope", "text"), ("rope", "copy"), ("alibi", "text"), ("alibi", "copy"), ("t5", "copy@randomised"),
    )
)  # fmt: skip
PLAN = [
    {part: cell[part] for part in Cell._fields} | {"seconds": 10.0, "name": name_of(cell)}
    for cell in (DONE, RUNNING, WAITING, FAILED, LOST)
]


@pytest.fixture
def study(tmp_path):
    study = make(tmp_path / "s", status="running", elapsed_s=5.0, plan={"cells": PLAN, "seconds": 50.0, "workers": 2})
    add(study, DONE)
    write(study / "claims" / f"000001~0~{name_of(RUNNING)}~box-7", json.dumps(PLAN[1]))
    write(study / "workers" / "box-7.json", json.dumps({"job": name_of(RUNNING), "step": 75, "steps": 300}))
    write(study / "failed" / f"{name_of(FAILED)}.json", json.dumps(FAILED | {"message": "out of \x1b[31mmemory"}))
    write(study / "queue" / f"000002~0~{name_of(WAITING)}", json.dumps(PLAN[2]))
    now = time.time()
    os.utime(study / "run.json", (now - 100, now - 100))
    os.utime(study / "workers" / "box-7.json", (now - 40, now - 40))
    os.utime(study / "cells" / name_of(DONE) / "result.json", (now - 60, now - 60))
    return study


def printed(found):
    console = Console(file=io.StringIO(), width=100)
    print_status(found, console)
    return console.file.getvalue()


def test_every_cell_is_counted_once(study):
    found = status(study)
    assert [found["cells"], found["done"], len(found["running"]), found["waiting"], len(found["failed"])] == [
        5, 1, 1, 2, 1,
    ]  # fmt: skip
    assert found["matrix"] == {
        "text": {"rope": [1, 1], "alibi": [0, 1]},
        "copy": {"rope": [0, 1], "alibi": [0, 1]},
        "copy@randomised": {"t5": [0, 1]},
    }
    (claim,) = found["running"]
    assert (claim["encoding"], claim["task"], claim["worker"], claim["step"], claim["steps"]) == (
        "rope", "copy", "box-7", 75, 300,
    )  # fmt: skip
    assert claim["seen_s"] == pytest.approx(40, abs=5)
    assert found["gone_s"] == pytest.approx(5 + 100 - 40, abs=5)  # run.json's, and from it to the heartbeat
    assert found["left_s"] == pytest.approx((10 + 10 + 0.75 * 10) / 2, abs=0.06)
    assert json.loads(json.dumps(found)) == found


def test_what_is_printed(study):
    write(study / "cells" / "broken" / "result.json", "{")
    lines = printed(status(study)).splitlines()
    assert lines[0].startswith("running: 1 of 5 cells done, 1 running, 2 waiting, 1 failed; 1\xa0min\xa04")
    assert lines[0].endswith("elapsed, about 14\xa0s left")
    rows = [line.split() for line in lines[1:5]]
    assert rows == [["encoding", "text", "copy", "copy@randomised"], ["rope", "1/1", "0/1"], ["alibi", "0/1", "0/1"],
                    ["t5", "0/1"]]  # fmt: skip
    assert "rope copy 64x2x4 s0: step 75 of 300, worker box-7, heartbeat 40 s ago" in lines
    assert r"alibi copy 64x2x4 s0 failed: out of \x1b[31mmemory" in lines
    assert "cells whose result.json holds no result: 1" in lines


def test_a_finished_cell_is_neither_running_nor_failed(study):
    add(study, RUNNING)
    add(study, FAILED)
    found = status(study)
    assert (found["done"], found["running"], found["failed"], found["left_s"]) == (3, [], [], 10.0)


def test_a_heartbeat_of_another_job_says_no_step(study):
    write(study / "workers" / "box-7.json", json.dumps({"job": name_of(DONE), "step": 75, "steps": 300}))
    (claim,) = status(study)["running"]
    assert (claim["step"], claim["steps"]) == (None, None)
    (study / "workers" / "box-7.json").unlink()
    assert status(study)["running"][0]["seen_s"] is None
    assert "rope copy 64x2x4 s0: starting, worker box-7, no heartbeat" in printed(status(study))


def test_a_finished_study_keeps_its_time(tmp_path):
    study = make(tmp_path / "s", [DONE], status="complete", elapsed_s=5.0, plan={"cells": PLAN[:1], "workers": 2})
    os.utime(study / "run.json", (1, 1))
    found = status(study)
    assert (found["status"], found["gone_s"], found["left_s"]) == ("complete", 5.0, 0.0)


def test_a_study_without_a_plan_counts_the_cells_of_its_configuration(tmp_path):
    config = {"encodings": ["rope", "alibi"], "tasks": ["text", "copy"], "sizes": ["64x2x4"], "seeds": [0, 1]}
    found = status(make(tmp_path / "s", [DONE], status="waiting", config=config))
    assert (found["cells"], found["done"], found["waiting"], found["gone_s"], found["left_s"]) == (8, 1, 7, None, None)
    assert found["matrix"]["text"] == {"rope": [1, 2], "alibi": [0, 2]}


def test_a_study_of_an_earlier_version_is_one_of_text(tmp_path):
    problem = {"encoding": "t5", "seed": 1, "message": "died"}
    config = {"encodings": ["rope", "t5"], "seeds": [0, 1]}
    found = status(make(tmp_path / "s", [DONE], config=config, problems=[problem, "else", {"encoding": 5}]))
    assert (found["cells"], found["done"], found["waiting"]) == (4, 1, 2)
    assert found["failed"] == [{"encoding": "t5", "task": "text", "size": "64x2x4", "seed": 1, "message": "died"}]


HUGE = 10**400
ODD = [
    "", "{", "[]", "null", b"\xff", "[" * 100_000, '{"plan": []}', '{"plan": {"cells": 3}}',
    *map(json.dumps, (
        {"status": 7, "elapsed_s": "x", "problems": {}},
        {"plan": {"cells": [1, None, [], {}, {"encoding": []}], "workers": "two"}},
        {"plan": {"cells": [PLAN[0] | {"name": [], "seconds": {}}], "workers": 0}},
        {"plan": {"cells": [PLAN[1] | {"seconds": HUGE}], "workers": HUGE}},
        {"job": name_of(RUNNING), "step": 1, "steps": 0},
        {"job": name_of(RUNNING), "step": HUGE, "steps": 1},
        {"job": name_of(RUNNING), "step": -5, "steps": 10**18},
        {"job": [], "step": "a", "steps": []},
        {"config": {"encodings": [f"e{i}" for i in range(2000)], "seeds": list(range(2000))}},
        {"config": {"encodings": "rope", "seeds": [None, {}, [], "0"], "sizes": [3]}},
    )),
]  # fmt: skip


@pytest.mark.parametrize("odd", ODD, ids=range(len(ODD)))
def test_half_written_and_foreign_files_are_no_errors(study, odd):
    write(study / "workers" / "box-7.json", odd)
    write(study / "claims" / "README", odd)
    write(study / "claims" / "000003~0~else~w" / "inside", "mine")
    write(study / "failed" / "else.json", odd)
    found = status(study)
    assert [found["done"], found["waiting"], len(found["failed"])] == [1, 2, 1]
    assert [claim["worker"] for claim in found["running"]] == ["box-7"]
    printed(found)
    write(study / "run.json", odd)
    printed(status(study))
