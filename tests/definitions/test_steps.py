"""How definitions come to their numbers: the lines that are shown are right, and lead to the number."""

import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import defined
import posenc
import strategies
from posenc.defined import of_text
from posenc.definitions import additive, bias, distances, rotary
from posenc.definitions.steps import Step, follow

AT, KEY = np.array([9]), np.array([4])


def lines(define: Any, cell: tuple[int, ...], *args: Any, **options: Any) -> list[str]:
    return [str(step) for step in follow(define, cell, *args, **options)[1]]


def test_a_rotation_is_written_as_a_person_would_compute_it() -> None:
    found = lines(rotary.rope, (7, 3), 37.0, head_dim=8)
    assert found[-2:] == [
        "theta = base^(-2 · k / width) = 10,000^(-2 · 3 / 8) = 0.001",
        f"rotation[y, x] = sin(p · theta) = sin(37 · 0.001) = {math.sin(0.037):.7g}",
    ]


def test_a_lane_that_does_not_rotate_is_that_of_the_identity() -> None:
    assert lines(rotary.rope, (7, 7), 37.0, head_dim=8, rotary_dim=4) == ["rotation = eye(head_dim) = eye(8) = 1"]
    assert lines(rotary.rope, (7, 3), 37.0, head_dim=8, rotary_dim=4) == ["rotation = eye(head_dim) = eye(8) = 0"]


def test_what_a_definition_calls_is_followed() -> None:
    steps = follow(rotary.xpos, (3, 3), 37.0, head_dim=8)[1]
    assert {step.function for step in steps} == {"rope", "xpos"}
    # lanes 2 and 3 are pair 1: (2/8 + 0.4) / 1.4
    assert "zeta = (2 · k / head_dim + gamma) / (1 + gamma) = (2 · 1 / 8 + 0.4) / (1 + 0.4) = 0.4642857" in map(
        str, steps
    )


def test_the_part_of_a_vector_that_one_axis_makes_is_followed_in_its_own_lanes() -> None:
    """Of 16 lanes in two runs of 8, lane 11 is lane 3 of axis 1: its first cosine but one, cos(2 / 10000^(2/8))."""
    found = lines(additive.sinusoidal_nd, (0, 11), np.array([[37, 2]]), d_model=16)
    assert f"out[:, cos_lane] = [cos(p · omega) for p in pos] = [cos(2 · 0.1)] = {math.cos(0.2):.7g}" in found
    assert not any("37" in line for line in found)
    # "sum" adds both axes in the same lane
    both = lines(additive.hierarchical, (0, 3), np.array([[37, 2]]), d_model=8)
    assert sum("cos(37 · 0.1)" in line for line in both) == sum("cos(2 · 0.1)" in line for line in both) == 1


def test_sums_show_their_largest_terms_first() -> None:
    step = follow(bias.sandwich, (0, 0, 0), AT, KEY, n_heads=1, width=4)[1][-1]
    first, total, equation = step.sentences()
    # cos(5) = 0.2836622 and cos(5 / 100) = 0.9987503
    assert first == "fsum(waves) has 2 terms; the largest are term 1: 0.9987503; term 0: 0.2836622."
    assert total == "The sum is 1.282412."
    assert equation.endswith("= 1.282412 · 1 / (8 · (0 + 1)) = 0.1603016.")


def test_a_branch_that_is_not_taken_is_left_out() -> None:
    def distance(q_pos: int, k_pos: int) -> str:
        return lines(distances.self_extend_distance, (0, 0), np.array([q_pos]), np.array([k_pos]), window=4, group=2)[
            -1
        ]

    assert distance(5, 4) == "out[row, column] = back(i, j) = back(5, 4) = 1"
    far = lines(distances.self_extend_distance, (0, 0), np.array([20]), np.array([2]), window=4, group=2)
    assert "i // group - j // group + window - window // group = 20 // 2 - 2 // 2 + 4 - 4 // 2 = 11" in far
    assert distance(2, 20) == "out[row, column] = -back(j, i) = -back(20, 2) = -11"


def test_an_error_of_the_definition_is_raised() -> None:
    with pytest.raises(IndexError, match="position 9 is outside 0..3"):
        follow(additive.learned, (0, 0), np.array([9]), d_model=2, max_len=4, weight=np.zeros((4, 2)))


FUNCTIONS = {name: getattr(np, name) for name in ("cos", "sin", "exp", "log", "log1p", "sqrt", "floor", "sign")}
FUNCTIONS |= {"math": math, "abs": abs, "max": max, "min": min, "int": int, "float": float, "__builtins__": {}}


def recompute(step: Step) -> float | None:
    """What the numbers that are written give; None where names of vectors or of other functions are left."""
    code = re.sub(r"(?<=\d),(?=\d{3})", "", step.numbers)
    try:
        found = eval(code, dict(FUNCTIONS))
    except (NameError, TypeError, AttributeError, SyntaxError):
        return None
    found = found[0] if isinstance(found, list) and len(found) == 1 else found
    return float(found) if isinstance(found, (int, float)) else None


def asked(name: str) -> Iterator[tuple[Any, tuple[int, ...], tuple[Any, ...], dict[str, Any]]]:
    """A trained encoding's definition, and a few elements of its result."""
    card = posenc.card(name)
    encoding = strategies.randomise(card.cls(**card.example).resolve(22), 5).eval()
    options, define, head_dim = defined.mathematics(encoding), defined.find(name), getattr(encoding, "head_dim", 8)
    axes = (lambda p: np.pad(p[:, None], ((0, 0), (0, encoding.n_axes - 1)))) if encoding.n_axes > 1 else lambda p: p
    heads = getattr(encoding, "n_heads", 1)
    if card.family == "additive":
        yield from ((define, (0, lane), (axes(np.array([5])),), options) for lane in (0, 3, encoding.d_model - 1))
    elif card.family == "embedded":
        x = np.ones((1, encoding.d_model))
        yield from ((define, (0, lane), (x, axes(np.array([5]))), options) for lane in (0, 3, encoding.d_model - 1))
    elif card.family == "rotary" and name in defined.READ_TOKENS:
        text = of_text(define, strategies.normal(6, encoding.d_model).numpy(), np.arange(6))
        yield from ((define, (5, 0, lane, lane), text, options) for lane in (0, 3, head_dim - 1))
    elif card.family == "rotary" and name != "pope":
        p = axes(np.array([5]))[0].astype(float) if encoding.n_axes > 1 else 5.0
        options |= {"head_dim": head_dim}
        first = (0,) * (np.ndim(define(p, **options)[0]) - 2)
        yield from ((define, (*first, lane, lane), (p,), options) for lane in (0, 3, head_dim - 1))
    elif name == "grape_ap":
        text = of_text(define, strategies.normal(6, encoding.d_model).numpy(), np.arange(6))
        given = (np.ones((heads, 6, 6)), *text, np.tril(np.ones((6, 6), bool)))
        yield from ((define, (head, 5, 2), given, options) for head in (0, heads - 1))
    elif name in defined.READ_TOKENS:
        text = of_text(define, np.ones((6, encoding.d_model)), np.arange(6))
        yield from ((define, (head, 5, 2), text, options) for head in (0, heads - 1))
    elif card.family in ("bias", "content_bias"):
        ones = (np.ones((heads, 1, head_dim)),) * 2 if card.family == "content_bias" else ()
        at = axes(np.array([5])), axes(np.array([2]))
        yield from ((define, (head, 0, 0), (*ones, *at), options) for head in (0, heads - 1))


@pytest.mark.parametrize("name", posenc.names())
def test_steps_lead_to_the_number_and_each_is_what_its_numbers_give(name: str) -> None:
    for define, cell, args, options in asked(name):
        out, steps = follow(define, cell, *args, **options)
        plain = define(*args, **options)
        wanted = float((plain[0] if isinstance(plain, tuple) else plain)[cell])
        assert float((out[0] if isinstance(out, tuple) else out)[cell]) == wanted
        assert steps[-1].value == pytest.approx(wanted, rel=1e-12, abs=1e-12)
        for step in steps:
            if (found := recompute(step)) is not None:
                assert found == pytest.approx(float(step.value), rel=1e-4, abs=1e-5), str(step)
