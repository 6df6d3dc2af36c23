"""The protocol of a study's queue: what stands in the directory after each way to go wrong."""

import io
import json
import os
import time
from itertools import count

import pytest
from rich.console import Console

from posenc.study import queue
from posenc.study.board import Board
from posenc.study.config import Cell, Config
from posenc.study.queue import Heartbeat, Queue
from posenc.study.schedule import Schedule
from posenc.study.store import Store
from posenc.study.worker import Directory
from study import hands

DAY = 86400
NAMES = ("nope", "failing", "rope")
CELLS = [Cell(name, "copy", "16x1x2", 0) for name in NAMES]
JOBS = {cell.name: cell._asdict() | {"steps": 3} for cell in CELLS}
GOOD, FAILING = CELLS[0].name, CELLS[1].name
DONE = {f"cells/{cell.name}/result.json" for cell in CELLS if cell.encoding != "failing"} | {f"failed/{FAILING}.json"}
GONE = json.dumps({"machine": queue.machine(), "process": "0", "pid": 0})  # the heartbeat of a process that ended


@pytest.fixture
def path(tmp_path):
    return make(tmp_path / "s")


def make(path):
    store = Store(path, {})
    store.write_run({"config": Config(encodings=NAMES, tasks=("copy",), sizes=("16x1x2",)).as_dict(), "text": None})
    store.close()
    for order, (name, job) in enumerate(JOBS.items()):
        Queue(path).put(order, name, job)
    return path


def left(path):
    """Every file, but for what was being written when its process was killed."""
    files = (p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file())
    return {file for file in files if file not in (".lock", "run.json") and not file.endswith(".tmp")}


def finish(path):
    process = hands.hire(hands.fake, path)
    process.join(60)
    assert process.exitcode == 0
    return left(path)


@pytest.mark.slow
def test_a_worker_may_die_before_each_touch_of_a_file(tmp_path):
    for n in count(1):
        path = make(tmp_path / str(n))
        process = hands.hire(hands.fake, path, n)
        process.join(60)
        assert finish(path) == DONE, f"died before touch {n}"
        if process.exitcode == 0:
            break
    assert n > 20  # three jobs with a heartbeat each: the table is not empty


@pytest.mark.slow
@pytest.mark.parametrize("deaths", [0, queue.MOST_DEATHS - 1])
def test_whoever_looks_for_the_dead_may_die_before_each_touch_of_a_file(tmp_path, deaths):
    for n in count(1):
        path = make(tmp_path / str(n))
        for entry in (path / "queue").iterdir():  # nothing is known of the worker that took these
            entry.rename(path / "claims" / (entry.name.replace("~0~", f"~{deaths}~") + "~lost"))
        aside = path / "cells" / f".{GOOD}~lost"
        aside.mkdir()
        (path / "workers/lost.json").write_text(GONE)
        process = hands.hire(hands.reclaim, path, n)
        process.join(60)
        for name in JOBS:
            places = [p for p in left(path) if name in p]
            assert places, f"{name} is lost after touch {n}"
        assert finish(path) == (DONE if deaths == 0 else {f"failed/{name}.json" for name in JOBS})
        assert not aside.exists()
        if process.exitcode == 0:
            break
    assert n > 5


BROKEN = ("", "{", "[1]", "\x00" * 9, '"text"')
ODD_NAMES = ("README", ".000000~0~x.77.tmp", "~~", "a~b~c", "0~0~c~d~e", "0~²~x", "000000~0~.x", "0~0", "x~0~y~w")


@pytest.mark.parametrize("content", BROKEN)
def test_a_job_that_cannot_be_read_is_named_and_the_others_go_on(path, content):
    (path / "queue" / f"000000~0~{GOOD}").write_text(content)
    assert finish(path) == DONE - {f"cells/{GOOD}/result.json"} | {f"failed/{GOOD}.json"}
    assert GOOD in json.loads((path / f"failed/{GOOD}.json").read_text())["message"]


@pytest.mark.parametrize("content", BROKEN)
def test_a_claim_that_cannot_be_read_stops_nothing(path, content):
    (path / "claims" / f"000000~{queue.MOST_DEATHS - 1}~{GOOD}~lost").write_text(content)
    (path / "workers/lost.json").write_text(GONE)
    assert finish(path) >= DONE


@pytest.mark.parametrize("folder", ["queue", "claims", "failed", "workers", "cells", "timings"])
def test_names_of_others_are_left_alone(path, folder):
    for name in ODD_NAMES:
        (path / folder / name).write_text("precious")
    assert finish(path) == DONE | {f"{folder}/{name}" for name in ODD_NAMES if not name.endswith(".tmp")}
    (path / folder / "a folder").mkdir()
    Queue(path).clear(failed=True)


@pytest.mark.parametrize("tenth", range(10))
def test_a_result_that_was_cut_off_is_made_again(path, tenth):
    whole = json.dumps(JOBS[GOOD], indent=1)
    (path / "cells" / GOOD).mkdir()
    (path / "cells" / GOOD / "result.json").write_text(whole[: len(whole) * tenth // 10])
    (path / "cells" / GOOD / "metrics.jsonl").write_text('{"step": 1}\n{"st')
    assert finish(path) == DONE
    assert Directory(path).is_done(GOOD)


@pytest.mark.parametrize("tenth", range(10))
def test_a_record_that_was_cut_off_is_refused_with_a_sentence(path, tenth):
    whole = (path / "run.json").read_text()
    (path / "run.json").write_text(whole[: len(whole) * tenth // 10])
    for reader in (lambda: Store(path, {}), lambda: Directory(path)):
        with pytest.raises(ValueError, match="^study: "):
            reader()


def test_a_text_that_was_cut_off_is_refused(path):
    run = json.loads((path / "run.json").read_text())
    (path / "text").write_text("half of it")
    (path / "run.json").write_text(json.dumps(run | {"text": {"name": "t", "sha256": "0" * 64}}))
    with pytest.raises(ValueError, match="text is not the text of this study"):
        _ = Directory(path).text


def test_a_study_that_ended_between_its_text_and_its_record_can_begin(tmp_path):
    Store(tmp_path / "s", {}).close()
    for name in ("text", ".text.77.tmp", ".report.html.77.tmp"):
        (tmp_path / "s" / name).write_text("some")
    Store(tmp_path / "s", {"other": 1}).close()
    assert not list((tmp_path / "s").glob(".*.tmp"))


@pytest.mark.parametrize("jump", [-DAY, DAY])
def test_no_clock_of_the_wall_makes_a_worker_dead_or_alive(path, monkeypatch, jump):
    live, gone, looker = (Queue(path, name) for name in ("live", "gone", "looker"))
    heart = Heartbeat(live)
    taken, lost = live.claim(), gone.claim()
    beat = json.loads(heart.file.read_text())
    (path / "workers/gone.json").write_text(json.dumps(beat | {"worker": "gone", "process": "0"}))
    monkeypatch.setattr(time, "time", lambda now=time.time: now() + jump)
    for file in path.rglob("*"):
        os.utime(file, (time.time(), time.time()))
    assert looker.reclaim() == 1
    heart.stop()
    assert taken.file.exists()
    assert not lost.file.exists()


def test_whoever_was_stopped_itself_takes_no_worker_for_dead(path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    far, looker = Queue(path, "far"), Queue(path, "looker")
    far.claim()
    (path / "workers/far.json").write_text('{"machine": "another", "beat": 1}')
    for pause, expected in ((0, 0), (DAY, 0), (1, 0), *[(1, 0)] * 50, *[(1, None)] * 10, (1, 0)):
        now[0] += pause
        found = looker.reclaim()
        assert expected in (None, found)
    assert looker.claimed() == {}


def test_a_result_outweighs_a_failure_and_a_worker_that_lost_its_job_fails_nothing(path):
    slow, fast = Queue(path, "slow"), Queue(path, "fast")
    lost = slow.claim()
    lost.file.rename(path / "queue" / f"000000~1~{GOOD}")
    slow.fail(lost, "its folder was gone")
    assert not list(path.glob("failed/*"))
    again = fast.claim()
    assert (again.name, again.deaths) == (GOOD, 1)
    fast.fail(again, "too many died")
    slow.done(lost)
    assert not list(path.glob("failed/*"))


def test_death_after_the_result_is_no_failure(path):
    Directory(path).add(GOOD, "w", {"result.json": json.dumps(JOBS[GOOD]).encode()})
    (path / "queue" / f"000000~0~{GOOD}").rename(path / "claims" / f"000000~{queue.MOST_DEATHS - 1}~{GOOD}~lost")
    (path / "workers/lost.json").write_text(GONE)
    assert finish(path) == DONE


class Careless:
    """An engine whose worker is killed after each timing and before it lets go of the job."""

    workers = 1

    def start(self, path):
        self.path = path

    def poll(self):
        queue = Queue(self.path, "lost")
        (self.path / "workers/lost.json").write_text(GONE)
        while claim := queue.claim():
            if claim.job["steps"]:
                queue.give_back(claim)
                finish(self.path)
                return
            if claim.job["encoding"] == "failing":
                queue.fail(claim, "out of positions")
            else:
                Directory(self.path).add(claim.name, "w", hands.Fake().do(claim.job, print))

    def stop(self):
        pass


def test_timings_whose_workers_are_not_done_with_them_stop_no_cell(path):
    config = Config(encodings=NAMES, tasks=("copy",), sizes=("16x1x2",), seeds=(0, 1))
    store = Store(path, {})
    with Board(config, Console(file=io.StringIO())) as board:
        schedule = Schedule(config, store, board, Careless(), 3)
        schedule.time_first_steps(0.0)
        schedule.run()
    store.close()
    assert sorted((r["encoding"], r["seed"]) for r in schedule.results) == [
        (name, seed) for name in ("nope", "rope") for seed in (0, 1)
    ]
    assert [(p["encoding"], p["seed"]) for p in schedule.problems] == [("failing", 0), ("failing", 1)]
    assert list(path.glob("failed/*.json"))  # `posenc study report` reads it there
