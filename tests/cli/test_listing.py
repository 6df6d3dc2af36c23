import json
from dataclasses import replace
from itertools import chain

import pytest
from click.testing import CliRunner

from posenc import registry
from posenc.character import Character, measure
from posenc.cli import app, table
from posenc.cli.listing import order_families, order_needs
from posenc.cli.table import share_width


def invoke(*arguments, **environment):
    return CliRunner().invoke(app, ["list", *arguments], env=environment)


def test_every_encoding_stands_on_one_line_with_its_summary():
    lines = [" ".join(line.split()) for line in invoke().stdout.splitlines()]
    for name in registry.names():
        stands = f"{name} {registry.card(name).summary}"
        assert sum((line + " ").startswith(stands + " ") for line in lines) == 1


def test_a_pattern_chooses():
    lines = invoke("r*").stdout.splitlines()
    shown = [line.split()[0] for line in lines if line.startswith("  ")]
    assert sorted(shown) == registry.names("r*")
    assert "rope" in shown
    assert "alibi" not in shown


def shown(*arguments):
    return [line.split()[0] for line in invoke(*arguments).stdout.splitlines() if line.startswith("  ")]


def test_a_need_chooses():
    assert shown("--for", "graph") == ["graphormer"]
    assert {"rope", "mrope", "learned", "binary"} & set(shown("--for", "text")) == {"rope", "mrope", "learned"}
    assert shown("--for", "image", "swin*") == ["swin", "swin_v2"]
    nothing = invoke("--for", "graph", "ro*")
    assert nothing.exit_code == 1
    assert "no encoding whose name matches 'ro*' is for graph (the nodes of a graph)." in nothing.stderr


def test_plans_stand_on_the_line_of_their_encoding():
    lines = [line for line in invoke("--for", "video").stdout.splitlines() if "Plans: " in line]
    plans = {line.split()[0]: line.partition("Plans: ")[2] for line in lines}
    assert plans == {"mrope": "videorope, hope_video, mmrope, ilrope, omnirope, circle_rope.", "rope": "v2pe."}
    assert "'videorope', which is a plan of mrope: `posenc show mrope`" in invoke("videorope").stderr


def test_needs_are_a_closed_list():
    assert "--for must be one of text, long, image, video, graph, camera, textbook; got images" in str(
        invoke("--for", "images").exception
    )


def test_encodings_stand_under_the_need_that_they_serve_first_and_toys_last():
    lines = invoke().stdout.splitlines()
    groups = [line.partition(":")[0] for line in lines if not line.startswith(" ")]
    assert groups == ["text", "long", "image", "video", "graph", "camera", "textbook"]
    toys = lines[lines.index("textbook: teaching examples that no model uses") + 1 :]
    assert [line.split()[0] for line in toys] == ["binary", "integer", "normalised", "sine"]


def test_json_is_the_cards():
    cards = json.loads(invoke("--json").stdout)
    assert [card["name"] for card in cards] == registry.names()
    wanted = {"name", "family", "paper", "year", "aliases", "traits", "parameters", "cost", "used_by", "serves"}
    assert all(wanted <= set(card) for card in cards)
    assert next(c for c in cards if c["name"] == "alibi")["year"] == 2021


def test_json_has_the_declared_traits():
    (alibi,) = json.loads(invoke("alibi", "--json").stdout)
    assert alibi["traits"] == dict(registry.card("alibi").traits)
    assert alibi["traits"]["distinct"]["bfloat16"] == 257


@pytest.mark.sample(1)
@pytest.mark.parametrize(("columns", "n_tables"), [("80", 3), ("120", 3), ("160", 2)])
def test_the_character_stands_on_one_line_in_each_of_its_tables(columns, n_tables):
    lines = [line.split() for line in invoke("--table", "[at]*", COLUMNS=columns).stdout.splitlines()]
    found = [line[1:] for line in lines if line[:1] == ["alibi"]][1:]  # the first table has the facts
    assert len(found) == n_tables - 1
    reach, form = (
        ["65,536+", "257", "2,049", "none", "yes", "0", "19+4/pair"],
        ["yes", "0.00", "no", "yes", "yes", "yes", "-"],
    )
    assert list(chain(*found)) == [*reach, *form, "no"]


def test_the_wide_table_has_a_column_for_the_family():
    assert invoke("--table", "a*", COLUMNS="120").stdout.split()[:3] == ["name", "family", "paper"]
    assert invoke("--table", "a*", COLUMNS="80").stdout.split()[:3] == ["name", "(family)", "paper"]


def test_the_table_is_measured_and_not_declared(monkeypatch):
    found = measure(registry.card("nope").cls())
    monkeypatch.setattr("posenc.character.measure", lambda encoding: planted)
    planted = Character(**{**found.as_dict(), "recency": True, "linear_shift": False, "residual": 0.25})
    facts, reach, form = table.tabulate([registry.card("nope")])
    assert facts.rows[0][:3] == ("nope", "none", "Haviv et al. 2022")
    assert reach.rows == [("nope", "1", "1", "1", "none", "yes", "0", "0")]
    assert form.rows == [("nope", "yes 0.00", "yes", "yes", "yes", "yes", "no 0.25", "no")]


def test_what_cannot_be_measured_is_a_dash(monkeypatch):
    nothing = dict.fromkeys(measure(registry.card("nope").cls()).as_dict())
    monkeypatch.setattr("posenc.character.measure", lambda encoding: Character(**{**nothing, "learned": 0}))
    _, reach, form = table.tabulate([registry.card("nope")])
    assert reach.rows == [("nope", "-", "-", "-", "none", "-", "0", "-")]
    assert form.rows == [("nope", *"-------")]


def test_the_nearest_names_are_found_by_alias_and_by_class():
    assert "'rotary', which is another name of rope." in invoke("rotary").stderr
    assert "another name of transformer_xl." in invoke("TransformerXL").stderr
    assert "The nearest: sinusoidal" in invoke("sinusodal").stderr
    nothing = invoke("zzzzzz")
    assert nothing.exit_code == 1
    assert "`posenc list` shows all of them." in nothing.stderr


def test_families_come_in_the_order_in_which_a_model_meets_them():
    cards = [registry.card(name) for name in ("t5", "rope", "learned", "alibi")]
    ordered = order_families(cards)
    assert list(ordered) == ["additive", "rotary", "bias"]
    assert [card.name for card in ordered["bias"]] == ["t5", "alibi"]


def test_what_does_not_say_its_need_comes_last():
    cards = [registry.card(name) for name in ("rope", "graphormer")]
    ordered = order_needs([replace(cards[0], serves=()), cards[1]])
    assert {need: [card.name for card in members] for need, members in ordered.items()} == {
        "graph": ["graphormer"],
        "other": ["rope"],
    }


def test_width_goes_to_the_fullest_column():
    columns = [("a", "b"), ("one two three", "four")]
    assert share_width(columns, 80) == [1, 13]
    assert share_width(columns, 10) == [1, 8]
    assert share_width(columns, 3) == [1, 5]  # no narrower than the longest word
