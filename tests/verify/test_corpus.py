"""Faults of public reports beside their correct twins, and innocent oddities: all caught, none accused."""

import difflib
import importlib.util
import re
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from posenc import verify

FILES = {path.stem: path for path in sorted((Path(__file__).parent / "corpus").glob("*.py"))}
TWINS = [name for name in FILES if name.endswith("_twin")]
INNOCENT = [name for name in FILES if name.startswith("innocent_")]
FAULTS = [name for name in FILES if name not in TWINS and name not in INNOCENT]
SHARE = 0.95  # of faults, whose first cause must be the right one


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"corpus_{name}", FILES[name])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def checked(name: str) -> verify.Report:
    module = loaded(name)
    return verify.check(module.build(), convention=module.STYLE, spec=module.SPEC)


@pytest.mark.sample(100)
@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_caught(name):
    report = checked(name)
    assert report.status == "fail", report
    assert report.causes[0].message
    assert report.causes[0].smallest_case


@pytest.mark.sample(60)
@pytest.mark.parametrize("name", [*TWINS, *INNOCENT])
def test_what_is_right_is_not_accused(name):
    wanted = loaded(name).EXPECT
    report = checked(name)
    assert report.status in ("pass", "equivalent"), report
    assert wanted in ("pass", "equivalent")


@pytest.mark.slow
def test_the_first_cause_is_the_right_one():
    got = {name: checked(name).causes[0].code if checked(name).causes else "none" for name in FAULTS}
    wrong = [f"{name}: {got[name]} for {loaded(name).EXPECT}" for name in FAULTS if got[name] != loaded(name).EXPECT]
    assert len(wrong) <= (1 - SHARE) * len(FAULTS), "\n".join(wrong)


def test_the_corpus_is_as_large_as_it_says():
    assert len(FAULTS) >= 40
    assert len(INNOCENT) >= 12
    assert {f"{name}_twin" for name in FAULTS} == set(TWINS)
    assert {loaded(name).STYLE for name in FILES} >= set(verify.FAMILIES) - {"encoding"}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_has_its_report_and_differs_from_its_twin_in_few_lines(name):
    faulty, twin = (FILES[stem].read_text().splitlines() for stem in (name, f"{name}_twin"))
    assert re.search(r"https://\S+", "\n".join(faulty[:8]))
    code = [line for line in faulty if line and not line.startswith(("EXPECT", '"""', "Report:", "The correct twin"))]
    kept = sum(size for _, _, size in difflib.SequenceMatcher(None, faulty, twin, autojunk=False).get_matching_blocks())
    assert kept >= len(code) - 12
