import pytest

from posenc.study.answer import form_answer
from study.samples import EXACT, REAL, make_cell, make_run, make_study, make_task_study

FEW = {name: REAL[name] for name in ("nope", "rope", "alibi")}


def answered(study, missing=0):
    return ["".join(parts) for parts in form_answer(*study, missing)]


def test_text_alone_is_answered_from_its_losses():
    keeps, breaks, cost = answered(make_study())
    assert keeps.startswith("alibi (+0.0")
    assert keeps.endswith(" keeps the loss on text up to 1,024 bytes (16× the trained length).")
    assert "xpos, sinusoidal" in breaks
    assert breaks.endswith("and rope (+0.59 to +3.29 bits per byte) lose more than 0.30 there.")
    assert cost.startswith("A training step costs 1.0")
    assert cost.endswith("that of nope, the most with transformer_xl.")


def test_an_upside_down_world_gives_the_opposite_answer():
    study = make_study({**REAL, "rope": (2.3, 2.3, 2.31, 2.3, 2.31), "alibi": (2.1, 3.2, 3.9, 4.4, 5.0)})
    keeps, breaks, _ = answered(study)
    assert keeps.startswith("rope (")
    assert "alibi" in breaks
    assert "rope" not in breaks


def test_tasks_alone_are_answered_by_the_seeds_that_solve_them():
    keeps, breaks, rest = answered(make_task_study())
    lines = "The longest lines (4× the longest trained) are"
    assert keeps == f"{lines} solved in every seed by nope and t5 on copy."
    assert breaks == (
        f"{lines} not solved in any seed by sinusoidal on copy and copy@randomised, rope on all 4 tasks, "
        "nope on parity and flip_flop."
    )
    assert rest.endswith(
        "some of this is open: seeds disagree about alibi on copy, too little training for alibi on parity."
    )


def test_text_and_tasks_stand_in_the_same_sentences():
    keeps, breaks, _ = answered(make_task_study({"copy": EXACT["copy"]}, FEW))
    assert keeps.index("keeps the loss on text") < keeps.index("; the longest lines")
    assert breaks.startswith("rope (+3.29 ± 0.0")
    assert breaks.endswith("not solved in any seed by rope and sinusoidal on copy.")


@pytest.mark.parametrize(("change", "keeps"), [(0.04, True), (-0.2, True), (0.06, False)])
def test_a_loss_is_kept_up_to_its_limit(change, keeps):
    study = make_study({"nope": (2.0, 2.0, 2.0, 2.0, 2.9), "alibi": (2.3, 2.3, 2.3, 2.3, 2.3 + change)}, noise=0)
    assert answered(study)[0].startswith("alibi" if keeps else "No sufficiently trained encoding keeps its loss")
    assert ("alibi" in answered(study)[0]) is keeps


def test_seeds_that_disagree_are_open_and_in_neither_list():
    cells = [make_cell("alibi", 0, (2.3,) * 5, 0), make_cell("alibi", 1, (2.3, 2.3, 2.3, 2.3, 2.38), 0)]
    keeps, breaks, rest = answered((make_run(["alibi"]), cells))
    assert keeps.startswith("No sufficiently trained encoding keeps its loss on text within 0.05")
    assert "alibi" not in breaks
    assert "seeds disagree about alibi on text" in rest


def test_undertrained_missing_and_single_seeds_are_said():
    run, cells = make_task_study({"copy": {"rope": ((0.5,) * 4,), "nope": ((1.0,) * 4,)}}, FEW)
    for cell in cells:
        cell["undertrained"] |= cell["encoding"] == "alibi"
    rest = answered((run, cells), missing=3)[2]
    assert "too little training for alibi on text, rope on copy" in rest or "rope on copy, alibi on text" in rest
    assert "3 cells are missing" in rest
    assert rest.endswith("a single seed does not show how much seeds differ.")


@pytest.mark.parametrize("run", [{}, make_run(["rope"]), make_task_study()[0]])
def test_nothing_measured_is_no_answer(run):
    assert answered((run, [])) == ["No cell has been measured yet, so there is no answer yet."]


def test_nothing_trained_far_enough_names_no_encoding_as_kept_or_broken():
    run, cells = make_task_study({"copy": EXACT["copy"]}, FEW)
    for cell in cells:
        cell["undertrained"] = True
    keeps, breaks, rest = answered((run, cells))
    assert keeps == (
        "On text no sufficiently trained encoding was measured past the trained length; "
        "on the tasks no sufficiently trained encoding was measured past the trained length."
    )
    assert breaks == "So the study cannot show which encodings break."
    assert "too little training for" in rest


def test_a_dearest_step_is_named_only_where_seeds_bear_it_out():
    run, cells = make_study(FEW)
    for cell in cells:
        cell["step_ms"] = {"nope": 40.0, "rope": 50.0, "alibi": 50.5}[cell["encoding"]] + cell["seed"]
    assert answered((run, cells))[2] == "A training step costs 1.25× to 1.26× that of nope."
    for cell in cells:
        cell["step_ms"] = 40.0 + cell["seed"]
    assert answered((run, cells))[2] == "No training step differs measurably in cost from that of nope."


def test_of_several_sizes_the_first_is_named():
    keeps = answered(make_task_study({"copy": EXACT["copy"]}, sizes=("64x2x4", "128x2x4")))[0]
    assert keeps.startswith("At size 64x2x4, the longest lines")
