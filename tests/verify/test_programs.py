"""Programs and their faults: every fault is found and named, and nothing correct is accused."""

import difflib
import os
import re
import shlex
import sys
from functools import cache
from pathlib import Path

import pytest

import programs
from posenc import verify
from posenc.verify import remote

CASES = programs.cases()
HOST = Path(__file__).parents[1] / "verify_host.py"
CORPUS = [name for name in CASES if name.startswith("corpus/")]
UNSEEN = [name for name in CASES if name.startswith(("unseen/", "kinds/"))]
RIGHT = [name for name, case in CASES.items() if not case.is_fault]
SHARE = 0.95  # of the corpus, whose first cause must be the right one


@cache
def checked(name: str) -> verify.Report:
    module = CASES[name].load()
    return verify.check(module.build(), convention=module.STYLE, spec=module.SPEC)


def first_code(name: str) -> str:
    causes = checked(name).causes
    return causes[0].code if causes else "none"


@pytest.mark.sample(100)
@pytest.mark.parametrize("name", CORPUS)
def test_faults_are_caught(name):
    report = checked(name)
    assert report.status == "fail", report
    assert report.causes[0].message
    assert report.causes[0].smallest_case


@pytest.mark.slow
def test_the_first_cause_is_the_right_one():
    wrong = [f"{n}: {first_code(n)} for {CASES[n].expect}" for n in CORPUS if first_code(n) != CASES[n].expect]
    assert len(wrong) <= (1 - SHARE) * len(CORPUS), "\n".join(wrong)


@pytest.mark.sample(12)
@pytest.mark.parametrize("name", UNSEEN)
def test_unseen_faults_are_caught_and_named(name):
    report = checked(name)
    assert report.status == "fail", report
    assert report.causes[0].message
    assert report.causes[0].smallest_case
    assert first_code(name) == CASES[name].expect, report


@pytest.mark.sample(78)
@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_not_accused(name):
    report = checked(name)
    assert report.status in ("pass", "equivalent"), report


def test_the_sets_are_as_large_as_they_were():
    assert len(CORPUS) >= 141
    assert len(UNSEEN) >= 45 + 28
    assert len(RIGHT) >= 163
    assert {case.load().STYLE for case in CASES.values()} == set(verify.FAMILIES) - {"encoding"}


def test_names_are_unique_across_the_sets():
    stems = [name.partition("/")[2] for name in [*CORPUS, *UNSEEN]]
    assert len(stems) == len(set(stems))


@pytest.mark.parametrize("name", CORPUS)
def test_a_fault_of_the_corpus_has_its_report(name):
    assert CASES[name].report.startswith("https://")


@pytest.mark.parametrize("name", [*CORPUS, *UNSEEN])
def test_a_fault_differs_from_what_is_right_in_few_lines(name):
    before, after = CASES[name].before.splitlines(), CASES[name].source.splitlines()
    blocks = difflib.SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks()
    kept = sum(block.size for block in blocks)
    assert 0 < max(len(before), len(after)) - kept <= 5


def test_the_example_for_contributors_is_the_real_one():
    page = (programs.HERE.parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (entry,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert entry in (programs.HERE / "faults.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize(("old", "said"), [("y", "0 times"), ("x", "2 times"), ("return x", "by itself")])
def test_a_change_that_does_nothing_or_too_much_is_refused(old, said):
    with pytest.raises(ValueError, match=said):
        programs.changed("corpus/name", "def f(x):\n    return x\n", [(old, "return x")])


# no line of JSON shows a gradient, or what is written into an argument
UNSEEN_IN_LINES = ("grad.severed", "trainable", "input.mutated", "writes_input")
IN_LINES = [n for n, c in CASES.items() if not c.expect.endswith(UNSEEN_IN_LINES) and not n.startswith("before/")]


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", IN_LINES)
def test_a_program_that_is_asked_over_lines_of_json_gets_the_same_status(name, monkeypatch):
    module, here = CASES[name].load(), checked(name)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HOST.parent), *sys.path]))
    with remote.Program(shlex.join([sys.executable, str(HOST), name]), seconds=120, memory=16 << 30) as program:
        report = verify.check(remote.subject(module.STYLE, program), convention=module.STYLE, spec=module.SPEC)
    unseen = str(module.SPEC.get("encoding")).startswith("learned")  # nor does any line show a table
    assert report.status in ((here.status, "cannot_tell") if unseen else (here.status,)), (report, here)
