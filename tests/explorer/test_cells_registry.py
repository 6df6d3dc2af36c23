"""Why a cell has its value, over the whole registry: what is written is computed again, from the written numbers."""

import math
import re
from typing import Any

import numpy as np
import pytest

import defined
import posenc
import strategies
from posenc.explorer import cells, views
from posenc.explorer.frames import Frame
from posenc.explorer.views import scores
from posenc.explorer.views.view import View, read_view
from posenc.measure.asking import pairs_of

WAYS: dict[str, list[dict[str, str]]] = {
    "heat": [{}, {"unit": "pair"}, {"unit": "pair", "part": "sin"}, {"unit": "pair", "part": "angle"}],
    "similarity": [{}, {"cosine": "true"}],
    "distances": [{}],
    "bias": [{}, {"ahead": "true"}, {"draw": "matrix"}],
    "profile": [{"draws": "5"}, {"draws": "5", "content": "independent"}],
    "wavelengths": [{}],
}
DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?(?:e[-+]?\d+)?)"
WRITTEN = rf"(?:{DIGITS}|cos|sin|log|exp|erf|relu|atan2\(-?{DIGITS}; |[√π]|[-+·/^() ])+"
# "1 + 2 = 3", or "lane 4, 1 · 2: 2" in a sum; what follows may not go on with the last number
EQUATION = re.compile(rf"({WRITTEN})(?: = |: )(-?{DIGITS})(?![.,]?\d|e[-+]?\d| ?[+·/^(]| - )")
# where the last step computes nothing: rows of tables, digits, and what position does not touch
LOOKED_UP = re.compile(
    r"which is learned\.$|the position itself|That digit|at all positions|keeps it|stays still|between: F"
)
FUNCTIONS = {"sqrt": math.sqrt, "relu": lambda x: max(x, 0.0), "atan": math.atan2, "__builtins__": {}} | {
    name: getattr(math, name) for name in ("cos", "sin", "log", "exp", "erf", "pi")
}


def picks(frame: Frame) -> list[tuple[float, float, float]]:
    """Return row, column and value of a few cells."""
    random = np.random.default_rng(3)
    if frame.header["kind"] == "matrix":
        about = frame.header["matrix"]
        values, rows, columns = (frame.arrays[about[key]] for key in ("array", "rows", "columns"))
        places = zip(random.integers(len(rows), size=3), random.integers(len(columns), size=3), strict=True)
        return [(rows[i], columns[j], values[i, j]) for i, j in places]
    found = []
    for place, one in enumerate(frame.header["series"][:2]):
        x, y = frame.arrays[one["x"]], frame.arrays[one["array"]]
        found += [(float(place), x[i], y[i]) for i in random.integers(len(x), size=2)]
    return found


@pytest.mark.parametrize("name", posenc.names())
def test_every_explanation_ends_in_the_number_of_the_picture(name: str) -> None:
    for id_, ways in WAYS.items():
        view = views.VIEWS[id_]
        for way in ways:
            query = {"a": name, "length": "33", **way}
            try:
                frame = view.answer(query)
            except ValueError:
                continue
            for row, column, value in picks(frame):
                _check(name, view, query, (row, column), value)


def _check(name: str, view: View, query: dict[str, str], cell: tuple[float, float], value: float) -> None:
    subject, asked = read_view(view, query)
    found = cells.explain(view.id, subject.encoding, "f", scores.settle(view.id, subject, asked), *cell)
    if math.isnan(value):  # a pair that stands still
        assert found.value == math.inf
        return
    assert found.value == pytest.approx(value, rel=1e-9, abs=1e-9)
    assert found.told is None or found.told == pytest.approx(value, rel=1e-9, abs=1e-9)
    assert found.told is not None
    assert recompute(found)
    assert all(step.endswith(".") and "\n" not in step for step in found.steps)
    # the number that a reader sees in the steps is that of the picture
    numbers = [read(n) for step in found.steps for n in re.findall(rf"-?{DIGITS}", step)]
    assert any(n == pytest.approx(value, rel=1e-6, abs=1e-12) for n in numbers)


def read(written: str) -> float:
    return float(written.replace(",", ""))


def half_unit(written: str) -> float:
    """Half of what the last digit counts: how far the number may be from the one that was meant."""
    size = abs(read(written))
    return 0.005 if "," in written else 0.5 * 10.0 ** (math.floor(math.log10(size)) - 6) if size else 0.0


def evaluate(expression: str) -> tuple[float, float] | None:
    """What is written, and how far rounding of the numbers in it may lead; None where nothing is to be computed."""
    expression = expression.replace("atan2", "atan").replace(";", ",")
    numbers = re.findall(DIGITS, expression)
    plain = re.sub(rf"√({DIGITS})", r"√(\1)", expression).replace("2π", "2·π")
    for sign, word in {"·": "*", "^": "**", "√": "sqrt", "π": "pi"}.items():
        plain = plain.replace(sign, word)
    plain = re.sub(DIGITS, "{}", plain)
    if not re.search(r"[*/]|\w\(|\S +[-+] ", plain) or re.search(r"\} *\(", plain):
        return None  # a number alone, or with words in brackets behind it
    values = [read(n) for n in numbers]

    def at(points: list[float]) -> float:
        return float(eval(plain.format(*map(repr, points)).strip(), FUNCTIONS))

    try:
        value = at(values)
        moved = [at([v + half_unit(n) * (m == i) for m, v in enumerate(values)]) for i, n in enumerate(numbers)]
    except (SyntaxError, TypeError, NameError):
        return None
    return value, sum(abs(m - value) for m in moved)


def recompute(found: Any) -> bool:
    """Compute all that is written in the steps, and say whether one of the results is the cell's value."""
    reached = False
    for place, step in enumerate(found.steps):
        for expression, result in EQUATION.findall(step):
            if (computed := evaluate(expression)) is not None:
                value, slack = computed
                assert abs(value - read(result)) <= slack + half_unit(result) + 1e-12, (expression, value, result)
                reached |= abs(value - found.value) <= slack + 1e-9 * abs(value) + 1e-12
        if "terms; the largest are" in step:
            total = check_sum(found.steps[place:])
            reached |= abs(read(total) - found.value) <= half_unit(total) + 1e-12
    return reached or any(LOOKED_UP.search(step) for step in found.steps)


def check_sum(steps: list[str]) -> str:
    """The terms that are named, and what the others add up to, make the sum that is told next."""
    terms = re.findall(rf": (-?{DIGITS})(?=[;.])", steps[0])
    others = re.findall(rf"The other (?:[\d,]+ add up to|one is) (-?{DIGITS})", steps[1])
    total = re.search(rf"sum is (-?{DIGITS})\.", " ".join(steps[1:3]))
    assert total is not None, steps[:3]
    parts = [*terms, *others]
    slack = sum(map(half_unit, [*parts, total[1]]))
    assert sum(map(read, parts)) == pytest.approx(read(total[1]), abs=slack + 1e-12, rel=0)
    return total[1]


LENGTH = 22
ASKED = {
    "heat": {"length": LENGTH, "unit": "lane", "part": "cos", "head": 0},
    "bias": {"length": LENGTH, "draw": "matrix", "head": 0, "ahead": False},
    "profile": {"length": LENGTH, "content": "same", "draws": 1},
}
SIDES = ("query", "key")
EMBED, TURN, JOIN = (
    [n for n in posenc.names() if posenc.card(n).family in families]
    for families in (("additive", "embedded"), ("rotary",), ("bias", "content_bias"))
)


def trained(name: str, **options: Any) -> Any:
    """The registry's example with all that it learns drawn from N(0, 1): no table of zeros, no plane along lanes."""
    card = posenc.card(name)
    return strategies.randomise(card.cls(**{**card.example, **options}).resolve(LENGTH), 5).eval()


def told(view: str, encoding: Any, row: float, column: float, **asked: Any) -> Any:
    found = cells.explain(view, encoding, "f", {**ASKED[view], **asked}, row, column)
    assert found.told == pytest.approx(found.value, rel=1e-9, abs=1e-9)
    assert recompute(found), found.steps
    assert not any("own code" in step for step in found.steps)
    return found


@pytest.mark.parametrize("name", EMBED)
def test_a_trained_lane_is_told_and_is_that_of_the_definition(name: str) -> None:
    encoding = trained(name)
    axes = (lambda p: np.pad(p[:, None], ((0, 0), (0, encoding.n_axes - 1)))) if encoding.n_axes > 1 else lambda p: p
    x = np.zeros((LENGTH, encoding.d_model)) + (posenc.card(name).family == "embedded")
    wanted = defined.embedded(name, encoding, x, axes(np.arange(LENGTH)))
    for pos, lane in ((0, 0), (5, 1), (LENGTH - 1, encoding.d_model - 1)):
        assert told("heat", encoding, pos, lane).value == pytest.approx(wanted[pos, lane], rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("name", [n for n in TURN if n not in ("liere", "pope", "query_temperature")])
def test_a_trained_turn_is_told_and_is_that_of_the_definition(name: str) -> None:
    encoding, pos = trained(name), 9
    first, _ = (lanes.numpy() for lanes in pairs_of(encoding))
    query = np.isin(np.arange(encoding.head_dim), first).astype(float)
    at = np.eye(1, encoding.n_axes)[0] * pos if encoding.n_axes > 1 else float(pos)
    matrix = defined.matrices(name, encoding, np.array([at]), 0, encoding.head_dim)[0]
    for head in range(len(matrix) if matrix.ndim == 3 else 1):
        wanted = (matrix[head] if matrix.ndim == 3 else matrix) @ query
        for lane in (0, 3, encoding.head_dim - 1):
            found = told("heat", encoding, pos, lane, head=head)
            assert found.value == pytest.approx(wanted[lane], rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("name", JOIN)
def test_a_trained_bias_is_told_and_is_that_of_the_definition(name: str) -> None:
    encoding = trained(name)
    heads, pos = getattr(encoding, "n_heads", 1), np.arange(LENGTH)
    at = np.pad(pos[:, None], ((0, 0), (0, encoding.n_axes - 1))) if encoding.n_axes > 1 else pos
    ones = (np.ones((heads, LENGTH, encoding.head_dim)),) * 2 if posenc.card(name).family == "content_bias" else ()
    places = (strategies.normal(1, LENGTH, 16)[0].numpy(),) if name == "fox" else (*ones, at, at)
    wanted = defined.find(name)(*places, **defined.mathematics(encoding))
    for q_pos, k_pos, head in ((0, 0, 0), (5, 0, heads - 1), (3, 11, 0), (LENGTH - 1, 2, heads - 1)):
        found = told("bias", encoding, q_pos, k_pos, head=head)
        assert found.value == pytest.approx(wanted[head, q_pos, k_pos], rel=1e-9, abs=1e-9)


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", [n for n in posenc.names() if n not in ("cpvt", "graphormer")])
@pytest.mark.parametrize("content", ["same", "independent"])
def test_one_draw_of_a_trained_score_is_worked_out(name: str, content: str) -> None:
    """With one draw the score that the steps arrive at is that of the picture, which the definitions give."""
    encoding = trained(name)
    for distance in (0, 8):
        found = told("profile", encoding, 0, distance, content=content)
        assert found.steps[-1].startswith("The mean of the draws is shown: (")
        first, rest = re.findall(rf"-?{DIGITS}", found.steps[-1])[:2]
        check_parts(found.steps)
        if name in (*EMBED, *TURN):
            assert all(
                any(step.startswith("Lane ") and f"of the {who}" in step for step in found.steps) for who in SIDES
            )
        assert (read(first), read(rest)) == (pytest.approx(found.value, rel=1e-6), 0)
        told("profile", encoding, 0, distance, content=content, draws=4)


VARIANTS = [(name, options) for name in posenc.names() for options in posenc.card(name).variants] + [
    ("alibi", {"sides": "key", "precision": "falcon-bfloat16"}),
    ("dape", {"encoding": "t5"}),
    ("dynamic_position_bias", {"log_distance": True, "norm": False, "activation": "silu"}),
    ("hierarchical", {"combine": "concat", "axes": ("sinusoidal", "sine")}),
    ("query_temperature", {"law": "llama4", "original_max_len": 4}),
    ("tupe", {"untie_cls": False}),
]


@pytest.mark.sample(12)
@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=str)
def test_other_options_are_told_too(name: str, options: dict[str, Any]) -> None:
    encoding, asked = trained(name, **options), 0
    for view, (row, column) in {"heat": (5, 0), "bias": (5, 3), "profile": (0, 8)}.items():
        if views.VIEWS[view].refuses(encoding) is None:
            told(view, encoding, row, column)
            asked += 1
        if view == "heat" and hasattr(encoding, "frequencies"):
            told(view, encoding, row, column, unit="pair", part="angle")
    assert asked


def check_parts(steps: list[str]) -> None:
    """What is joined into a score has been arrived at before."""
    for place, step in enumerate(steps):
        if step.startswith(("With the bias", "The score becomes")):
            before = set(re.findall(rf"(?:=|is|:) (-?{DIGITS})(?=[.,;]?(?: |$))", " ".join(steps[:place])))
            joined = re.findall(rf"-?{DIGITS}", step.rpartition(" = ")[0])
            assert {n for n in joined if "." in n} <= before, (step, before)


def test_a_text_is_as_long_as_in_the_picture() -> None:
    """Where a draw fills no whole block of the generator, its last numbers depend on how many there are."""
    query = {"a": "fox", "a.d_model": "5", "a.n_heads": "2", "length": "9"}
    for way in ({"draw": "matrix"}, {}, {"ahead": "true"}):
        for row, column, value in picks(views.VIEWS["bias"].answer({**query, **way})):
            _check("fox", views.VIEWS["bias"], {**query, **way}, (row, column), value)
