import json

import pytest
from typer.testing import CliRunner

from posenc import registry
from posenc.cli import app
from posenc.cli.listing import order_families, share_width


def invoke(*arguments, **environment):
    return CliRunner().invoke(app, ["list", *arguments], env=environment)


def test_every_encoding_stands_on_one_line_with_its_summary():
    lines = [" ".join(line.split()) for line in invoke().stdout.splitlines()]
    for name in registry.names():
        assert lines.count(f"{name} {registry.card(name).summary}") == 1


def test_a_pattern_chooses():
    lines = invoke("r*").stdout.splitlines()
    shown = [line.split()[0] for line in lines if line.startswith("  ")]
    assert sorted(shown) == registry.names("r*")
    assert "rope" in shown
    assert "alibi" not in shown


def test_json_is_the_cards():
    cards = json.loads(invoke("--json").stdout)
    assert [card["name"] for card in cards] == registry.names()
    wanted = {"name", "family", "paper", "year", "aliases", "traits", "parameters", "cost", "used_by"}
    assert all(wanted <= set(card) for card in cards)
    assert next(c for c in cards if c["name"] == "alibi")["year"] == 2021


@pytest.mark.parametrize("columns", ["80", "120"])
def test_the_table_cuts_no_word(columns):
    table = invoke("--table", COLUMNS=columns).stdout
    assert max(map(len, table.splitlines())) <= int(columns)
    words = table.replace("(", " ").replace(")", " ").replace(",", " ").split()
    for name in registry.names():
        card = registry.card(name)
        said = " ".join((card.name, card.family.replace("_", " "), str(card.year), *card.used_by))
        for word in said.replace("(", " ").replace(")", " ").split():
            assert word in words


def test_the_wide_table_has_a_column_for_the_family():
    assert invoke("--table", COLUMNS="120").stdout.split()[:3] == ["name", "family", "paper"]
    assert invoke("--table", COLUMNS="80").stdout.split()[:3] == ["name", "(family)", "paper"]


def test_the_nearest_names_are_found_by_alias_and_by_class():
    assert "'rotary', which is another name of rope." in invoke("rotary").stderr
    assert "another name of transformer_xl." in invoke("TransformerXL").stderr
    assert "The nearest: sinusoidal." in invoke("sinusodal").stderr
    nothing = invoke("zzzzzz")
    assert nothing.exit_code == 1
    assert "`posenc list` shows all of them." in nothing.stderr


def test_families_come_in_the_order_in_which_a_model_meets_them():
    cards = [registry.card(name) for name in ("t5", "rope", "learned", "alibi")]
    ordered = order_families(cards)
    assert list(ordered) == ["additive", "rotary", "bias"]
    assert [card.name for card in ordered["bias"]] == ["t5", "alibi"]


def test_width_goes_to_the_fullest_column():
    columns = [("a", "b"), ("one two three", "four")]
    assert share_width(columns, 80) == [1, 13]
    assert share_width(columns, 10) == [1, 8]
    assert share_width(columns, 3) == [1, 5]  # no narrower than the longest word
