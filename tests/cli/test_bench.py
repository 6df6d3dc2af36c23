"""`posenc bench` in processes of their own, at sizes that prove that it runs and measure nothing."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from posenc.cli import run

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "80", "NO_COLOR": "1"}
START = "import sys; sys.argv[0] = 'posenc'\n{code}\nfrom posenc.cli import main; main()"
SLOW = """
import time
from posenc import attention
class Slow(type(attention.BACKENDS["reference"])):
    def __init__(self):
        super().__init__()
        self.name = "slow"
    def rejects(self, call):
        return None
    def run(self, call):
        time.sleep(0.2)
        return super().run(call)
others = {**attention.BACKENDS}
attention.BACKENDS.clear()
attention.BACKENDS.update({"slow": Slow()} | others)
"""
QUICK = ("bench", "attend", "--quick", "--length", "64")


def bench(*arguments, code=""):
    command = [sys.executable, "-c", START.format(code=code), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=300)


@pytest.mark.slow
def test_the_json_has_its_schema():
    done = bench(*QUICK, "--only", "kerple.forward", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert list(report) == ["schema", "command", "machine", "options", "asked", "complete", "rows"]
    assert (report["schema"], report["command"], report["complete"], report["asked"]) == (3, "attend", True, 1)
    machine = report["machine"]
    assert machine["threads"] == 1
    assert all(isinstance(machine[key], str) for key in ("cpu", "vectors", "torch", "python", "platform", "allocator"))
    assert report["options"]["lengths"] == [64]
    [row] = report["rows"]
    assert (row["name"], row["length"], row["dtype"], row["mode"]) == ("kerple.forward", 64, "float32", "forward")
    plain, own = row["candidates"][:2]
    assert (plain["role"], own["role"]) == ("baseline", "posenc")
    for candidate in (plain, own):
        assert candidate["seconds"]["low"] <= candidate["seconds"]["median"] <= candidate["seconds"]["high"]
        assert candidate["rounds"] == 2
        if sys.platform == "linux":
            assert candidate["memory_mib"] >= 8 * 64 * 64 * 4 / 2**20 * 0.5  # the output at least, in whole pages
    assert plain["ratio"] == {"low": 1.0, "median": 1.0, "high": 1.0}


@pytest.mark.slow
def test_a_slow_candidate_is_seen_as_slow_and_told_in_a_table():
    done = bench(*QUICK, "--only", "kerple.decode", code=SLOW)
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.splitlines())) <= 80
    [plain] = [line.split() for line in done.stdout.splitlines() if line.startswith("  plain SDPA")]
    [own] = [line.split() for line in done.stdout.splitlines() if line.startswith("  posenc, auto: slow")]
    assert plain[4] == "1.00"
    assert own[4] == "ms"
    assert float(own[3]) >= 200
    assert float(own[5]) > 2


@pytest.mark.slow
def test_the_json_of_rotary_has_its_schema():
    done = bench("bench", "rotary", "--quick", "--only", "decode.half", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert list(report) == ["schema", "command", "machine", "options", "asked", "complete", "rows"]
    assert (report["schema"], report["command"], report["complete"], report["asked"]) == (3, "rotary", True, 1)
    assert {"numba", "transformers", "timm"} <= {*report["machine"]["versions"]}
    [row] = report["rows"]
    assert (row["name"], row["dtype"], row["kind"], row["goals"]) == ("decode.half", "float32", "rotary", [])
    assert (row["batch"], row["length"]) == (2, 1)
    found = {candidate["name"]: candidate for candidate in row["candidates"]}
    assert {"copy", "rotate_:blocked", "out:numba", "rotate:formula", "timm"} <= {*found}
    assert found["copy"]["ratio"] == {"low": 1.0, "median": 1.0, "high": 1.0}
    for name in ("copy", "rotate_:auto", "out:auto", "rotate:auto"):
        assert found[name]["skipped"] is None
        assert found[name]["seconds"]["low"] <= found[name]["seconds"]["median"] <= found[name]["seconds"]["high"]
        assert found[name]["rounds"] == 2


@pytest.mark.slow
def test_a_slow_rotation_is_seen_as_slow_and_told_in_a_table():
    slow = """
import time, posenc
quick = posenc.RoPE.rotate_
posenc.RoPE.rotate_ = lambda *given, **options: (time.sleep(0.2), quick(*given, **options))
"""
    done = bench("bench", "rotary", "--quick", "--only", "decode.half", "--dtype", "bfloat16", code=slow)
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "decode.half: 2 x 1 keys, bfloat16" in done.stdout
    lines = {line[2:32].strip(): line[32:].split() for line in done.stdout.splitlines() if line.startswith("  p")}
    assert float(lines["posenc in place, auto"][0]) >= 200
    assert lines["posenc in place, auto"][1] == "ms"
    assert float(lines["posenc in place, auto"][2]) > 100


@pytest.mark.slow
def test_rotary_can_be_measured_with_reused_pages():
    from posenc import memory

    done = bench("bench", "rotary", "--quick", "--only", "decode.half", "--reuse-pages", "--json")
    if memory.is_glibc():
        assert json.loads(done.stdout)["options"]["reuse_pages"] is True
    else:
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_what_cannot_be_set_is_said(monkeypatch, capsys):
    monkeypatch.setattr("posenc.memory.reuse_pages", lambda: False)
    assert run(["bench", "rotary", "--quick", "--reuse-pages"]) == 2
    assert "this process does not use glibc's malloc" in capsys.readouterr().err


@pytest.mark.slow
def test_explain_lists_every_backend_and_measures_nothing():
    from posenc import attention

    done = bench("bench", "attend", "--explain", "--only", "t5.*.4096.float32", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    rows = {row["name"]: row for row in json.loads(done.stdout)["rows"]}
    assert {"t5.forward", "t5.window", "t5.documents", "t5.train"} <= set(rows)
    for row in rows.values():
        assert row["candidates"] == []
        assert [v["backend"] for v in row["verdicts"]] == list(attention.BACKENDS)
        assert [v["verdict"] for v in row["verdicts"]].count("taken") == 1
    shown = bench("bench", "attend", "--explain", "--only", "t5.forward.4096.float32").stdout
    assert "taken" in shown
    assert "reference-float64" in shown
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to send")
@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize(
    ("command", "only", "row"), [("attend", "kerple.[fd]*", "kerple.forward"), ("rotary", "decode", "decode.half")]
)
def test_an_interrupt_prints_what_was_measured(command, only, row, as_json, tmp_path):
    """The second row waits until it is interrupted; the first is there already."""
    code = f"""
from posenc.bench import report
import pathlib, time
first = report.measure_row
def measure_row(row):
    if row.name == {row!r}:
        return first(row)
    pathlib.Path({str(tmp_path / "there")!r}).touch()
    time.sleep(60)
report.measure_row = measure_row
"""
    arguments = ["bench", command, "--quick", "--only", only, *(["--json"] if as_json else [])]
    process = subprocess.Popen(
        [sys.executable, "-c", START.format(code=code), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    give_up = time.monotonic() + 120
    while not (tmp_path / "there").exists() and process.poll() is None and time.monotonic() < give_up:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    said, complained = process.communicate(timeout=60)
    assert (process.returncode, complained) == (130, "")
    if as_json:
        report = json.loads(said)
        assert (report["complete"], report["asked"], len(report["rows"])) == (False, 2, 1)
    else:
        assert f"{row}: " in said
        assert said.endswith("\nInterrupted: 1 of 2 rows are above.\n")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("--length 4", "lengths are whole numbers from 16"),
        ("--length 1e3", "lengths are whole numbers from 16"),
        ("--length ,", "--length: got nothing between the commas"),
        ("--dtype float8", "must be one of float32, bfloat16, float16; got 'float8'"),
        ("--only nonsense", "no row matches 'nonsense'. The rows are alibi.forward"),
        ("--full", "No such option '--full'"),
        ("more", "unexpected extra argument"),
    ],
)
def test_wrong_use_is_one_line(capsys, wrong, said):
    assert run(["bench", "attend", *wrong.split()]) == 2
    complained = capsys.readouterr().err
    assert said in complained
    assert complained.count("\n") == 1


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("--length 4", "lengths are whole numbers from 16"),
        ("--dtype ,", "--dtype: got nothing between the commas"),
        ("--only nonsense", "no row matches 'nonsense'. The rows are long.half, long.interleaved"),
        ("--explain", "No such option '--explain'"),
    ],
)
def test_wrong_use_of_rotary_is_one_line(capsys, wrong, said):
    assert run(["bench", "rotary", *wrong.split()]) == 2
    complained = capsys.readouterr().err
    assert said in complained
    assert complained.count("\n") == 1


def test_help_needs_no_torch(capsys):
    for arguments in (("bench",), ("bench", "--help"), ("bench", "attend", "--help"), ("bench", "rotary", "--help")):
        done = bench(*arguments, code="sys.modules['torch'] = None; sys.modules['numpy'] = None")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("Usage: posenc bench")
        assert max(map(len, done.stdout.splitlines())) <= 80
    assert run(["bench", "nothing"]) == 2
    assert "No such command 'nothing'" in capsys.readouterr().err
