"""Every translated text has an entry in the tables, every entry is used, and both name the same values."""

import ast
import json
import re
import string
from pathlib import Path

import pytest

from posenc import languages
from posenc.languages import tr

SOURCE = Path(languages.__file__).parent
ROOMS = ("figures", "study", "explorer")
CALLS = ("tr",)  # functions whose first argument is a text


def texts_of_python(room):
    """Return the literal first arguments of the calls that translate."""
    for path in sorted((SOURCE / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in CALLS:
                assert isinstance(node.args[0], ast.Constant), f"{path}:{node.lineno}: the text is not a literal"
                yield node.args[0].value


TEXTS = {"figures": lambda: texts_of_python("figures")}


def entries(room):
    return json.loads((SOURCE / "zh" / f"{room}.json").read_text(encoding="utf-8"))


def names(template):
    return sorted({name for _, name, _, _ in string.Formatter().parse(template) if name is not None})


@pytest.mark.parametrize("room", TEXTS)
def test_no_text_is_untranslated_and_no_entry_is_stale(room):
    assert set(TEXTS[room]()) == set(entries(room))


@pytest.mark.parametrize("room", ROOMS)
def test_translations_have_the_same_values_and_are_chinese(room):
    for english, chinese in entries(room).items():
        assert names(english) == names(chinese), english
        assert re.search(r"[\u4e00-\u9fff\uff1a]", chinese), english  # \uff1a is the Chinese colon


def test_no_two_tables_translate_a_text_differently():
    """`tr` reads all of them together."""
    found = {}
    for english, chinese in (pair for room in ROOMS for pair in entries(room).items()):
        assert found.setdefault(english, chinese) == chinese, english


def test_a_language_holds_inside_its_block_only(monkeypatch):
    monkeypatch.setattr(
        languages, "table", lambda language: {"head {head}": "第 {head} 个头"} if language == "zh" else {}
    )
    with languages.use("zh"):
        assert tr("head {head}", head=3) == "第 3 个头"
        assert tr("not in the table, {head}", head=3) == "not in the table, 3"
        with languages.use("en"):
            assert tr("head {head}", head=3) == "head 3"
    assert tr("head {head}", head=3) == "head 3"


def test_an_unknown_language_is_refused_with_those_that_there_are():
    with pytest.raises(ValueError, match=r"one of en, zh; got 'fr'"), languages.use("fr"):
        pass
