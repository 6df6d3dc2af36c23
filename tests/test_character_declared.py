"""Declared properties against measured ones, and the pages and tables that show them."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest

import command_line
import pages
import posenc
from posenc import character, registry
from posenc.character import CAP, measure
from posenc.cli import table


def test_measurements_are_plain_json() -> None:
    found = measure(posenc.Sinusoidal(d_model=4))
    assert json.loads(json.dumps(found.as_dict()))["distinct"]["float32"] == CAP
    assert set(found.as_dict()) == {*registry.TRAITS, "step", "residual", "per_token", "per_score"}
    assert set(found.traits()) == set(registry.TRAITS)


@pytest.mark.sample(10)
@pytest.mark.parametrize("name", posenc.names())
def test_declared_properties_are_the_measured_ones(name: str) -> None:
    assert character.check(posenc.card(name)) == []


@pytest.fixture(scope="module")
def all_measured() -> dict[str, character.Character]:
    """The measured properties of every encoding's example, which take long."""
    cards = [posenc.card(name) for name in posenc.names()]
    return dict(zip(posenc.names(), table._measure(cards), strict=True))


@pytest.fixture
def _measured_once(all_measured: dict[str, character.Character], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_measure", lambda cards: [all_measured[card.name] for card in cards])


@pytest.mark.slow
@pytest.mark.usefixtures("_measured_once")
def test_the_page_of_encodings_is_up_to_date() -> None:
    fresh = pages.generate.PAGES["encodings.md"]()
    assert pages.differences((pages.DOCS / "encodings.md").read_text(), fresh) == [], "run: python docs/generate.py"


def words(text: str) -> set[str]:
    return set(re.findall(r"[^\s(),]+", text))


@pytest.mark.slow
@pytest.mark.usefixtures("_measured_once")
@pytest.mark.parametrize("columns", ["80", "120", "200"])
def test_the_table_cuts_no_word(columns: str) -> None:
    printed = command_line.posenc("list", "--table", COLUMNS=columns).stdout
    assert max(map(len, printed.splitlines())) <= int(columns)
    for name in registry.names():
        card = registry.card(name)
        shown = " ".join((card.name, card.family.replace("_", " "), str(card.year), *card.used_by))
        assert words(shown) <= words(printed)


WRONG = {
    "distinct": {"float32": CAP, "bfloat16": 250, "float16": 2049},
    "longest": 127,
    "real_positions": False,
    "smooth": False,
    "bounded": True,
    "shift_invariant": False,
    "symmetric": False,
    "recency": None,
    "linear_shift": False,
    "length_dependent": True,
    "learned": False,  # equals 0, but is not a number
    "cost": "token",
}


@pytest.mark.parametrize("trait", registry.TRAITS)
def test_a_wrong_or_missing_declaration_is_one_sentence(trait: str) -> None:
    card = posenc.card("alibi")
    others = {name: value for name, value in card.traits.items() if name != trait}
    wrong, measured = WRONG[trait], card.traits[trait]
    for traits, words in (
        (others | {trait: wrong}, f"declares {trait}={wrong!r}; measured {measured!r}. Fix one of them."),
        (others, f"does not declare {trait}; measured {measured!r}. Declare it."),
    ):
        assert character.check(dataclasses.replace(card, traits=traits)) == [f"alibi: {words}"]


def test_an_unknown_declaration_is_one_sentence() -> None:
    card = posenc.card("alibi")
    (sentence,) = character.check(dataclasses.replace(card, traits={**card.traits, "colour": True}))
    assert sentence.startswith("alibi: 'colour' is not a trait. The traits are distinct, longest, ")
