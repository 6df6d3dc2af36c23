"""The study as a process: started, interrupted, really killed, resumed."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from command_line import posenc

TESTS = Path(__file__).parents[1]
ONE_SEED = ["--train-len", "8", "--test-len", "8,16", "--seeds", "1"]
SMALL = ["--train-len", "8", "--test-len", "8,16", "--seeds", "2"]


def start(*arguments, cwd, **options):
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path, "COLUMNS": "200"}
    command = [sys.executable, "-m", "posenc", "study", *arguments]
    return subprocess.Popen(
        command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def finish(process, timeout=400):
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err


def wait_for(condition, seconds=240):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def workers_of(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid):
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


@pytest.fixture
def prose(tmp_path):
    from pydoc_data.topics import topics

    path = tmp_path / "prose.txt"
    path.write_text(topics["assignment"])
    return path


def test_a_small_study_writes_everything_and_repeats_nothing(tmp_path, prose):
    arguments = ["--text", str(prose), "--encodings", "nope,study.own:SquareRoot", *ONE_SEED, "--steps", "20"]
    code, out, err = finish(start(*arguments, "--out", "s", "--json", cwd=tmp_path))
    assert code == 0, err
    summary = json.loads(out)
    assert summary["status"] == "complete"
    assert len(summary["results"]) == 2
    assert "nope s0: " in err  # plain lines where there is no terminal
    study = tmp_path / "s"
    assert {p.name for p in study.iterdir()} == {
        "run.json", "report.html", "text", "index.sqlite", "results.csv", ".lock",
        "cells", "timings", "queue", "claims", "failed", "workers",
    }  # fmt: skip
    run = json.loads((study / "run.json").read_text())
    assert run["status"] == "complete"
    assert run["text"]["sha256"]
    assert run["config"]["steps"] == 20
    assert "--steps 20" in run["command"]
    lines = (study / "cells/nope-text-64x2x4-s0/metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["step"] == run["config"]["steps"]
    page = (study / "report.html").read_text()
    assert "study.own:SquareRoot" in page
    before = (study / "cells/nope-text-64x2x4-s0/result.json").stat().st_mtime_ns
    code, out, err = finish(start(*arguments, "--out", "s", cwd=tmp_path))
    assert code == 0, err
    assert "timing" not in out
    assert (study / "cells/nope-text-64x2x4-s0/result.json").stat().st_mtime_ns == before


@pytest.mark.slow
def test_a_budget_sets_the_steps(tmp_path, prose):
    arguments = ["--text", str(prose), "--encodings", "nope", *SMALL, "--budget", "40s", "--out", "s"]
    process = start(*arguments, cwd=tmp_path)
    run = tmp_path / "s/run.json"
    wait_for(lambda: run.exists() and json.loads(run.read_text())["status"] == "running")
    process.send_signal(signal.SIGINT)
    assert finish(process)[0] == 130
    assert json.loads((tmp_path / "s/run.json").read_text())["steps"] > 1


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="looks at processes as Linux shows them")
def test_kill_9_loses_only_the_cell_in_flight(tmp_path, prose):
    arguments = ["--text", str(prose), "--encodings", "nope,alibi,rope", *ONE_SEED, "--steps", "30", "--out", "s"]
    process, cells = start(*arguments, cwd=tmp_path), tmp_path / "s/cells"
    wait_for(lambda: cells.exists() and list(cells.glob("[a-z]*/result.json")))
    children = workers_of(process.pid)
    process.kill()
    assert finish(process)[0] == -signal.SIGKILL
    wait_for(lambda: not any(map(alive, children)), seconds=10)
    finished = {p: p.stat().st_mtime_ns for p in cells.glob("[a-z]*/result.json")}
    assert 1 <= len(finished) < 3
    assert json.loads((tmp_path / "s/run.json").read_text())["status"] == "running"
    steps = json.loads((tmp_path / "s/run.json").read_text())["steps"]
    code, out, err = finish(start(*arguments, cwd=tmp_path))
    assert code == 0, err
    assert f"{steps} steps a cell" in out
    assert f"{len(finished)} cell" in out
    assert {p: p.stat().st_mtime_ns for p in finished} == finished  # not trained again
    assert len(list(cells.glob("[a-z]*/model.safetensors"))) == 3
    assert list(cells.glob(".*")) == []


@pytest.mark.slow
def test_ctrl_c_writes_the_report(tmp_path, prose):
    arguments = ["--text", str(prose), "--encodings", "nope,alibi,rope", *ONE_SEED, "--steps", "150", "--out", "s"]
    process = start(*arguments, cwd=tmp_path, start_new_session=True)
    wait_for(lambda: list((tmp_path / "s/cells").glob("[a-z]*/result.json")))
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to every process of the group
    code, out, err = finish(process, timeout=60)
    assert code == 130
    assert "Traceback" not in out + err
    assert "the same command resumes" in out
    assert json.loads((tmp_path / "s/run.json").read_text())["status"] == "interrupted"
    assert "interrupted" in (tmp_path / "s/report.html").read_text().lower()


@pytest.mark.slow
def test_an_encoding_that_fails_or_dies_is_named_and_the_others_go_on(tmp_path, prose):
    names = "nope,study.own:Failing,study.own:Dying"
    arguments = ["--text", str(prose), "--encodings", names, *ONE_SEED, "--steps", "20", "--out", "s"]
    code, out, err = finish(start(*arguments, "--json", cwd=tmp_path))
    assert code == 1, err
    summary = json.loads(out)
    assert {r["encoding"] for r in summary["results"]} == {"nope"}
    problems = {p["encoding"]: p["message"] for p in summary["problems"]}
    assert "RuntimeError: out of <positions>" in problems["study.own:Failing"]
    assert "3 processes died of it" in problems["study.own:Dying"]
    assert "out of &lt;positions&gt;" in (tmp_path / "s/report.html").read_text()


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--encodings", "rpoe"], "did you mean 'rope'"),
        (["--text", "missing.txt"], "cannot read --text missing.txt"),
        (["--text", "empty.txt"], "the text is empty"),
        (["--text", "short.txt"], "the text is too short: 10 bytes"),
        (["--budget", "0"], "above zero"),
        (["--budget", "soon"], "soon"),
        (["--out", "thesis"], "holds thesis.tex and no run.json"),
        (["--out", "empty.txt"], "cannot write to --out empty.txt"),
        pytest.param(["--encodings", "nope", "--budget", "1s"], "too small for one step", marks=pytest.mark.slow),
    ],
)
def test_bad_input_gives_one_clear_line_and_exit_code_2(tmp_path, arguments, said):
    (tmp_path / "empty.txt").touch()
    (tmp_path / "short.txt").write_text("ten bytes.")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/thesis.tex").write_text("years of work")
    before = sorted(tmp_path.rglob("*"))
    done = posenc("study", *arguments, cwd=tmp_path, COLUMNS="200")
    assert done.returncode == 2, done.stderr
    assert said in " ".join(done.stderr.split())
    assert sorted(tmp_path.rglob("*")) == before
    assert done.stdout == "" or "timing the first steps" in done.stdout


def test_a_plan_is_printed_as_data_and_leaves_nothing_behind(tmp_path, prose):
    plan = ['encodings = ["nope", "rope"]', 'task = ["text", "copy"]', f'text = ["{prose}"]', "seeds = 1", "steps = 7"]
    (tmp_path / "plan.toml").write_text("\n".join([*plan, "[lengths.copy]", "train = [2, 3]", "test = [3, 6]"]))
    options = ["--plan", "plan.toml", "--train-len", "8", "--test-len", "8,16", "--seeds", "2", "--dry-run", "--json"]
    code, out, err = finish(start(*options, cwd=tmp_path))
    assert code == 0, err
    plan = json.loads(out)
    cells = {(c["encoding"], c["task"], c["size"], c["seed"]) for c in plan["cells"]}
    assert cells == {(e, t, "64x2x4", s) for e in ("nope", "rope") for t in ("text", "copy") for s in (0, 1)}
    assert {c["steps"] for c in plan["cells"]} == {7}
    assert 0 < max(c["seconds"] for c in plan["cells"]) <= plan["seconds"]
    assert {p.name for p in tmp_path.iterdir()} == {"plan.toml", "prose.txt"}


@pytest.mark.slow
def test_workers_that_anyone_starts_do_the_cells_of_a_plan(tmp_path, prose):
    arguments = ["--text", str(prose), "--encodings", "nope,alibi", "--task", "text,copy", *ONE_SEED, "--steps", "12"]
    code, out, err = finish(start(*arguments, "--workers", "0", "--out", "s", cwd=tmp_path))
    assert (code, "4 cells wait" in out) == (0, True), err
    assert json.loads(posenc("study", "status", "s", "--json", cwd=tmp_path).stdout)["waiting"] == 4
    workers = [start("worker", "s", cwd=tmp_path) for _ in range(2)]
    said = "".join(out for _, out, _ in map(finish, workers))
    assert said.count(" done") == 4
    code, out, err = finish(start("report", "s", cwd=tmp_path))
    assert (code, "4 of 4 cells are done, 0 failed" in out) == (0, True), err
    finish(start(*arguments, "--out", "t", cwd=tmp_path))
    rows = json.loads(posenc("study", "compare", "s", "t", "--json", cwd=tmp_path).stdout)["rows"]
    assert len(rows) == 8  # encodings, tasks, the trained and the longest length
    assert {row["mean"] for row in rows} == {0.0}


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ("encodings = [", "cannot read plan.toml"),
        ('encoding = ["rope"]', "contains encoding = ['rope']. A plan may contain: text (list)"),
        ("seeds = true", "contains seeds = True"),
        ('steps = 5\nbudget = "10s"', "contains both budget and steps"),
        ('task = ["copy"]\n[lengths.copy]\ntrain = [0]', "lengths.copy.train must list lengths of copy"),
        ('budget = "soon"', "must be a time above zero"),
    ],
)
def test_a_plan_that_cannot_be_followed_is_refused(tmp_path, plan, said):
    (tmp_path / "plan.toml").write_text(plan)
    done = posenc("study", "--plan", "plan.toml", cwd=tmp_path, COLUMNS="200")
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())
    assert [p.name for p in tmp_path.iterdir()] == ["plan.toml"]


@pytest.mark.slow
def test_the_command_in_the_record_repeats_a_study_with_lengths_of_its_own(tmp_path):
    plan = 'encodings = ["nope"]\ntask = ["copy@coupling"]\nsteps = 3\n'
    (tmp_path / "plan.toml").write_text(plan + '[lengths."copy@coupling"]\ntrain = [2]\ntest = [2, 5]\n')
    code, _, err = finish(start("--plan", "plan.toml", "--out", "s", cwd=tmp_path))
    assert code == 0, err
    program, study, *command = shlex.split(json.loads((tmp_path / "s/run.json").read_text())["command"])
    assert (program, study) == ("posenc", "study")
    code, _, err = finish(start(*command[:-1], "t", cwd=tmp_path))
    assert code == 0, err
    results = [
        json.loads((tmp_path / out / "cells/nope-copy@coupling-64x2x4-s1/result.json").read_text()) for out in "st"
    ]
    assert list(results[0]["exact_by_length"]) == ["2", "5"]
    assert results[0]["right_by_length"] == results[1]["right_by_length"]
