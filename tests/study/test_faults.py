"""A study's processes, really killed, stopped, starved of memory and of room; `test_queue` has the protocol."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from command_line import posenc
from posenc.study.engines import Local
from study import hands

TESTS = Path(__file__).parents[1]
TIMES = ("train_seconds", "test_seconds", "step_ms", "tokens_per_s", "peak_mib", "seconds", "cpu_s")
SIX = "nope,alibi,rope,t5,kerple,sinusoidal"
STEPS = 40
QUICK = {"queue.BEAT_S": 0.1, "queue.STALE_S": 1.0, "worker.RECLAIM_S": 0.2}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes as Linux shows them"),
]


def arguments(path, encodings=SIX):
    from pydoc_data.topics import topics

    path.parent.mkdir(exist_ok=True)
    prose = path.with_name("prose.txt")
    prose.write_text(topics["assignment"])
    small = ["--size", "16x1x2", "--train-len", "8", "--test-len", "8,16", "--seeds", "2", "--steps", str(STEPS)]
    return ["study", "--text", str(prose), "--encodings", encodings, *small, "--out", str(path)]


def fill(path, encodings=SIX):
    """Make a study, or go on with one, and leave its cells to workers."""
    done = posenc(*arguments(path, encodings), "--workers", "0")
    assert done.returncode == 0, done.stderr
    return path


def finish(path):
    fill(path)
    worker = hands.hire(hands.work, path)
    worker.join(120)
    assert worker.exitcode == 0
    done = posenc("study", "report", str(path))
    assert done.returncode == 0, done.stdout
    assert "12 of 12 cells are done, 0 failed" in done.stdout
    assert not [p for folder in ("queue", "claims", "failed", "workers") for p in (path / folder).iterdir()]


def seen(path):
    """Return what is in each cell, but for times and memory."""
    found = {}
    for cell in (path / "cells").iterdir():  # a directory that was left half written would be here too
        lines = [json.loads((cell / "result.json").read_text())]
        lines += map(json.loads, (cell / "metrics.jsonl").read_text().splitlines())
        measured = [{key: value for key, value in line.items() if key not in TIMES} for line in lines]
        found[cell.name] = measured, (cell / "model.safetensors").read_bytes()
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    path = tmp_path_factory.mktemp("undisturbed") / "s"
    finish(path)
    return seen(path)


def wait_for(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def start(*given):
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    command, environment = [sys.executable, "-m", "posenc", *given], os.environ | {"PYTHONPATH": path, "COLUMNS": "200"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_workers_killed_at_50_moments_lose_nothing(tmp_path, undisturbed):
    draw, kills, hits, n = random.Random(0), 0, 0, 0
    while kills < 50:
        n += 1
        path = fill(tmp_path / str(n) / "s")
        workers = [hands.hire(hands.work, path) for _ in range(3)]
        while kills < 50 and len(list(path.glob("cells/[a-z]*"))) < 12:
            time.sleep(draw.uniform(0.0, 0.4))
            chosen = draw.randrange(len(workers))
            hits += any(f"-{workers[chosen].pid}-" in p.name for p in (path / "claims").iterdir())
            workers[chosen].kill()
            workers[chosen].join()
            workers[chosen], kills = hands.hire(hands.work, path), kills + 1
        for worker in workers:
            worker.kill()
            worker.join()
        finish(path)
        assert seen(path) == undisturbed
    assert hits > 10


def test_a_study_killed_with_its_workers_and_one_more_goes_on(tmp_path, undisturbed):
    path, draw = tmp_path / "s", random.Random(1)
    given = [*arguments(path), "--workers", "2"]
    for _ in range(4):
        study = start(*given)
        assert "results in" in study.stdout.readline()  # it holds the directory
        again = posenc(*given)
        assert (again.returncode, "another study is writing to" in again.stderr) == (2, True)
        other = hands.hire(hands.work, path)
        time.sleep(draw.uniform(3.0, 9.0))
        study.kill()
        other.kill()
        study.communicate()
        other.join()
    study = start(*given)
    study.stdout.readline()
    hands.hire(hands.work, path).join()
    said = study.communicate(timeout=200)[0]
    assert study.returncode == 0, said
    assert seen(path) == undisturbed
    run = json.loads((path / "run.json").read_text())
    assert (run["status"], run["problems"]) == ("complete", [])


def test_a_worker_stopped_until_its_cell_is_taken_over_goes_on(tmp_path, undisturbed):
    path, log = fill(tmp_path / "s"), tmp_path / "log"
    slow = hands.hire(hands.work, path, QUICK, log)
    wait_for(lambda: list(path.glob("claims/*")))
    os.kill(slow.pid, signal.SIGSTOP)
    fast = hands.hire(hands.work, path, QUICK, log)
    wait_for(lambda: len(list(path.glob("cells/[a-z]*"))) == 12)
    os.kill(slow.pid, signal.SIGCONT)
    for worker in (slow, fast):
        worker.join(60)
        assert worker.exitcode == 0
    assert seen(path) == undisturbed
    assert "failed" not in log.read_text()
    finish(path)


@pytest.fixture
def small_disk(tmp_path):
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(path)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("cannot mount a small disk here")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def test_a_full_disk_ends_everything_with_a_sentence_and_leaves_nothing_half_written(small_disk, undisturbed, tmp_path):
    path, log = small_disk / "s", tmp_path / "log"
    fill(path)
    workers = [hands.hire(hands.work, path, {}, log) for _ in range(2)]
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 1
    assert "No space left on device; make room" in log.read_text()
    assert "Traceback" not in log.read_text()
    finished = seen(path)
    assert 0 < len(finished) < 12
    assert all(undisturbed[name] == found for name, found in finished.items())
    with suppress(OSError), (path / "ballast").open("ab", buffering=0) as ballast:
        while ballast.write(bytes(4096)):
            pass
    engine = Local(1)
    engine.start(path)
    with pytest.raises(RuntimeError, match="no space is left"):
        wait_for(engine.poll)
    engine.stop()
    finished = seen(path)
    for given in ([*arguments(path), "--workers", "0"], ["study", "report", str(path)]):
        done = posenc(*given)
        assert done.returncode == 2
        assert "What is finished stays; make room" in done.stderr
    json.loads((path / "run.json").read_text())  # the queue that went left room to write it again
    assert seen(path) == finished
    (path / "ballast").unlink()
    subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
    finish(path)
    assert seen(path) == undisturbed


def test_cells_that_raise_die_or_starve_are_named_and_the_others_finish(tmp_path):
    path = fill(tmp_path / "s", "nope,study.own:Failing,study.own:Dying,study.own:Starving")
    worker = hands.hire(hands.work, path)
    while worker.exitcode != 0:
        worker.join(60)
        assert worker.exitcode in (0, -signal.SIGKILL)
        if worker.exitcode:
            worker = hands.hire(hands.work, path)
    assert {p.name.partition("-")[0] for p in path.glob("cells/*")} == {"nope"}
    done = posenc("study", "report", str(path))
    assert done.returncode == 1
    assert "2 of 8 cells are done, 6 failed" in done.stdout
    messages = {p["encoding"]: p["message"] for p in json.loads((path / "run.json").read_text())["problems"]}
    assert "RuntimeError: out of <positions>" in messages["study.own:Failing"]
    assert "3 processes died of it, or were killed (out of memory?)" in messages["study.own:Dying"]
    assert "allocate memory" in messages["study.own:Starving"]
    page = (path / "report.html").read_text()
    assert all(f"{name}, text, seed {seed}" in page for name in messages for seed in (0, 1))


def test_a_budget_of_cells_that_all_fail_ends(tmp_path):
    given = [word for word in arguments(tmp_path / "s", "study.own:Failing") if word not in ("--steps", str(STEPS))]
    study = start(*given, "--budget", "60s", "--workers", "1")
    said = study.communicate(timeout=100)[0]
    assert study.returncode == 1, said
    assert "study.own:Failing failed: RuntimeError" in said


def test_workers_that_cannot_begin_end_the_study(tmp_path):
    path = fill(tmp_path / "s")
    (path / "text").write_text("of another study")
    engine = Local(1)
    engine.start(path)
    with pytest.raises(RuntimeError, match="end before they take a cell"):
        wait_for(engine.poll)
    engine.stop()
