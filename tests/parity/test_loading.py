"""Files of rules: what is refused, and how stacks are chosen."""

import json
from importlib.resources import files

import pytest

from posenc.parity import table
from posenc.parity.loading import choose, known, parse

NAME = "vllm-0.33.0.json"
TEXT = files("posenc.parity").joinpath("rules", NAME).read_text("utf-8")


def changed(change):
    """Return a file of rules after a change of its contents."""
    fields = json.loads(TEXT)
    change(fields)
    return json.dumps(fields)


WRONG = {
    "a word at the top": (lambda f: f.update(kind="own"), "unknown 'kind'"),
    "no types": (lambda f: f.pop("types"), "types is missing"),
    "a parameter": (lambda f: f["parameters"].update(theta2={}), "unknown 'theta2'"),
    "a place": (lambda f: f["parameters"]["theta"].update(at=["above"]), r"parameters\.theta\.at must be one of own"),
    "what is skipped": (lambda f: f["parameters"]["theta"].update(skip="zero"), "skip must be one of absent"),
    "a default": (lambda f: f["parameters"]["theta"].update({"else": "guess"}), "else must be one of max_len"),
    "a formula": (lambda f: f["types"]["yarn"].update(formula="yarn2"), r"types\.yarn\.formula must be one of plain"),
    "a gain": (lambda f: f["types"]["yarn"].update(gain=["two"]), r"types\.yarn\.gain must be one of attention_factor"),
    "what a type reads": (lambda f: f["types"]["yarn"].update(reads=["betas"]), r"types\.yarn\.reads must be one of"),
    "a word in a type": (lambda f: f["types"]["yarn"].update(sources=""), r"types\.yarn: unknown 'sources'"),
    "no source": (lambda f: f["parameters"]["theta"].pop("source"), r"parameters\.theta: source is missing"),
    "how it is known": (lambda f: f["parameters"]["theta"].update(seen="guessed"), "seen must be one of read, run"),
    "a kind": (lambda f: f.update(notes="none"), "notes must be"),
    "a gate": (lambda f: f["length"].update(gate="maybe"), r"length\.gate must be one of refuses"),
    "another version": (lambda f: f.update(version="0.34.0"), r"belong to vllm-0\.34\.0\.json"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_file_is_refused_with_its_name_and_place(case):
    change, message = WRONG[case]
    with pytest.raises(ValueError, match=message) as error:
        parse(changed(change), NAME)
    assert str(error.value).startswith(f"parity: {NAME}")
    assert parse(TEXT, NAME).name == "vllm@0.33.0"


def test_what_is_no_json_is_refused():
    with pytest.raises(ValueError, match=r"^parity: vllm-0\.33\.0\.json is not JSON"):
        parse(TEXT[:-3], NAME)


def test_stacks_are_chosen_by_name_major_version_and_version():
    assert [rules.name for rules in choose("hf5,vllm@0.33.0")] == ["hf@5.23.0", "vllm@0.33.0"]
    assert [choose(name)[0].name for name in ("hf", "hf4", "hf@4.57.6")] == ["hf@5.23.0", "hf@4.57.6", "hf@4.57.6"]
    assert {rules.name for rules in choose(None)} == set(known())
    for wrong in ("foo", "hf6", "vllm@0.1", ""):
        with pytest.raises(ValueError, match=r"Known: hf@5\.23\.0"):
            choose(wrong)


def test_adding_a_version_is_adding_a_file():
    newer = parse(changed(lambda f: f.update(version="0.34.0")), "vllm-0.34.0.json")
    assert (newer.stack, newer.version) == ("vllm", "0.34.0")


@pytest.mark.parametrize("name", sorted(known()))
def test_every_rule_has_a_source(name):
    for note in known()[name].every_note():
        assert len(note.source) > 10
        assert note.seen in ("read", "run", "issue", "unknown")


def test_the_table_has_a_cell_for_each_stack():
    titles, *rows = table.rows(choose(None))
    assert len(rows) > 20
    assert all(len(row) == len(titles) and all(row) for row in rows)
    by_subject = {row[0]: dict(zip(titles, row, strict=True)) for row in rows}
    assert by_subject["attention_factor"]["SGLang 0.5.23"] == "not read"
    assert by_subject["original (yarn)"]["mlx-lm 0.32.2"] == "parameters; missing: 4096"
    assert by_subject["LongRoPE's list"]["mlx-lm 0.32.2"] == "always the long one"
