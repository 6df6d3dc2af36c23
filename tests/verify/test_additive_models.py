"""What added codes are held against is the definition, and every planted fault has a code that is listed."""

import numpy as np
import pytest
import torch

from additive_subjects import PLAIN, SIN, Adds, D, judge
from posenc import definitions
from posenc.verify.additive import check as additive
from posenc.verify.additive.asked import coded, read
from posenc.verify.additive.models import truths
from posenc.verify.additive.variants import one_fault_each
from posenc.verify.codes import rules
from posenc.verify.report import Cause

SINUSOIDAL = definitions.find("sinusoidal")


@pytest.mark.parametrize(
    ("d", "layout", "variant", "base"),
    [
        (16, "interleaved", "paper", 1e4),
        (15, "half", "paper", 777.0),
        (12, "half", "tensor2tensor", 1e4),
        (7, "interleaved", "paper", 50.0),
    ],
)
def test_the_right_model_is_the_definition(d, layout, variant, base):
    asked = read({"dim": d, "layout": layout, "variant": variant, "base": base}, "additive_module")
    code, _ = truths(asked, d)[0].predict((1, 9))
    order = {"interleaved": "alternating", "half": "concatenated"}[layout]
    exact = SINUSOIDAL(np.arange(9.0), d_model=d, base=base, order=order, exponent=variant)
    np.testing.assert_allclose(code[0], exact, atol=1e-13)


@pytest.mark.parametrize("d", [16, 12, 10])
def test_the_right_image_is_the_definition(d):
    asked = read({"dim": d}, "additive_2d_module")
    code, _ = truths(asked, d)[0].predict((1, 3, 5))
    pos = np.array([(i, j) for i in range(3) for j in range(5)], dtype=float)
    np.testing.assert_allclose(
        code[0].reshape(15, -1)[:, :d], definitions.find("sinusoidal_nd")(pos, d_model=d), atol=1e-13
    )


def test_the_right_table_is_the_definition_of_distances():
    asked = read({"dim": 8}, "relative_table_fn")
    code, _ = truths(asked, 8)[0].predict((4,))
    np.testing.assert_allclose(code[0], SINUSOIDAL(np.arange(3.0, -4, -1), d_model=8), atol=1e-13)


def test_a_mismatch_shows_its_smallest_case_with_true_numbers():
    subject = Adds(lambda n: PLAIN(n) + (torch.arange(n) >= 3)[:, None] * torch.arange(D) * 0.01)
    cause = additive.check(subject, "additive_module", SIN).causes[0]
    assert cause.code == "sinusoidal.mismatch"
    assert cause.smallest_case["x"] == [1, 4, D]
    assert cause.smallest_case["index"] == [0, 3, D - 1]
    got, right = cause.smallest_case["got"], cause.smallest_case["expected"]
    assert got - right == pytest.approx(0.15, abs=1e-5)
    assert right == pytest.approx(SINUSOIDAL(np.arange(4.0), d_model=D)[3, D - 1])
    assert cause.evidence == pytest.approx(0.15, abs=1e-5)


def test_a_build_that_raises_for_an_odd_width_is_named():
    raised = Cause("subject.raises", "build() raised RuntimeError: sizes differ", 1.0)
    assert additive.refused("additive_module", {"dim": 15}, raised).code == "sinusoidal.width.odd"
    assert additive.refused("additive_module", {"dim": 16}, raised) is raised


@pytest.mark.parametrize("convention", additive.CONVENTIONS)
@pytest.mark.parametrize("spec", [{}, {"variant": "detr_normalised"}, {"layout": "half"}, {"dim": 15}])
def test_every_planted_model_has_a_listed_code(convention, spec):
    asked = read({"dim": 16, **spec}, convention)
    for truth in truths(asked, asked.dim):
        for model in one_fault_each(truth, asked):
            for code, words, mend in model.faults:
                assert coded(asked.family, code) in rules()
                assert words
                assert mend


@pytest.mark.parametrize(
    ("convention", "encoding"),
    [("additive_module", "time2vec"), ("additive_module", "sinusoidal2d"), ("relative_table_fn", "learned")],
)
def test_what_has_no_definition_is_not_passed(convention, encoding):
    assert judge(Adds(PLAIN), convention, {"encoding": encoding, "dim": D})[0] == "cannot_tell"
