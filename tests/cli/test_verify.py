"""`posenc verify`: exit codes, formats, where the specification comes from, and what the user's code cannot spoil."""

import io
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

import posenc.verify
from posenc.cli import run
from posenc.verify import sentences
from posenc.verify.report import Cause, Report

# A check of one sum in place of the families', so that every status can be had at will.
STUB = """
import posenc.verify
from posenc.verify.report import Cause, Report
def _check(subject, *, convention, spec):
    status = subject(1)
    message, fix = "it falls\\x1b[31m, not rises", "Turn it: a,b:c 100%."
    cause = Cause("alibi.sign", message, 2.0, {"heads": 1}, fix, ("alibi.slopes.order",))
    return Report(status, convention, (cause,) if status == "fail" else (), "of reasons" if status != "pass" else "",
                  ("alibi@authors",), {"spec": spec, "nan": float("nan")})
posenc.verify.check = _check
print("::error ::from the code")
STYLE, SPEC = "slopes_fn", {"encoding": "alibi"}
"""


@pytest.fixture(autouse=True)
def check_is_put_back(monkeypatch):
    """What a subject in this process replaces is as before afterwards."""
    monkeypatch.setattr(posenc.verify, "check", posenc.verify.check)


@pytest.fixture
def subject(tmp_path):
    def write(status="pass", code=""):
        path = tmp_path / "subject.py"
        path.write_text(f"{STUB}{code}\ndef build(): return lambda n: {status!r}\n")
        return str(path)

    return write


def verify(*arguments):
    """Run the command line in this process; the subject has a child of its own all the same."""
    return run(["verify", *arguments])


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        ("pass", 0, "pass: "),
        ("equivalent", 0, "equivalent: "),
        ("fail", 1, "fail: "),
        ("cannot_tell", 3, "cannot tell: "),
    ],
)
def test_exit_codes_and_text(subject, capsys, status, code, said):
    path = subject(status)
    assert verify(path) == code
    streams = capsys.readouterr()
    assert streams.out.startswith(f"{said}{path} as slopes_fn\n")
    assert "compared with: alibi@authors" in streams.out
    announced, printed = streams.err.splitlines()
    assert announced.startswith("posenc: verify imports and runs the code of ")
    assert "in a child process (120 s, 8 GiB; --in-process runs it here)" in announced
    assert printed == "| ::error ::from the code"  # no workflow command any more
    if status == "fail":
        assert "  alibi.sign\n    it falls\\x1b[31m, not rises\n" in streams.out
        assert "follows from it: alibi.slopes.order" in streams.out
        assert streams.out.rstrip().endswith("`posenc rule alibi.sign` explains it.")


def test_json_is_the_whole_report_and_nothing_else_in_this_process_too(subject, capsys):
    path = subject("fail")
    for arguments in (["--json"], ["--output-format", "json"]):
        assert verify(path, "--in-process", *arguments) == 1
        streams = capsys.readouterr()
        found = json.loads(streams.out)
        assert (found["target"], found["schema"], found["status"]) == (path, 1, "fail")
        cause = found["causes"][0]
        assert (cause["code"], cause["evidence"], cause["smallest_case"]) == ("alibi.sign", 2.0, {"heads": 1})
        assert cause["consequences"] == ["alibi.slopes.order"]
        assert found["measured"] == {"spec": {"encoding": "alibi"}, "nan": None}
        assert "in this process, without limits" in streams.err
        assert "::error ::from the code" in streams.err


def test_github_gets_annotations(subject, capsys, monkeypatch, tmp_path):
    subject("fail")
    monkeypatch.chdir(tmp_path)
    assert verify("subject.py", "--in-process", "--output-format", "github") == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("::error file=subject.py,line=")
    assert line.endswith(",title=alibi.sign::subject.py: it falls\\x1b[31m, not rises%0ATurn it: a,b:c 100%25.")
    number = int(line.split("line=")[1].split(",")[0])
    assert (tmp_path / "subject.py").read_text().splitlines()[number - 1].startswith("def build")


@pytest.mark.parametrize("broken", ["x = 1\n"], ids=["no build"])
def test_a_target_that_cannot_be_judged_leaves_the_reports_of_the_others(subject, capsys, tmp_path, broken):
    first, bad = tmp_path / "first.py", tmp_path / "bad.py"
    Path(subject("fail")).rename(first)
    bad.write_text(broken)
    last = str(subject("pass"))
    assert verify(str(first), str(bad), last, "--in-process", "--json") == 2
    streams = capsys.readouterr()
    assert [(one["target"], one["status"]) for one in json.loads(streams.out)] == [(str(first), "fail"), (last, "pass")]
    assert f"posenc: {bad}: " in streams.err


@pytest.mark.parametrize("worst", ["pass", "cannot_tell", "fail"])
def test_several_targets_are_one_document_and_the_worst_exit_code(subject, capsys, tmp_path, worst):
    paths = []
    for status in dict.fromkeys(("pass", "cannot_tell", worst)):
        if worst != "pass" or status == "pass":
            paths.append(str(tmp_path / f"{status}.py"))
            Path(subject(status)).rename(paths[-1])
    code = {"pass": 0, "cannot_tell": 3, "fail": 1}[worst]
    assert verify(*paths, "--in-process", "--output-format", "junit") == code
    (suite,) = ElementTree.fromstring(capsys.readouterr().out)
    assert [case.get("name") for case in suite] == paths
    assert verify(*paths, "--in-process", "--output-format", "sarif") == code
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert len(run["results"]) == len(paths) - 1


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("raise SystemExit(5)", "subject.exits"),
        ("1 / 0", "subject.import_fails"),
        ("def build(:", "subject.import_fails"),
    ],
)
def test_in_process_too_what_goes_wrong_is_a_finding(tmp_path, capsys, code, expected):
    path = tmp_path / "subject.py"
    path.write_text(code)
    assert verify(str(path), "--in-process", "--json") == 1
    assert json.loads(capsys.readouterr().out)["causes"][0]["code"] == expected


def test_the_specification_comes_from_a_file_or_from_stdin(subject, capsys, monkeypatch, tmp_path):
    path = subject()
    (tmp_path / "spec.json").write_text('{"encoding": "t5", "window": [7, 5]}')
    assert (
        verify(path, "--in-process", "--spec", str(tmp_path / "spec.json"), "--convention", "bucket_fn", "--json") == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert found["convention"] == "bucket_fn"
    assert found["measured"]["spec"] == {"encoding": "t5", "window": [7, 5]}
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"encoding": "rope"}')))
    assert verify(path, "--in-process", "--spec", "-", "--json") == 0
    assert json.loads(capsys.readouterr().out)["measured"]["spec"] == {"encoding": "rope"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (b"{not json", "is not JSON in UTF-8"),
        (b"[1, 2]", "a specification must be a JSON object; got list"),
        (b'{"base": NaN}', "has the number NaN"),
        (b'{"a": 1, "a": 2}', "has the key 'a' twice"),
        (b'{"a": ' * 50 + b"1" + b"}" * 50, "nested deeper than 32"),
        (b'{"a": "' + b"x" * (1 << 20) + b'"}', "over 1048576 bytes"),
    ],
)
def test_a_bad_specification_is_one_line_before_anything_runs(subject, capsys, monkeypatch, tmp_path, given, said):
    path = subject(code="raise SystemError")
    (tmp_path / "spec.json").write_bytes(given)
    for source in (str(tmp_path / "spec.json"), "-"):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given)))
        assert verify(path, "--spec", source) == 2
        streams = capsys.readouterr()
        assert streams.out == ""
        assert said.split(";")[0] in streams.err or "configuration must be a JSON object" in streams.err
        assert streams.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["FILE", "nowhere.py"], "there is no file 'nowhere.py'"),
        (["nowhere.py"], "there is no file 'nowhere.py'"),
        (["subject"], "TARGET must be FILE.py or package.module:OBJECT; got 'subject'"),
        (["FILE", "--convention", "rope"], "--convention must be a convention; got 'rope'"),
        (["FILE", "--spec", "nowhere.json"], "there is no file 'nowhere.json'"),
        (["FILE", "--spec", "."], "is a directory"),
        (["FILE", "--output-format", "xml"], "--output-format must be text, json, github, sarif or junit; got xml"),
        (["FILE", "--json", "--output-format", "github"], "exclude each other"),
        ([], "give either TARGET or --exec COMMAND"),
        (["--explain", "rope"], "--explain must be a convention; got 'rope'"),
        (["FILE", "--explain", "rope_fn"], "Give no TARGET and no other format"),
        (["--explain", "rope_fn", "--output-format", "sarif"], "Give no TARGET and no other format"),
        (["FILE", "--exec", "true"], "give either TARGET or --exec COMMAND"),
        (["--exec", "true"], "--exec needs a convention"),
    ],
)
def test_wrong_use_runs_nothing(subject, capsys, arguments, said):
    path = subject(code="raise SystemError")
    assert verify(*(path if a == "FILE" else a for a in arguments)) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert said in streams.err
    assert streams.err.count("\n") == 1
    assert "imports and runs" not in streams.err


def test_a_convention_is_explained_as_text_and_as_json(capsys):
    assert verify("--explain", "slopes_fn") == 0
    said = capsys.readouterr().out
    assert said.startswith("slopes_fn\n  slopes(n_heads) -> list\n")
    assert "    n_heads  8 to 16\n" in said
    assert verify("--explain", "slopes_fn", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["convention"], found["arguments"]) == ("slopes_fn", {"n_heads": "8 to 16"})
    assert found["words"]["bidirectional"] == "true or false"


@pytest.mark.slow
def test_it_is_quick_and_leaves_no_traceback(subject):
    """In seconds of work, which do not depend on who else works here: below three beyond importing torch."""
    path = subject("fail", "import sys; sys.stdout.write('\\x1b]0;title\\x07'); raise KeyError('\\n\\x1b[2J')")

    def cpu(command):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=120)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done

    torch_s, _ = cpu(["-c", "import torch"])
    whole_s, done = cpu(["-m", "posenc", "verify", path])
    assert whole_s < torch_s + 3
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert "subject.import_fails" in done.stdout


@pytest.mark.slow
def test_an_interrupt_ends_the_child_too(tmp_path):
    path = tmp_path / "subject.py"
    path.write_text("import os, time\nopen(__file__ + '.pid', 'w').write(str(os.getpid()))\ntime.sleep(300)")
    reported, command = tmp_path / "subject.py.pid", [sys.executable, "-m", "posenc", "verify", str(path)]
    parent = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 60
    while not (reported.exists() and reported.read_text()) and time.monotonic() < until:
        time.sleep(0.05)
    parent.send_signal(2)
    _, err = parent.communicate(timeout=30)
    assert parent.returncode == 130
    assert "Traceback" not in err
    assert err.count("posenc: ") == 1  # the notice that code runs
    with pytest.raises(ProcessLookupError):  # its own parent has buried it
        os.kill(int(reported.read_text()), 0)


def test_text_of_a_long_report_fits_the_width():
    cause = Cause("a.b.c", "word " * 60, 1.0, {"shape": [1, 2], "dtype": "float32"}, "help " * 40, ("x.y",) * 30)
    lines = sentences.text(Report("fail", "rope_fn", (cause, cause)), "a.py").splitlines()
    assert max(map(len, lines)) <= 80
    assert lines.count("  a.b.c") == 2


def test_a_pass_says_what_was_not_read_and_not_judged():
    not_judged = ("'comment' of the specification", "parts of several tokens: raised IndexError")
    report = Report("pass", "cached_model", not_judged=not_judged)
    assert sentences.text(report, "a.py").splitlines()[1:3] == [f"  not judged: {line}" for line in not_judged]
    assert report.to_dict()["not_judged"] == list(not_judged)
