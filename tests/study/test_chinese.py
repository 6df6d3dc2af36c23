"""The report in Chinese: no English sentence is left, and the numbers are those of the English one."""

import re
from collections import Counter

import pytest

from posenc import languages
from posenc.study.report import render
from posenc.study.sentences import listed
from study.page import Page
from study.samples import EXACT, REAL, make_run, make_study, make_task_study

FEW = {name: REAL[name] for name in ("nope", "rope", "alibi")}
ADDED = {"addition:all_reversed@abacus": {"learned": EXACT["copy"]["nope"]}, "addition:all_reversed": EXACT["copy"]}
SIZES = ("64x2x4", "128x2x4")


def broken(run, cells):
    """Return an interrupted study with failed, missing and undertrained cells."""
    problem = {
        "encoding": "rope",
        "task": "copy",
        "size": SIZES[0],
        "seed": 1,
        "message": "RuntimeError: out of memory",
    }
    cells = [cell | {"undertrained": cell["encoding"] == "alibi"} for cell in cells[:-4]]
    return run | {"status": "interrupted", "problems": [problem], "elapsed_s": 40_000}, cells


STUDIES = {
    "text": make_study(),
    "one seed": make_study(seeds=(0,), noise=0.5),
    "one encoding": make_study({"rope": REAL["rope"]}),
    "gains": make_study({"nope": REAL["nope"], "t5": (2.6, 2.5, 2.3, 2.45, 2.9)}),
    "no difference": make_study(dict.fromkeys(REAL, (2.3,) * 5)),
    "tasks": make_task_study(),
    "text and tasks": make_task_study(EXACT | ADDED, FEW),
    "two sizes": make_task_study(EXACT, FEW, SIZES),
    "broken": broken(*make_task_study(EXACT, FEW, SIZES)),
    "all undertrained": broken(*make_study({"alibi": REAL["alibi"]})),
    "no cells": (make_run(list(REAL), status="interrupted"), []),
    "empty": ({}, []),
}


def shown(study, language):
    """Return the texts of a study's page that a reader sees or hears, in document order."""
    with languages.use(language):
        page = Page(render(*study))
    texts = [text for tag, text in page.texts if tag not in ("style", "script")]
    read = ("aria-label", "data-copied", "data-failed")
    return texts + [attrs[key] for _, attrs in page.elements for key in read if key in attrs]


def strings(data):
    """Yield the strings in a study's record, which stay as they are: names, machine, command, cards."""
    if isinstance(data, dict):
        yield from strings(list(data.values()))
    elif isinstance(data, list):
        for item in data:
            yield from strings(item)
    elif isinstance(data, str):
        yield data


@pytest.mark.parametrize("name", STUDIES)
def test_no_english_sentence_is_left(name):
    run = {key: value for key, value in STUDIES[name][0].items() if key != "tasks"}  # facts of tasks are translated
    names = sorted({"posenc study", *strings(run)}, key=len, reverse=True)
    known = re.compile("|".join([*map(re.escape, names), r"[A-Z]\w+ et al\. \d{4}"]))
    words = re.compile(r"[A-Za-z][\w'-]+(?:[ ,;:]+[A-Za-z][\w'-]+){2,}")
    assert [text for text in shown(STUDIES[name], "zh") if words.search(known.sub("·", text))] == []


@pytest.mark.parametrize("name", STUDIES)
def test_the_numbers_are_those_of_the_english_report(name):
    english, chinese = (
        Counter(re.findall(r"\d+(?:,\d{3})*(?:\.\d+)?", " ".join(shown(STUDIES[name], language))))
        for language in languages.LANGUAGES
    )
    assert chinese == english
    assert len(english) > (0 if name == "empty" else 10)


def test_the_page_names_its_language_and_has_a_font_for_it():
    for language, code in (("en", "en"), ("zh", "zh-CN")):
        with languages.use(language):
            page = render(*STUDIES["text"])
        assert Page(page).all("html") == [{"lang": code}]
    assert "Noto Sans CJK SC" in page


def test_a_list_of_three_has_no_comma_of_english():
    with languages.use("zh"):
        assert "".join(listed([("nope",), ("rope",), ("alibi",)])) == "nope、rope、alibi"
