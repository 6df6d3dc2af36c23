"""The Chinese pages: each text has a translation with the same code, links and numbers, and none is stale."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("sphinx")
pofile = pytest.importorskip("babel.messages.pofile")

DOCS = Path(__file__).parents[1] / "docs"
CATALOGUES = DOCS / "locale" / "zh_CN" / "LC_MESSAGES"
PAGES = sorted(str(path.relative_to(CATALOGUES).with_suffix("")) for path in CATALOGUES.rglob("*.po"))


def read(path):
    with path.open("rb") as file:
        return {message.id: message for message in pofile.read_po(file) if message.id}


@pytest.fixture(scope="module")
def templates(tmp_path_factory):
    """Extract the texts of the pages as `make translations` does."""
    out = tmp_path_factory.mktemp("texts")
    asked = [sys.executable, "-m", "sphinx", "-W", "-q", "-c", DOCS / "locale", "-d", out / "trees", "-b", "gettext"]
    subprocess.run([*asked, DOCS, out / "pages"], check=True)
    return out / "pages"


def test_every_page_has_a_catalogue(templates):
    assert sorted(str(path.relative_to(templates).with_suffix("")) for path in templates.rglob("*.pot")) == PAGES


@pytest.mark.parametrize("page", PAGES)
def test_no_text_is_untranslated_or_stale(page, templates):
    texts, translations = read(templates / f"{page}.pot"), read(CATALOGUES / f"{page}.po")
    assert set(translations) == set(texts), "run `make translations` and translate what it left empty"
    assert [text for text, found in translations.items() if not found.string or found.fuzzy] == []


def marks(text):
    """Return what a translation keeps: code, targets of links, numbers."""
    code = re.findall(r"`[^`]+`", text)
    rest = re.sub(r"`[^`]+`", "", text)
    return Counter(code + re.findall(r"\]\([^)]+\)|\$[^$]+\$|\d[\d,.]*\d|\d", rest))


@pytest.mark.parametrize("page", PAGES)
def test_translations_keep_code_links_and_numbers(page):
    for text, found in read(CATALOGUES / f"{page}.po").items():
        assert marks(found.string) == marks(text), text
        prose = re.sub(r"`[^`]+`|\]\([^)]+\)", "", text)
        if re.search(r"\b[a-z]+ [a-z]+ [a-z]+\b", prose):
            assert re.search(r"[\u4e00-\u9fff]", found.string), text


def test_search_finds_pairs_of_characters_and_latin_words(monkeypatch):
    monkeypatch.syspath_prepend(DOCS / "_ext")
    search = pytest.importorskip("chinese_search").PairSearch({})
    assert sorted(search.split("缓存区，RoPE 的")) == ["RoPE", "存区", "缓存"]
    assert search.language_name == "English"  # the stemmer that the page loads
    assert search.js_stemmer_rawcode == "english-stemmer.js"


@pytest.mark.parametrize(
    ("language", "shown", "link"),
    [("en", "中文", "zh/guide/why.html"), ("zh-CN", "English", "../guide/why.html")],  # as Sphinx spells them
)
def test_a_page_leads_to_itself_in_the_other_language(language, shown, link):
    template = pytest.importorskip("jinja2").Template(
        (DOCS / "_templates" / "language.html").read_text(encoding="utf-8")
    )
    page = template.render(language=language, pagename="guide/why", pathto=lambda name, _: name)
    assert f'href="{link}"' in page
    assert f">{shown}</a>" in page
