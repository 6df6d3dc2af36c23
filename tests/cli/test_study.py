import sys
import types

import pytest

from posenc.cli import run
from posenc.cli.study import read_seconds, split_list
from posenc.study.config import make_config
from study.directories import make, result


@pytest.fixture
def calls(monkeypatch):
    """Stand in for the study itself: what it was called with, and its exit code."""
    seen = []

    def record(config, text, out, engine, **given):
        seen.append((config, text, out, engine.workers, given))
        return 1

    monkeypatch.setitem(sys.modules, "posenc.study.command", types.SimpleNamespace(run=record))
    return seen


def test_defaults_are_those_of_the_configuration(calls):
    assert run(["study"]) == 1  # the study's own exit code
    given = {"callbacks": [], "dry_run": False, "wait": True, "as_json": False}
    assert calls == [(make_config(), (), "study", calls[0][3], given)]


def test_every_option_arrives(calls, tmp_path):
    (tmp_path / "p.toml").write_text('seeds = 9\ntask = ["text"]\n[lengths.copy]\ntest = [40]\n')
    line = "study --text a.txt,b.txt --text c.txt --encodings rope,study.own:SquareRoot --train-len 32 --test-len 32,64"
    line += " --seeds 3 --budget 4m --out there --json --task text,copy --size 32x2 --workers 3 --dry-run"
    line += f" --callback tensorboard,a:b --plan {tmp_path / 'p.toml'}"
    run(line.split())
    config = make_config(
        ["rope", "study.own:SquareRoot"], 32, [32, 64], 3, 240.0, None, ["text", "copy"], ["32x2"],
        {"copy": {"test": [40]}},
    )  # fmt: skip
    given = {"callbacks": ["tensorboard", "a:b"], "dry_run": True, "wait": True, "as_json": True}
    assert calls == [(config, ["a.txt", "b.txt", "c.txt"], "there", 3, given)]


def test_steps_take_the_place_of_a_budget(calls, capsys):
    run(["study", "--steps", "70"])
    assert (calls[0][0].budget_s, calls[0][0].fixed_steps) == (None, 70)
    assert run(["study", "--steps", "70", "--budget", "9s"]) == 2
    assert "Give one of them" in capsys.readouterr().err
    run(["study", "--steps", "70", "--workers", "0"])
    assert calls[1][4]["wait"] is False


def test_a_report_is_written_in_the_language_of_each_call(tmp_path, capsys):
    config = make_config(["rope"], task=["copy"], lengths={"copy": {"test": [20, 40]}})
    make(tmp_path / "s", [result(), result(seed=1)], config=config.as_dict())
    for before, after, code, said in (
        ("", "--lang zh", "zh-CN", "2/2 个单元已完成，0 个失败"),
        ("", "", "en", "2 of 2 cells are done"),
        ("--lang zh", "", "zh-CN", "2/2 个单元已完成，0 个失败"),
    ):
        assert run(["study", *before.split(), "report", str(tmp_path / "s"), *after.split()]) == 0
        assert said in capsys.readouterr().out
        assert f'<html lang="{code}">' in (tmp_path / "s/report.html").read_text(encoding="utf-8")


def test_an_unknown_language_is_refused_with_those_that_there_are(capsys):
    assert run(["study", "report", "s", "--lang", "fr"]) == 2
    assert "'fr' is not one of 'en', 'zh'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong",
    [
        "--test-len 32,x",
        "--test-len 0",
        "--test-len 1.5",
        "--train-len 0",
        "--seeds 0",
        "--seeds two",
        "--lang fr",
        "--budget 0s",
        "--budget -4m",
        "--budget 4d",
        "--budget nan",
        "--steps 0",
        "--encodings ,",
        "--text ,",
        "--task ,",
        "--size ,",
        "--workers 0",
        "--workers -1",
        "--engine slurm",
        "--address auto",
        "--plan missing.toml",
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
