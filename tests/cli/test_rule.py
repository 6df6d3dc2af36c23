"""`posenc rule`: what a code means; and the files that the codes stand in."""

import json
import re
from pathlib import Path

import pytest

from posenc.cli import run
from posenc.verify import rules

GUARDED = ["subject.raises", "subject.writes_input", "subject.not_finite", "subject.shape"]
CHILDS = ["import_fails", "build_fails", "kind", "hangs", "memory", "exits", "crashes"]


def test_one_says_what_why_how_and_where(capsys):
    assert run(["rule", "subject.writes_input"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("subject.writes_input\n  The code writes to its input tensors\n")
    assert "Why it matters: " in said
    assert "How to fix it: " in said
    assert "    https://github.com/unslothai/unsloth/issues/5001\n" in said
    assert max(map(len, said.splitlines())) <= 80


def test_alone_it_lists_all_by_family(capsys):
    assert run(["rule"]) == 0
    lines = capsys.readouterr().out.splitlines()
    listed = [line.strip() for line in lines if re.fullmatch(r"  \S+", line)]
    assert listed == list(rules.known())
    assert [line for line in lines if re.fullmatch(r"\S+", line)] == list(rules.families())


def test_a_family_lists_its_own(capsys):
    assert run(["rule", "subject", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["subject"]
    assert {rule["code"] for rule in found["subject"]} >= {*GUARDED, *(f"subject.{name}" for name in CHILDS)}


def test_json_of_one(capsys):
    assert run(["rule", "subject.hangs", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"code", "family", "title", "why", "fix", "reports"}


@pytest.mark.parametrize("asked", ["subject.hang", "subject.raise", "hangs", "SUBJECT.HANGS", "subject.write_input"])
def test_an_unknown_code_names_near_ones(capsys, asked):
    assert run(["rule", asked]) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert "did you mean 'subject." in streams.err
    assert streams.err.count("\n") == 1


@pytest.mark.parametrize("asked", ["", "qqqqqq", "x" * 10_000])
def test_what_is_like_none_is_told_where_all_are(capsys, asked):
    assert run(["rule", asked]) == 2
    assert "`posenc rule` lists all." in capsys.readouterr().err


def test_every_rule_is_complete():
    for code, rule in rules.known().items():
        assert re.fullmatch(r"[a-z0-9_]+(\.[a-z0-9_]+){0,3}", code)
        assert all(text and text == text.strip() for text in (rule.title, rule.why, rule.fix)), code
        assert "\n" not in rule.title + rule.why + rule.fix, code
        assert not rule.title.endswith("."), code
        assert all(link.startswith("https://") and " " not in link for link in rule.reports), code


def test_a_code_in_two_files_is_refused(tmp_path, monkeypatch):
    fields = {"title": "t", "why": "w", "fix": "m", "reports": []}
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(json.dumps({"x.y": fields}))
    monkeypatch.setattr(rules, "__file__", str(tmp_path / "__init__.py"))
    with pytest.raises(ValueError, match="x.y is in two files"):
        rules.known.__wrapped__()
    (tmp_path / "b.json").write_text(json.dumps({"x.z": {**fields, "extra": 1}}))
    with pytest.raises(ValueError, match="unknown fields {'extra'}"):
        rules.known.__wrapped__()


def test_every_finding_about_the_subject_has_a_rule():
    sources = Path(rules.__file__).parents[1].rglob("*.py")
    reported = {
        code for path in sources for code in re.findall(r'"(subject\.[a-z_]+)"', path.read_text(encoding="utf-8"))
    }
    assert reported >= {*GUARDED, "subject.hangs"}
    assert reported <= set(rules.known())
