"""Why a cell has its value, over the whole registry: what is written is computed again, from the written numbers."""

import math
import re
from typing import Any

import numpy as np
import pytest

import defined
import posenc
import strategies
from posenc import measure
from posenc.defined import of_text
from posenc.explorer import cells, views
from posenc.explorer.cells.profile import Draws, explain_score
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
BY_CODE = {"pope"}  # whose definition makes scores, and no lanes


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
    if name not in BY_CODE or view.id != "heat":
        assert found.result == pytest.approx(value, rel=1e-9, abs=1e-9)
    assert all(step.endswith(".") and "\n" not in step for step in found.steps)
    # the number that a reader sees in the steps is that of the picture
    numbers = [read(n) for step in found.steps for n in re.findall(rf"-?{DIGITS}", step)]
    assert any(n == pytest.approx(value, rel=1e-6, abs=1e-12) for n in numbers)


def read(written: str) -> float:
    return float(written.replace(",", ""))


LENGTH = 22
ASKED = {
    "heat": {"length": LENGTH, "unit": "lane", "part": "cos", "head": 0},
    "bias": {"length": LENGTH, "draw": "matrix", "head": 0, "ahead": False},
    "profile": {"length": LENGTH, "content": "same", "draws": 1},
}
EMBED, TURN, JOIN = (
    [n for n in posenc.names() if posenc.card(n).family in families]
    for families in (("additive", "embedded"), ("rotary",), ("bias", "content_bias"))
)


def trained(name: str, **options: Any) -> Any:
    """The registry's example with all that it learns drawn from N(0, 1): no table of zeros, no plane along lanes."""
    card = posenc.card(name)
    return strategies.randomise(card.cls(**{**card.example, **options}).resolve(LENGTH), 5).eval()


def explained(view: str, encoding: Any, row: float, column: float, **asked: Any) -> Any:
    found = cells.explain(view, encoding, "f", {**ASKED[view], **asked}, row, column)
    assert found.result == pytest.approx(found.value, rel=1e-8, abs=1e-8)
    return found


@pytest.mark.parametrize("name", EMBED)
def test_a_trained_lane_is_explained_and_is_that_of_the_definition(name: str) -> None:
    encoding = trained(name)
    axes = (lambda p: np.pad(p[:, None], ((0, 0), (0, encoding.n_axes - 1)))) if encoding.n_axes > 1 else lambda p: p
    x = np.zeros((LENGTH, encoding.d_model)) + (posenc.card(name).family == "embedded")
    wanted = defined.embedded(name, encoding, x, axes(np.arange(LENGTH)))
    for pos, lane in ((0, 0), (5, 1), (LENGTH - 1, encoding.d_model - 1)):
        assert explained("heat", encoding, pos, lane).value == pytest.approx(wanted[pos, lane], rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    "name", [n for n in TURN if n not in {"liere", "pope", "query_temperature", "prope", "gta", *defined.READ_TOKENS}]
)
def test_a_trained_turn_is_explained_and_is_that_of_the_definition(name: str) -> None:
    encoding, pos = trained(name), 9
    first, _ = (lanes.numpy() for lanes in pairs_of(encoding))
    query = np.isin(np.arange(encoding.head_dim), first).astype(float)
    at = np.eye(1, encoding.n_axes)[0] * pos if encoding.n_axes > 1 else float(pos)
    matrix = defined.matrices(name, encoding, np.array([at]), 0, encoding.head_dim)[0]
    for head in range(encoding.n_kv_heads or 1):
        wanted = (matrix[head] if matrix.ndim == 3 else matrix) @ query
        for lane in (0, 3, encoding.head_dim - 1):
            found = explained("heat", encoding, pos, lane, head=head)
            assert found.value == pytest.approx(wanted[lane], rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("name", JOIN)
def test_a_trained_bias_is_explained_and_is_that_of_the_definition(name: str) -> None:
    encoding = trained(name)
    heads, pos = getattr(encoding, "n_heads", 1), np.arange(LENGTH)
    at = np.pad(pos[:, None], ((0, 0), (0, encoding.n_axes - 1))) if encoding.n_axes > 1 else pos
    ones = (np.ones((heads, LENGTH, encoding.head_dim)),) * 2 if posenc.card(name).family == "content_bias" else ()
    define, text = defined.find(name), strategies.normal(1, LENGTH, 16)[0].numpy()
    places = of_text(define, text, pos) if encoding.reads_x else (*ones, at, at)
    wanted = define(*places, **defined.mathematics(encoding))
    for q_pos, k_pos, head in ((0, 0, 0), (5, 0, heads - 1), (3, 11, 0), (LENGTH - 1, 2, heads - 1)):
        found = explained("bias", encoding, q_pos, k_pos, head=head)
        assert found.value == pytest.approx(wanted[head, q_pos, k_pos], rel=1e-9, abs=1e-9)


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", [n for n in posenc.names() if n not in ("cpvt", "graphormer")])
@pytest.mark.parametrize("content", ["same", "independent"])
def test_one_draw_of_a_trained_score_is_worked_out(name: str, content: str) -> None:
    """With one draw the score that the steps arrive at is that of the picture, which the definitions give."""
    encoding = trained(name)
    for distance in (0, 8):
        found = explained("profile", encoding, 0, distance, content=content)
        assert found.steps[-1].startswith("The mean of the draws is shown: (")
        first, rest = re.findall(rf"-?{DIGITS}", found.steps[-1])[:2]
        assert (read(first), read(rest)) == (pytest.approx(found.value, rel=1e-6), 0)
        explained("profile", encoding, 0, distance, content=content, draws=4)


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
def test_other_options_are_explained_too(name: str, options: dict[str, Any]) -> None:
    encoding, asked = trained(name, **options), 0
    for view, (row, column) in {"heat": (5, 0), "bias": (5, 3), "profile": (0, 8)}.items():
        if view == "heat" and name in BY_CODE:
            continue
        if views.VIEWS[view].refuses(encoding) is None:
            explained(view, encoding, row, column)
            asked += 1
        if view == "heat" and hasattr(encoding, "frequencies") and name != "grape_m":  # learned planes are no lanes
            explained(view, encoding, row, column, unit="pair", part="angle")
    assert asked


def test_the_first_draw_of_many_is_explained_with_its_own_text() -> None:
    """Texts come in several batches; a query, a key, and then the texts are what `profile` draws."""
    fox, asked = trained("fox"), {"content": "same", "draws": 64, "q_pos": 400}
    with Draws() as seen:
        measure.profile(fox, [400], content="same", n_draws=64, q_pos=400)
    assert len(seen.found) > 2
    text = seen.found[1][0, 1:].numpy() @ fox.weight[0].detach().numpy() + fox.b[0].item()
    wanted = -np.logaddexp(0, -text).sum()
    (bias,) = (s for s in explain_score(fox, "f", asked, 400, 0).steps if s.startswith("With the bias"))
    assert float(re.findall(rf"-{DIGITS}", bias)[0]) == pytest.approx(wanted, rel=1e-6)


def test_a_text_is_as_long_as_in_the_picture() -> None:
    """Where a draw fills no whole block of the generator, its last numbers depend on how many there are."""
    query = {"a": "fox", "a.d_model": "5", "a.n_heads": "2", "length": "9"}
    for way in ({"draw": "matrix"}, {}, {"ahead": "true"}):
        for row, column, value in picks(views.VIEWS["bias"].answer({**query, **way})):
            _check("fox", views.VIEWS["bias"], {**query, **way}, (row, column), value)
