"""The explorer's texts in Chinese: the table, and that nothing in the code is left out of it."""

import json
import re
from types import SimpleNamespace

import pytest

from explorer_client import make
from explorer_texts import STATIC, code_of, of_python, texts
from posenc import measure, registry
from posenc.explorer import export, launch

TABLE = STATIC.parents[1] / "zh" / "explorer.json"
LITERAL = re.compile(r"""(?P<before>[^\n"`]{0,9})(?P<quote>["`])(?P<text>(?:(?!(?P=quote))[^\\\n]|\\.)*)(?P=quote)""")
SENTENCE = re.compile(r"[A-Za-z]{2,}(?:,? [a-z]{2,}){2,}")
NO_TEXTS = {"input, select, textarea", "select, input, button"}  # selectors


@pytest.mark.parametrize("path", sorted(STATIC.glob("*.js")), ids=lambda path: path.name)
def test_every_sentence_of_a_module_is_translated(path):
    left = [
        found["text"]
        for found in LITERAL.finditer(code_of(path))
        if SENTENCE.search(found["text"]) and not found["before"].endswith("tr(") and found["text"] not in NO_TEXTS
    ]
    assert left == []


def test_a_text_of_the_server_names_the_format_of_every_value():
    """The page recognises it by them: a text, or a number."""
    assert [text for text in of_python() if re.search(r"\{\w*\}", text)] == []


def test_names_are_not_texts():
    """The page translates whole labels: an encoding or a method that is called like one would lose its name."""
    names = {*registry.names(), *(name for name in measure.METHODS if name != "none")}
    assert names & texts() == set()


def test_the_server_sends_the_table():
    _, client = make(loaded=False)
    answer = client.get("/api/language/zh")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == json.loads(TABLE.read_text(encoding="utf-8"))
    assert client.get("/api/language/fr").status_code == 404


def test_a_language_on_the_command_line_is_in_the_address_and_in_the_file(monkeypatch, tmp_path):
    said = []
    monkeypatch.setattr(launch, "_Web", lambda *settings: SimpleNamespace(run=lambda sockets: None))
    monkeypatch.setattr(launch.Server, "_load", lambda self: None)
    for target, end in (("alibi?view=bias", "/?view=bias&lang=zh"), ("alibi", "/?lang=zh")):
        launch.explore(target, say=said.append, port=0, browser=False, language="zh")
        assert said[-1].split()[4].endswith(end)
    monkeypatch.setattr(export, "collect", lambda target: {})
    monkeypatch.setattr(export, "shell", lambda: f"{export.FRAMES} {export.STATE}")
    launch.export("alibi", tmp_path / "page.html", "zh")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == '{} "lang=zh"'
