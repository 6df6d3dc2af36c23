import sys
import types

import pytest

from posenc.cli import run
from posenc.cli.study import read_seconds, split_list


@pytest.fixture
def calls(monkeypatch):
    """Stand in for the study itself: what it was called with, and its exit code."""
    seen = []

    def record(text, encodings, train_len, test_lens, seeds, budget_s, steps, out, as_json):
        seen.append((text, encodings, train_len, test_lens, seeds, budget_s, steps, out, as_json))
        return 1

    monkeypatch.setitem(sys.modules, "posenc.study.command", types.SimpleNamespace(run=record))
    return seen


def test_defaults_are_left_to_the_study(calls):
    assert run(["study"]) == 1  # the study's own exit code
    assert calls == [([], [], 64, [], 2, 240.0, None, "study", False)]


def test_every_option_arrives(calls):
    line = "study --text a.txt,b.txt --text c.txt --encodings rope,my.pe:Mine --train-len 32"
    line += " --test-len 32,64 --seeds 3 --budget 4m --out there --json"
    run(line.split())
    files, names = ["a.txt", "b.txt", "c.txt"], ["rope", "my.pe:Mine"]
    assert calls == [(files, names, 32, [32, 64], 3, 240.0, None, "there", True)]


def test_steps_take_the_place_of_a_budget(calls, capsys):
    run(["study", "--steps", "70"])
    assert calls[0][5:7] == (None, 70)
    assert run(["study", "--steps", "70", "--budget", "9s"]) == 2
    assert "Give one of them" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong",
    [
        "--test-len 32,x",
        "--test-len 0",
        "--test-len 1.5",
        "--train-len 0",
        "--seeds 0",
        "--seeds two",
        "--budget 0s",
        "--budget -4m",
        "--budget 4d",
        "--budget nan",
        "--steps 0",
        "--encodings ,",
        "--text ,",
    ],
)
def test_wrong_values_are_refused_before_anything_runs(calls, capsys, wrong):
    assert run(["study", *wrong.split()]) == 2
    said = capsys.readouterr().err
    assert wrong.split()[0] in said
    assert said.count("\n") == 1
    assert calls == []


@pytest.mark.parametrize(
    ("text", "seconds"), [("240s", 240), ("4m", 240), ("1h", 3600), ("90", 90), ("1.5 h", 5400), ("2M", 120)]
)
def test_durations(text, seconds):
    assert read_seconds(text) == seconds


def test_lists_ignore_spaces_and_empty_places():
    assert split_list(["a, b,", "c"]) == ["a", "b", "c"]
    assert split_list(None) == []
