"""A report says what was measured of a row, and why what was not."""

from dataclasses import replace

import pytest
import torch

from posenc import attention
from posenc.bench import memory, report
from posenc.bench.attend import Attention
from posenc.bench.candidates import Candidate
from posenc.bench.measure import Spread, Timing
from posenc.bench.memory import NotMeasured
from posenc.bench.models import Models
from posenc.bench.rotary import Rotation
from posenc.bench.rows import Goal, Row, choose

GOALS = (Goal(1.3, ("attend:auto",)), Goal(4.0, ("attend:auto",), "memory"))
ROW = Row("kerple.forward", "attend", "plain", ("attend:auto",), ("dense",), GOALS, {"encoding": "kerple"}, length=32)
ROW = replace(ROW, rounds=2)


@pytest.fixture
def no_children(monkeypatch):
    """Let no process be started: every peak is 4,096 bytes."""
    monkeypatch.setattr(memory, "peak", lambda make, warm=None: 4096)


def put(monkeypatch, kind, name, make):
    monkeypatch.setitem(kind.candidates, name, Candidate(name, make))


def test_a_row_is_reported_in_full(no_children):
    found = report.measure_row(ROW)
    assert found["skipped"] is None
    assert [c["name"] for c in found["candidates"]] == ["plain", "attend:auto", "dense"]
    assert [c["role"] for c in found["candidates"]] == ["baseline", "posenc", "peer"]
    assert found["candidates"][0]["ratio"] == {"low": 1.0, "median": 1.0, "high": 1.0}
    assert found["candidates"][1]["memory_mib"] == 4096 / 2**20
    assert found["candidates"][1]["of_q"] == 4096 / (8 * 32 * 64 * 4)
    assert [g["by"] for g in found["goals"]] == ["attend:auto"] * 2
    assert found["goals"][1]["reached"]
    [taken] = [v["backend"] for v in report.explain_row(ROW)["verdicts"] if v["verdict"] == "taken"]
    assert f"posenc, auto: {taken}" in "\n".join(report.row_lines(found))


def test_what_cannot_run_is_skipped_with_a_sentence(no_children, monkeypatch):
    class Choosy:
        name = "choosy"
        rejects = staticmethod(lambda call: "it is Tuesday.")
        memory = staticmethod(lambda call: 0)

    def missing(setting):
        raise ModuleNotFoundError("No module named 'nowhere'")

    monkeypatch.setitem(attention.BACKENDS, "choosy", Choosy())
    put(monkeypatch, Attention, "choosy", lambda setting: setting.attend("choosy"))
    put(monkeypatch, Attention, "missing", missing)
    found = report.measure_row(replace(ROW, peers=("choosy", "missing")))
    skipped = {c["name"]: c["skipped"] for c in found["candidates"] if c["skipped"]}
    assert "it is Tuesday" in skipped["choosy"]
    assert skipped["missing"] == "not installed: ModuleNotFoundError: No module named 'nowhere'"
    assert "missing: skipped, not installed" in "\n".join(report.row_lines(found))


@pytest.mark.parametrize("mode", ["forward", "train"])
def test_a_candidate_of_other_numbers_is_not_timed(no_children, monkeypatch, mode):
    """Of keys one place further, as a mask that is aligned at the wrong end would show them."""

    def shifted(setting):
        pos = setting.encoding.place(setting.pos - (setting.pos > 16).long())
        return lambda: attention.attend(setting.q, setting.k, setting.v, setting.encoding, pos)

    put(monkeypatch, Attention, "shifted", shifted)
    found = report.measure_row(replace(ROW, peers=("shifted", "dense"), mode=mode))
    assert [c["name"] for c in found["candidates"] if c["skipped"]] == ["shifted"]
    assert "shifted: skipped, its numbers are wrong by up to" in "\n".join(report.row_lines(found))
    assert found["candidates"][2]["seconds"] is None


def test_a_rotation_by_other_numbers_is_not_timed(monkeypatch):
    """Clockwise, and in place by one position less."""
    put(monkeypatch, Rotation, "clockwise", lambda s: lambda: s.rope.rotate(s.q, s.k, s.placed, inverse=True))
    right = Rotation.candidates["rotate_:formula"].make

    def earlier(setting):
        setting.placed = setting.rope.place(setting.pos - 1)
        return right(setting)

    put(monkeypatch, Rotation, "earlier", earlier)
    [row] = choose("rotary", [16], only="long.half", quick=True)
    row = replace(row, ours=("rotate_:formula", "out:formula", "rotate:auto"), peers=("clockwise", "earlier"))
    found = report.measure_row(row)
    assert [c["name"] for c in found["candidates"] if c["skipped"]] == ["clockwise", "earlier"]


def test_a_missing_encoding_skips_the_row(no_children):
    found = report.measure_row(replace(ROW, options={"encoding": "no_such_encoding"}))
    assert found["skipped"].startswith("not measured: unknown encoding 'no_such_encoding'")
    assert len(report.row_lines(found)) == 2


def test_a_row_of_a_gpu_says_that_there_is_none(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for found in (report.measure_row(replace(ROW, device="cuda")), report.explain_row(replace(ROW, device="cuda"))):
        assert found["skipped"].endswith("there is no GPU here that torch can use")


def test_what_dies_in_its_process_is_not_run_here(monkeypatch):
    dies = NotMeasured("its process ended with code -9", fatal=True)
    monkeypatch.setattr(memory, "peak", lambda make, warm=None: dies if "dense" in make.args else 4096)
    ran = []
    put(monkeypatch, Attention, "dense", ran.append)
    assert report.measure_row(ROW)["candidates"][2]["skipped"] == dies.why
    assert ran == []


def candidate(name, ratio=None, of_q=None):
    return {"name": name, "ratio": ratio and {"median": ratio}, "of_q": of_q}


def test_a_goal_is_judged_by_the_best():
    goal = Goal(1.3, ("a", "b", "absent"))
    found = report.judge(goal, [candidate("plain", 1.0), candidate("a", 1.5), candidate("b", 1.3)])
    assert (found["by"], found["got"], found["reached"]) == ("b", 1.3, True)
    assert report.judge(goal, [candidate("plain", 1.0), candidate("a", 1.31)])["reached"] is False
    assert report.judge(goal, [candidate("plain", 1.0)])["reached"] is None
    memory = Goal(4.0, ("a",), "memory")
    assert report.judge(memory, [candidate("a", 9.0, 3.9)])["reached"] is True
    assert report.judge(memory, [candidate("a", 9.0)])["reached"] is None


def test_tokens_per_second_are_those_of_the_call():
    row = Row("x", "models", "loaded", ("hf.use",), (), (), {"model": "llama"}, "generate", length=12, batch=4)
    timing = Timing(Spread(1.0, 2.0, 4.0), Spread(1.0, 1.0, 1.0), 3, 0)
    found = report._entry(Models(row), "hf.use", timing, None)
    assert found["tokens_per_s"] == {"low": 4 * 32 / 4, "median": 4 * 32 / 2, "high": 4 * 32}
    assert found["role"] == "posenc"


def test_every_backend_says_something_of_a_row():
    found = report.explain_row(ROW)
    assert [v["backend"] for v in found["verdicts"]] == list(attention.BACKENDS)
    assert [v["verdict"] for v in found["verdicts"]].count("taken") == 1
    assert len(report.row_lines(found)) == 1 + len(attention.BACKENDS)
