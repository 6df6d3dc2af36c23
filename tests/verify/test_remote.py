"""Programs and recordings as subjects: the documentation's examples, and programs that misbehave."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from posenc import cli
from posenc.verify import check, remote
from posenc.verify.remote import messages

PAGE = Path(__file__).parents[2] / "docs" / "programs.md"
ROPE = {"convention": "rope_fn", "encoding": "rope", "head_dim": 64, "base": 10000.0, "layout": "half"}
SLOPES = {"convention": "slopes_fn", "encoding": "alibi", "heads": 8}
TABLE = {"encoding": "rope2d", "head_dim": 16}
ANSWERS = """
import json, sys
for line in sys.stdin:
    call = json.loads(line)
    n = call["args"]["n_heads"]
    print(json.dumps({"call": call["call"], "result": [2.0 ** (-8 * (h + 1) / n) for h in range(n)]}), flush=True)
"""


def program(code):
    return shlex.join([sys.executable, "-c", code])


def written(tmp_path, spec):
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(spec))
    return str(path)


def example(language, tmp_path):
    """Return the command of one of the page's programs."""
    source = re.search(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]
    assert len(source.splitlines()) <= 40
    path = tmp_path / ("rope.c" if language == "c" else "rope.py")
    path.write_text(source)
    if language == "python":
        return f"{sys.executable} {path}"
    subprocess.run(["cc", "-O2", "-Wall", "-Werror", "-o", tmp_path / "rope", path, "-lm"], check=True)
    return str(tmp_path / "rope")


@pytest.mark.parametrize("language", ["c", "python"])
def test_the_programs_of_the_page_pass_and_fail_where_another_base_is_asked(language, tmp_path, capsys):
    if language == "c" and shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    command = example(language, tmp_path)
    assert cli.run(["verify", "--exec", command, "--spec", written(tmp_path, ROPE), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["status"] == "pass"
    assert any("gradient" in line for line in report["not_judged"])
    assert cli.run(["verify", "--exec", command, "--spec", written(tmp_path, ROPE | {"base": 5e5}), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["causes"][0]["code"] == "rope.config.theta_not_read"


@pytest.mark.parametrize(
    ("code", "found"),
    [
        (ANSWERS, "pass"),
        ("print('starting', flush=True)\n" + ANSWERS, "pass"),
        (ANSWERS.replace("-8 *", "-4 *"), "alibi."),
        (ANSWERS.replace("range(n)", "range(n - 1)"), "fail"),
        (ANSWERS.replace("2.0 ** (-8 * (h + 1) / n)", "float('nan')"), "fail"),
        (ANSWERS.replace('call["call"]', "0"), "subject.answers"),
        (ANSWERS.replace('"result": [', '"other": ['), "subject.answers"),
        ("import sys\nsys.exit(3)", "subject.exits"),
        ("import os\nos.kill(os.getpid(), 11)", "subject.crashes"),
        ("import time\ntime.sleep(100)", "cannot_tell"),
        ("while True: pass", "subject.hangs"),
        (
            "import sys\n" + ANSWERS.replace("flush=True", "flush=False") + "    if call: sys.stdin.read()",
            "cannot_tell",
        ),
        ("while True: print('rubbish')", "subject.answers"),
        ("import sys\nwhile True: sys.stdout.write('{' * 4096)", "subject.answers"),
        ('import json\nprint(json.dumps({"call": 1, "error": "no such head"}), flush=True)\ninput()', "subject.raises"),
    ],
)
def test_a_program_is_judged_whatever_it_does(code, found, monkeypatch):
    monkeypatch.setattr(messages, "LONGEST", 1 << 20)
    spec = {"encoding": "alibi", "heads": 8}
    with remote.Program(program(code), seconds=3, memory=8 << 30) as running:
        subject = remote.subject("slopes_fn", running)
        report = check(subject, convention="slopes_fn", spec=spec)
    seen = [report.status, *(cause.code for cause in report.causes)]
    assert any(name.startswith(found) for name in seen), report
    assert running.running.process.returncode is not None


def test_nothing_of_a_program_is_left_running(tmp_path):
    pid = tmp_path / "pid"
    child = f"open({str(pid)!r}, 'w').write(str(os.getpid()))"
    code = f"import os, time\nif not os.fork():\n    os.setsid()\n    {child}\ntime.sleep(99)"
    with remote.Program(program(code), seconds=1, memory=8 << 30) as running:
        check(remote.subject("slopes_fn", running), convention="slopes_fn", spec={"heads": 8})
    state = Path(f"/proc/{pid.read_text()}/stat")
    until = time.monotonic() + 1
    while state.exists() and state.read_text().split()[2] != "Z":
        assert time.monotonic() < until, "a process of the program is still running"
        time.sleep(0.02)


HOST = """
import json, sys
base = float(sys.argv[1])
for line in sys.stdin:
    call = json.loads(line)
    h, w = call["args"]["h"], call["args"]["w"]
    data = [p * base ** (-i / 4) for t in range(h * w) for p in (t % w, t // w) for i in range(4)]
    print(json.dumps({"call": call["call"], "result": {"dtype": "float64", "shape": [h * w, 8], "data": data}}))
"""


@pytest.mark.parametrize(("base", "status"), [("10000", "pass"), ("100", "fail")])
def test_a_recording_is_judged_as_the_program_is(base, status, tmp_path, capsys):
    spec, out = written(tmp_path, TABLE | {"convention": "rope2d_table_fn"}), tmp_path / "questions"
    assert cli.run(["cases", "--spec", spec, "--out", str(out)]) == 0
    assert cli.run(["verify", str(out), "--spec", spec]) == 2  # there are no answers
    assert cli.run(["cases", "--spec", spec, "--out", str(out)]) == 2  # there are questions
    with (out / "questions.jsonl").open() as asked, (out / "answers.jsonl").open("w") as answers:
        subprocess.run([sys.executable, "-c", HOST, base], stdin=asked, stdout=answers, check=True)
    capsys.readouterr()
    assert cli.run(["verify", str(out), "--spec", spec, "--json"]) == (0 if status == "pass" else 1)
    whole = json.loads(capsys.readouterr().out)
    assert whole["status"] == status
    assert not any("recording" in line for line in whole["not_judged"])


def test_what_a_recording_does_not_answer_is_not_judged(tmp_path):
    from posenc.verify import family_of

    remote.write_questions(family_of("rope2d_table_fn", TABLE), tmp_path)
    (tmp_path / "answers.jsonl").write_text("")
    subject = remote.subject("rope2d_table_fn", remote.Recording(tmp_path))
    report = check(subject, convention="rope2d_table_fn", spec=TABLE)
    assert report.status == "cannot_tell"
    assert len(report.not_judged) == 6
    for text in ("[1]", "not json", "{"):
        (tmp_path / "answers.jsonl").write_text(text)
        with pytest.raises(ValueError, match="not a JSON object"):
            remote.Recording(tmp_path)


def test_questions_that_cannot_be_written_are_refused_in_one_line(tmp_path, capsys):
    taken = tmp_path / "taken"
    taken.write_text("")
    spec = written(tmp_path, TABLE | {"convention": "rope2d_table_fn"})
    for out in (taken, taken / "inside"):
        assert cli.run(["cases", "--spec", spec, "--out", str(out)]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    for name in ("meta_complex", "cached_model"):
        rope = written(tmp_path, ROPE | {"convention": name})
        assert cli.run(["cases", "--spec", rope, "--out", str(tmp_path / "other")]) == 2
        assert "Use a program with --exec" in capsys.readouterr().err


def test_a_specification_names_the_convention_of_python_code_too(tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text("def build():\n    return lambda a: [2.0 ** -(h + 1) for h in range(a)]\n")
    assert cli.run(["verify", str(path), "--spec", written(tmp_path, SLOPES), "--json", "--in-process"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["status"], report["convention"]) == ("pass", "slopes_fn")


ARRAY = {"dtype": "float32", "shape": [2], "data": [1, 2]}


@pytest.mark.parametrize(
    "change",
    [
        *({"dtype": "object"}, {"shape": [3]}, {"shape": [1 << 40]}, {"data": [[1], [2]]}),
        *({"file": "../../etc/passwd"}, {"file": "missing.npy"}),
    ],
)
def test_an_array_that_is_none_is_refused(change, tmp_path):
    with pytest.raises(ValueError, match=r"array|\.npy"):
        messages.decode(ARRAY | change, tmp_path)


def test_arrays_go_through_lines_and_files_unchanged(tmp_path):
    import torch

    for t in (torch.tensor([[1.5, float("-inf")]]), torch.tensor([3 + 4j]), torch.arange(3), torch.tensor([True])):
        for file in (None, tmp_path / "a.npy"):
            fields = json.loads(messages.line(messages.encode(t, file)))
            assert torch.equal(messages.decode(fields, tmp_path), t)
            assert messages.decode(fields, tmp_path).dtype == t.dtype
