"""Every translated text has an entry in the tables, every entry is used, and both name the same values."""

import ast
import json
import re
import string
from pathlib import Path

import pytest
from jinja2 import Environment, nodes

from explorer_texts import texts as texts_of_the_explorer
from posenc import languages
from posenc.languages import tr
from posenc.study.published import PUBLISHED
from posenc.study.tasks.task import TASKS

SOURCE = Path(languages.__file__).parent
ROOMS = ("figures", "study", "explorer")
CALLS = ("tr", "said")  # functions whose first argument is a text
CITATIONS = r"([A-Z]\w+ (et al\.|and [A-Z]\w+) \d{4}(; |$))+"  # "Chi et al. 2022"; the same in every language


def texts_of_python(room):
    """Return the literal first arguments of the calls that translate."""
    for path in sorted((SOURCE / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in CALLS:
                assert isinstance(node.args[0], ast.Constant), f"{path}:{node.lineno}: the text is not a literal"
                yield node.args[0].value


def texts_of_template(path):
    """Return the literal first arguments of `tr` in a template of Jinja."""
    for call in Environment().parse(path.read_text(encoding="utf-8")).find_all(nodes.Call):
        if getattr(call.node, "name", "") == "tr":
            assert isinstance(call.args[0], nodes.Const), f"{path}:{call.lineno}: the text is not a literal"
            yield call.args[0].value


def texts_of_study():
    """Return the texts of the study's code and report, and of the data that the report shows."""
    yield from texts_of_python("study")
    yield from texts_of_template(SOURCE / "study" / "report.html.j2")
    for outcome in PUBLISHED:
        yield outcome.claim
        yield from () if re.fullmatch(CITATIONS, outcome.source) else (outcome.source,)
    for task in TASKS.values():
        yield from (task.length, task.format)


TEXTS = {
    "figures": lambda: texts_of_python("figures"),
    "study": texts_of_study,
    "explorer": texts_of_the_explorer,
}


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
        assert re.findall(r"</?\w+>", english) == re.findall(r"</?\w+>", chinese), english
        assert re.search(r"[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef]", chinese), english  # or Chinese punctuation


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


def test_only_tables_are_read(monkeypatch, tmp_path):
    (tmp_path / "zh" / ".ipynb_checkpoints").mkdir(parents=True)
    (tmp_path / "zh" / "a.json").write_text('{"one": "一"}', encoding="utf-8")
    for stray in (".DS_Store", "a.json~", "._a.json", "a.json.orig"):
        (tmp_path / "zh" / stray).write_bytes(b"\xff\x00")
    monkeypatch.setattr(languages.resources, "files", lambda package: tmp_path)
    assert languages.table.__wrapped__("zh") == {"one": "一"}


def test_an_unknown_language_is_refused_with_those_that_there_are():
    with pytest.raises(ValueError, match=r"one of en, zh; got 'fr'"), languages.use("fr"):
        pass
