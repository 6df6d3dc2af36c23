"""`posenc show NAME --precision`: text and JSON, formulas of one's own in a process of their own, bad input."""

import json
import sys

import pytest

import posenc
from posenc import precision
from posenc.cli import precision as face
from posenc.cli import run

OWN = """
import os, sys, time
import torch

def right(pos):
    print("chatter on stdout")
    angle = pos.double()[:, None] * 10_000 ** (-torch.arange(0, 64, 2, dtype=torch.float64) / 64)
    return angle.cos().float(), angle.sin().float()

class Model:
    def lanes(pos):
        return torch.ones(len(pos), 64), torch.ones(len(pos), 64)

def breaks(pos):
    raise KeyError(f"got {len(pos)}")

def leaves(pos):
    os._exit(0)

def sleeps(pos):
    time.sleep(600)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_formulas.py").write_text(OWN)
    # a file that would shadow the standard library's, had the folder come first
    (tmp_path / "json.py").write_text("raise RuntimeError('shadowed')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, ""])  # as the program does


def show(capsys, *arguments, code=0):
    assert run(["show", *arguments]) == code
    return capsys.readouterr()


def test_json_is_what_the_library_measures(capsys):
    found = json.loads(show(capsys, "rope", "--precision", "--formula", "bfloat16", "--json").out)
    assert set(found) == {"collisions", "phase_error", "cap", "note"}
    assert found["collisions"]["ours"] == {"float32": None, "bfloat16": None, "float16": None}
    assert found["collisions"]["formula"]["bfloat16"] == {"position": 257, "same_as": 256}
    assert all(set(row) == {"position", "ours", "formula"} for row in found["phase_error"])
    assert found["phase_error"][-1]["position"] == 10_000_000
    assert found["phase_error"][-1]["ours"]["float32"] < 2e-7 < 0.1 < found["phase_error"][-1]["formula"]["float32"]


@pytest.mark.parametrize("width", [80, 120])
def test_text_is_a_sentence_each_and_a_table(capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    said = show(capsys, "rope", "--precision", "--formula", "float16").out
    assert all(len(line) <= width for line in said.splitlines())
    flowing = " ".join(said.split())
    assert flowing.startswith("Precision of posenc.RoPE(head_dim=64) posenc: no two of the first 65,536 positions ")
    assert "formula with angles in float16: position 2,049 is the first that equals an earlier one (2,048)," in flowing
    assert " position float32 bfloat16 float16 float32 bfloat16 float16 " in flowing
    last = said[said.index("10,000,000") :].split()
    assert len(last) > 7
    assert last[4:7] == ["none"] * 3
    assert float(last[1]) < 2e-7
    assert "none: no angle" in flowing


def test_dtypes_that_differ_are_told_apart(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    said = show(capsys, "integer", "--precision").out
    assert (
        "posenc: no two of the first 65,536 positions collide in float32; position 257 is the first that "
        "equals an earlier one (256), in bfloat16; position 2,049 is the first that equals an earlier one (2,048), in "
        "float16.\n" in said
    )
    assert "formula" not in said.split("\n")[2]
    assert "Phase error:" not in said


def test_the_default_formula_is_float32(capsys):
    given = show(capsys, "rope", "--precision", "--formula", "float32").out
    assert show(capsys, "roformer", "--precision").out == given


def test_what_has_nothing_to_measure_is_a_sentence(capsys):
    done = show(capsys, "alibi", "--precision")
    assert "There is nothing to measure: ALiBi neither adds vectors" in done.out
    assert done.err == ""
    found = json.loads(show(capsys, "alibi", "--precision", "--json").out)
    assert found["collisions"] == {"ours": None, "formula": None}
    assert found["note"].startswith("There is nothing to measure")


@pytest.mark.usefixtures("own")
def test_a_formula_of_ones_own_is_measured_in_another_process(capfd):
    found = json.loads(show(capfd, "rope", "--precision", "--formula", "own_formulas:right", "--json").out)
    exec(OWN, here := {})
    wanted = precision.measure(posenc.RoPE(head_dim=64), here["right"])
    assert found == wanted
    assert found["phase_error"][-1]["formula"]["float32"] < 1e-7


@pytest.mark.slow
@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("formula", "said"),
    [
        ("own_formulas:breaks", "(exit code 1): KeyError: 'got 65536'. Fix it, or leave --formula out."),
        ("own_formulas:Model.lanes", "must have shape (65536, 32) each, a row for each position and a column for each"),
        ("own_formulas:leaves", "ended without an answer (exit code 0): it printed nothing. Fix it"),
        ("own_formulas:absent", "AttributeError: module 'own_formulas' has no attribute 'absent'"),
        ("no_such_module:f", "ModuleNotFoundError: No module named 'no_such_module'"),
    ],
)
def test_a_formula_that_fails_is_one_sentence(capsys, formula, said):
    done = show(capsys, "rope", "--precision", "--formula", formula, code=2)
    assert done.out == ""
    assert done.err.startswith(f"posenc: show: the formula '{formula}' ended without an answer")
    assert said in done.err
    assert done.err.count("\n") == 1


@pytest.mark.usefixtures("own")
def test_a_formula_that_takes_too_long_is_stopped(capsys, monkeypatch):
    monkeypatch.setattr(face, "TIME_LIMIT", 1.0)
    done = show(capsys, "rope", "--precision", "--formula", "own_formulas:sleeps", code=2)
    assert "gave no answer within 1 seconds and was stopped. It is called with 65,536 positions" in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["rope", "--precision", "--formula", "float64"],
            "must be one of float32, bfloat16, float16, or your own function",
        ),
        (["rope", "--formula", "float32"], "--formula needs --precision; got only --formula float32."),
        (["alibi", "--precision", "--formula", "float32"], "which ALiBi does not have; got 'float32'. Leave it out."),
        (["sinusoidal", "--precision", "--formula", "own:f"], "which Sinusoidal does not have"),
        (["ropee", "--precision"], "did you mean 'rope'?"),
        ([f"{__name__}:Demanding", "--precision"], "cannot be measured, because it could not be constructed"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(capsys, arguments, said):
    done = show(capsys, *arguments, code=2)
    assert done.out == ""
    assert said in done.err
    assert done.err.count("\n") == 1


class Demanding(posenc.Rotary):
    def __init__(self, *, colour):
        super().__init__(head_dim=colour)


class Plain(posenc.Rotary):
    def __init__(self, *, head_dim):
        super().__init__(head_dim=head_dim)

    def frequencies(self):
        return posenc.RoPE(head_dim=self.head_dim).frequencies()


def test_a_class_of_ones_own_is_measured_too(capsys):
    said = show(capsys, f"{__name__}:Plain", "--precision").out
    assert said.startswith("Precision of Plain(head_dim=64)\n")
    assert "10,000,000" in said
