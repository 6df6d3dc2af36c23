"""Checks in a child process, with real processes: whatever the code does, what comes out is a finding."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from posenc.verify import child
from posenc.verify.child import clock, outcome_of
from posenc.verify.child.inside import plain
from posenc.verify.child.target import parse
from posenc.verify.report import Cause, Report

# A check that calls the subject once by the guard, in place of the families': here the process is what is tested.
CHECK = """
import posenc.verify
from posenc.verify.guard import SubjectError, call
from posenc.verify.report import Cause, Report
def _check(subject, *, convention, spec):
    try:
        found = call(subject, 4, what="slopes(4)")
    except SubjectError as error:
        return Report("fail", convention, (error.cause,))
    return Report("pass", convention, measured={"found": found, "spec": spec})
posenc.verify.check = _check
STYLE, SPEC = "slopes_fn", {"encoding": "alibi", "heads": 4}
"""
SOUND = CHECK + "def build(): return lambda n: [0.25, 0.0625, 0.015625, 0.00390625][:n]\n"


def run(folder, code, name="subject.py", **options):
    path = folder / name
    path.write_text(code)
    return child.run(parse(str(path)), **options)


def only_cause(outcome):
    assert outcome.report is not None, outcome.refused
    (cause,) = outcome.report.causes
    return cause


def is_alive(pid):
    """Return whether a process runs; one whose parent has not waited for it counts as dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


def test_a_report_comes_back_with_what_was_measured_and_printed(tmp_path):
    code = "import os, sys\nprint(os.environ['CUDA_VISIBLE_DEVICES'] == ''); print('err', file=sys.stderr)\n"
    found = run(tmp_path, SOUND + code, spec={"encoding": "t5"})  # the option outweighs what the file says
    assert (found.report.status, found.report.convention) == ("pass", "slopes_fn")
    assert found.report.measured["found"] == [0.25, 0.0625, 0.015625, 0.00390625]
    assert found.report.measured["spec"] == {"encoding": "t5"}
    assert found.printed.split() == ["True", "err"]
    assert child.MARK not in os.environ
    assert not list(tmp_path.glob("__pycache__"))


@pytest.mark.slow
def test_fake_answers_are_no_answers(tmp_path):
    """On stdout and on every open file, in the form of ours, with another token."""
    failed = Report("fail", "slopes_fn", (Cause("fake.code", "fake", 1.0),))
    fake = json.dumps({"token": "0" * 32, "report": plain(failed.to_dict())})
    code = f"""
import os, sys
line = {fake!r}
print(line); print(b"\\xff\\x00garbage"); sys.stderr.write(line * 3000)
for fd in range(3, 64):
    try:
        os.write(fd, b"garbage " + line.encode() + b"\\nno end of line")
    except OSError:
        pass
"""
    found = run(tmp_path, code + SOUND)
    assert found.report.status == "pass"
    assert len(found.printed) < 20_000
    assert found.printed.endswith("bytes more)")


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("code", "expected", "said"),
    [
        ("raise KeyError('here')", "subject.import_fails", "its import raised KeyError: 'here' (subject.py:1)"),
        ("def build(:", "subject.import_fails", "SyntaxError"),
        ("import no_such_module", "subject.import_fails", "No module named 'no_such_module'"),
        ("from . import sibling", "subject.import_fails", "relative import"),
        ("raise SystemExit(0)", "subject.exits", "its import raised SystemExit(0)"),
        ("import os; os._exit(0)", "subject.exits", "its import ended the process with exit code 0"),
        ("raise KeyboardInterrupt", "subject.exits", "KeyboardInterrupt"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "subject.crashes", "SIGSEGV"),
        ("import os; os.closerange(3, 99); os.abort()", "subject.crashes", "SIGABRT"),
        ("input('password: ')\n", "subject.import_fails", "EOFError"),
        ("import torch; torch.empty(10**11, dtype=torch.int8)", "subject.memory", "100000000000 bytes"),
        ("def build(): return [bytes(1 << 30) for _ in range(100)]", "subject.memory", "build() wanted more memory"),
        ("def build():\n  raise type('E', (Exception,), {'__str__': 0})", "subject.build_fails", "cannot be printed"),
        ("STYLE = 'slopes_fn'\ndef build(): return 5", "subject.kind", "build() returned a int"),
        (CHECK + "def build(): return lambda n: 1 / 0", "subject.raises", "slopes(4) raised ZeroDivisionError"),
        (CHECK + "import torch\ndef build(): return lambda n: torch.tensor([torch.nan])", "subject.not_finite", "NaN"),
        (CHECK + "def build(): return lambda n: exit(0)", "subject.raises", "SystemExit"),
        (CHECK + "def build(): return lambda n: __import__('os')._exit(7)", "subject.exits", "exit code 7"),
    ],
)
def test_what_goes_wrong_is_a_finding(tmp_path, code, expected, said):
    cause = only_cause(run(tmp_path, code))
    assert (cause.code, said in cause.message) == (expected, True), cause.message
    assert cause.fix or expected in ("subject.raises", "subject.not_finite")  # to which a check adds it


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("code", "doing"),
    [
        ("while True: pass", "its import"),
        ("import os\nos.closerange(0, 99)\nwhile True: pass", "its import"),
        ("import os\nif os.fork(): os.wait()\nwhile True: pass", "its import"),  # a child of it works
        (CHECK + "def build(): return lambda n: [1 for _ in iter(int, 1)]", "the check"),
    ],
)
def test_work_without_end_is_a_finding(tmp_path, code, doing):
    cause = only_cause(run(tmp_path, code, time_limit=1.0))
    assert cause.code == "subject.hangs"
    assert cause.message.startswith(f"{doing} did not finish within 1 seconds of processor time")
    assert cause.evidence == 1.0


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("code", "doing"),
    [
        ("import os, time\nos.closerange(0, 99)\ntime.sleep(99)", "its import"),
        ("def build():\n  import threading; threading.Event().wait()", "build()"),
        (CHECK + "def build(): return lambda n: __import__('time').sleep(99)", "the check"),
        ("def build(): return lambda a, b: __import__('time').sleep(99)", "a trial call to find its convention"),
    ],
)
def test_waiting_without_end_is_no_finding(tmp_path, code, doing):
    found = run(tmp_path, code, time_limit=1.0).report
    assert (found.status, found.causes) == ("cannot_tell", ())
    assert found.because.startswith(f"{doing} did not finish in ")
    assert "otherwise waited" in found.because


def test_a_busy_machine_is_no_fault(monkeypatch):
    """29 seconds of work in 400 seconds are below the limit; 121 are not; a pause of 121 seconds is waiting."""
    now, worked = [0.0], [5.0]
    monkeypatch.setattr(clock.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(clock, "_processor_time", lambda session: worked[0])
    one = clock.Clock(1, seconds=120, idle=120)

    def late(seconds, share):
        for _ in range(seconds):
            now[0], worked[0] = now[0] + 1, worked[0] + share
            one.tick()
        return one.late

    assert late(400, 29 / 400) == ""
    assert late(90, 1.0) == ""
    assert late(2, 1.0) == "works"
    one = clock.Clock(1, seconds=120, idle=120)
    assert late(30, 4.0) == ""  # four threads
    assert (late(119, 0.0), late(3, 0.0)) == ("", "waits")
    one = clock.Clock(1, seconds=120, idle=120)
    assert (late(1199, 0.05), late(2, 0.05)) == ("", "waits")


@pytest.mark.slow
def test_what_it_leaves_running_does_not_keep_us(tmp_path):
    """A thread and an exit handler that never end: the answer is there, so nothing is waited for."""
    code = """
import atexit, threading, time
atexit.register(time.sleep, 9999)
threading.Thread(target=time.sleep, args=(9999,)).start()
"""
    assert run(tmp_path, code + SOUND).report.status == "pass"


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="only Linux tells what a process started")
def test_every_process_that_it_starts_is_ended(tmp_path):
    """One in its group, one in a session of its own that holds the pipes, and one that comes back from build()."""
    code = """
import os, sys, time
here = os.path.dirname(__file__)
for apart in (False, True):
    if os.fork() == 0:
        if apart:
            os.setsid()
        open(os.path.join(here, f"pid{apart}"), "w").write(str(os.getpid()))
        time.sleep(300)
while len([name for name in os.listdir(here) if name.startswith("pid")]) < 2:
    time.sleep(0.01)
"""
    twice = "def build():\n  os.fork()\n  return lambda n: [0.25] * n\n"
    found = run(tmp_path, code + CHECK + twice)
    assert found.report.status == "pass"
    time.sleep(0.2)
    pids = [int(path.read_text()) for path in tmp_path.glob("pid*")]
    assert len(pids) == 2
    assert [pid for pid in pids if is_alive(pid)] == []


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_the_child_ends_with_its_parent(tmp_path):
    path = tmp_path / "subject.py"
    path.write_text(
        "import os, time\nopen(__file__ + '.pid', 'w').write(str(os.getpid()))\n"
        "while True:\n  try: time.sleep(300)\n  except BaseException: pass\n"
    )
    code = f"from posenc.verify.child import run, target; run(target.parse({str(path)!r}))"
    parent = subprocess.Popen([sys.executable, "-c", code])
    written, until = Path(f"{path}.pid"), time.monotonic() + 60
    while not (written.exists() and written.read_text()) and time.monotonic() < until:
        time.sleep(0.05)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    pid = int(written.read_text())
    while is_alive(pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert not is_alive(pid)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("x = 1", "has no build. Define build()"),
        ("def build(n): pass", "build must need no arguments; it needs n"),
        ("STYLE = 'ropefn'\ndef build(): pass", "did you mean 'rope_fn'"),
        ("SPEC = 5\ndef build(): pass", "SPEC must be a dict; got int"),
        ("SPEC = {'base': float('nan')}\ndef build(): pass", "numbers must be finite"),
        ("def build(): return 5", "no convention fits what build() returned, a int."),
        ("def build(): return lambda q, k: (q, k)", "2 conventions fit"),
    ],
)
def test_wrong_use_is_refused_and_is_no_finding(tmp_path, code, said):
    found = run(tmp_path, code)
    assert found.report is None
    assert said in found.refused
    assert "\n" not in found.refused


@pytest.mark.slow
def test_a_failing_check_is_not_the_users_fault(tmp_path):
    code = (
        SOUND + "posenc.verify.check = __import__('functools').partial(posenc.verify.guard.shaped)\n"
    )  # takes no spec
    found = run(tmp_path, code).report
    assert found.status == "cannot_tell"
    assert "the check itself failed with TypeError" in found.because


@pytest.mark.slow
def test_modules_next_to_us_and_files_next_to_the_subject_are_found(tmp_path, monkeypatch):
    package = tmp_path / "shapes_of_mine"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "inner.py").write_text("from .other import slopes")
    (package / "other.py").write_text(
        CHECK + "def slopes(n_heads): return [0.25] * n_heads\nclass Needs:\n  def __init__(self, dim): pass"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, ""])
    found = child.run(parse("shapes_of_mine.inner:slopes"), spec={"encoding": "alibi"})
    assert (found.report.status, found.report.convention) == ("pass", "slopes_fn")
    assert run(package, CHECK + "from other import slopes\ndef build(): return slopes").report.status == "pass"
    refused = child.run(parse("shapes_of_mine.other:Needs"))
    assert "is a class that needs dim" in refused.refused
    assert "has no nothing" in child.run(parse("shapes_of_mine.other:nothing")).refused
    assert "there is no module 'shapes_of_yours'" in child.run(parse("shapes_of_yours:x")).refused


@pytest.mark.parametrize(
    "target", ["", "nowhere.py", "mine", "a-b:c", "mine:", "mine:a b", ":x", "no\0file.py", "/dev/null"]
)
def test_a_target_that_is_none_is_refused_before_anything_runs(target):
    with pytest.raises(ValueError, match="^verify: "):
        parse(target)


def test_a_report_survives_the_way_as_json():
    causes = (Cause("a.b.c", "said", float("inf"), {"shape": (2, 3)}, "mend", ("d.e",)),)
    sent = Report("fail", "rope_fn", causes, "because", ("x@y",), {"n": 10**400})
    got = outcome_of({"report": json.loads(json.dumps(plain(sent.to_dict()), allow_nan=False))}, "check").report
    assert got.causes[0].evidence != got.causes[0].evidence
    assert got.causes[0].smallest_case == {"shape": [2, 3]}
    assert (got.status, got.because, got.definitions) == ("fail", "because", ("x@y",))
    assert got.measured == {"n": "an integer of 1329 bits"}
