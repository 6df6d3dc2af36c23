import json

import pytest
from click.testing import CliRunner

from posenc import registry
from posenc.cli import app
from posenc.cli.show import read_arguments
from posenc.families import Additive


class Ramp(Additive):
    """Add the position to every lane.

    Args:
        d_model: Lanes of a token,
            all of them.
        slope: Of the ramp.

    Raises:
        ValueError: Never.
    """

    def __init__(self, *, d_model, slope=1.0):
        super().__init__()
        self.d_model, self.slope = d_model, slope

    def vectors(self, pos):
        return (pos[..., None] * self.slope).expand(*pos.shape, self.d_model).float()


class Demanding(Additive):
    def __init__(self, *, colour):
        super().__init__()


def invoke(*arguments, **environment):
    done = CliRunner().invoke(app, ["show", *arguments], env={"COLUMNS": "80"} | environment)
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


@pytest.mark.parametrize("name", registry.names())
def test_every_fact_of_the_card_is_shown(name):
    card = registry.card(name)
    shown = " ".join(invoke(name, COLUMNS="200").stdout.split())
    facts = (card.formula, card.paper, str(card.year), card.arxiv or "", *card.aliases, *card.used_by)
    for fact in (*facts, card.cost, card.as_dict()["example"], *card.options):
        assert " ".join(fact.split()) in shown
    assert ("learned nothing" if card.parameters == "0" else f"learned {card.parameters} numbers") in shown


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "alibi",
            "scores depend only on the distance; the sign of the distance has no effect; scores fall with distance; ",
        ),
        (
            "alibi",
            "accepts fractional positions; does not depend on the sequence length positions distinct",
        ),
        ("alibi", "distinct: at least 65,536 in float32, 257 in bfloat16, 2,049 in float16; no last one learned"),
        ("learned", "distinct: 128 in every dtype; the last is 127 learned"),
        ("learned", "a shift is no linear map; whole positions only;"),
        ("learned", "numbers (4,096 in this example)"),
        ("rope", "a shift is one linear map;"),
    ],
)
def test_the_traits_are_told_in_words(name, said):
    assert said in " ".join(invoke(name, COLUMNS="400").stdout.split())


@pytest.mark.parametrize(
    ("name", "plan", "line"),
    [
        ("v2pe", "v2pe", "posenc.RoPE(head_dim=64), at posenc.positions.v2pe(parts, step=1/16)"),
        (
            "mrope",
            "circle_rope",
            "posenc.MRoPE(head_dim=64), at posenc.positions.circle_rope(parts, radius=10, alpha=0.5)",
        ),
        ("mrope", "hope_video", "posenc.MRoPE(head_dim=64, layout='time_unrotated'), at posenc.positions.videorope("),
    ],
)
def test_a_plan_stands_with_the_line_that_creates_it(name, plan, line):
    shown = invoke(name, COLUMNS="400").stdout
    assert f"{plan}  posenc.create('{plan}', head_dim=64), which is {line}" in shown


@pytest.mark.parametrize("name", registry.names())
def test_json_is_the_card_and_the_picture(name):
    shown = json.loads(invoke(name, "--json").stdout)
    picture = shown.pop("picture")
    assert shown == json.loads(json.dumps(registry.card(name).as_dict()))
    assert picture["kind"] in {"none", "vectors", "scores", "bias", "values"}
    assert all(len(series["values"]) == len(picture["x"]) for series in picture["series"])


def test_what_the_docstring_says_of_an_option_stands_beside_it():
    shown = invoke("rope", COLUMNS="200").stdout
    assert "base=10000.0  10,000 in the paper; larger for longer contexts." in shown
    assert "head_dim  Dimensions of one head. Required." in shown


def test_an_alias_shows_what_the_name_shows():
    assert invoke("roformer").stdout == invoke("rope").stdout


def test_learned_numbers_are_said_to_be_fresh_and_fixed_ones_are_not():
    assert "as freshly initialised" in invoke("t5").stdout
    assert "as freshly initialised" not in invoke("alibi").stdout


def test_nope_is_a_sentence():
    shown = invoke("nope").stdout
    assert shown.endswith("There is nothing to draw, because this encoding uses no positions.\n")
    assert "args" not in shown


def test_a_class_without_a_card_shows_its_docstring_and_options():
    shown = invoke(f"{__name__}:Ramp", COLUMNS="200").stdout
    assert "Add the position to every lane." in shown
    assert "d_model  Lanes of a token, all of them. Required." in shown
    assert "slope=1.0  Of the ramp." in shown
    assert "drawn for Ramp(d_model=64, slope=1.0)" in shown


def test_a_class_that_nobody_can_guess_arguments_for_is_shown_without_a_picture():
    done = invoke(f"{__name__}:Demanding", COLUMNS="200")
    assert done.exit_code == 0
    assert "It has no docstring." in done.stdout
    assert "Demanding needs colour" in done.stdout


def test_arguments_end_where_the_section_ends():
    assert read_arguments(Ramp.__doc__) == {
        "d_model": "Lanes of a token, all of them.",
        "slope": "Of the ramp.",
    }
    assert read_arguments("Nothing here.") == {}
