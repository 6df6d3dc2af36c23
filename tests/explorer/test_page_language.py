"""The page in Chinese in a real browser: every part switches and back, and nothing stays in English."""

import json
import re
import subprocess
import sys

import pytest

from explorer_client import running
from explorer_texts import STATIC

TABLE = json.loads((STATIC.parents[1] / "zh" / "explorer.json").read_text(encoding="utf-8"))
CHINESE = re.compile(r"[\u4e00-\u9fff]")
ENGLISH = re.compile(r"[A-Za-z]{2,}(?: [A-Za-z]{2,}){2,}")
NAMES = ("dual chunk attention",)
# Visible texts and those for screen readers, without what is data: formulas, code, names in lists, papers, own texts.
TEXTS = """() => {
    const data = 'pre, code, .formula, option, textarea, script, style, noscript, [lang="en"]';
    const found = [];
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walk.nextNode()) if (!walk.currentNode.parentElement.closest(data)) found.push(walk.currentNode.textContent);
    for (const name of ['title', 'aria-label', 'placeholder', 'aria-roledescription', 'label'])
        for (const node of document.querySelectorAll(`[${name}]:not(optgroup)`)) found.push(node.getAttribute(name));
    return [...found, document.title].map((text) => text.trim()).filter(Boolean); }"""
PARTS = {
    "sections": "#sections",
    "tabs": "#tabs",
    "title": "h1",
    "help": "#help",
    "controls": "#panel",
    "readout": ".readout",
    "caption": "#stage figcaption",
    "axis": ".axes",
    "notes": ".notes",
    "buttons": ".copy",
    "theme": "#theme-button",
    "drawer": "#drawer-button",
    "skip": ".skip",
}
VIEWS = [
    "view=heat&a=rope&b=alibi&v.length=20",
    "view=heat&a=sinusoidal&v.unit=pair&v.length=20",
    "view=points&a=rope&v.lanes=pca",
    "view=wavelengths&a=grape_m",
    "view=profile&a=rope&b=alibi&v.length=64",
    "view=similarity&a=sinusoidal&v.length=64",
    "view=bias&a=alibi&v.draw=matrix&v.length=64",
    "view=distances&a=rerope&v.length=64",
    "view=distances&a=sinusoidal&v.length=64",
    "view=precision&a=rope",
    "view=model&model=gemma-3-27b",
    "view=model&model=llama-4-scout",
    "view=extension",
    "view=attention",
]
CELLS = [
    "heat&at=0,3,5",
    "heat&v.unit=pair&at=0,3,5",
    "similarity&at=0,3,5",
    "wavelengths&at=0,0,5",
    "profile&at=0,0,5",
]


def read(tab):
    return {part: tab.page.locator(where).first.text_content() for part, where in PARTS.items()}


def english(texts):
    for name in NAMES:
        texts = [text.replace(name, "") for text in texts]
    return [text for text in texts if ENGLISH.search(text)]


def press(tab, name):
    tab.after(lambda: tab.page.locator("#language-button").get_by_text(name, exact=True).click())


def test_the_button_switches_every_part_and_back(tab):
    tab.open("view=heat&a=rope&a.base=500000&v.length=20")
    before, look = read(tab), tab.look()
    assert not any(map(CHINESE.search, before.values()))
    press(tab, "中文")
    chinese = read(tab)
    assert [part for part, text in chinese.items() if not CHINESE.search(text)] == []
    assert tab.page.get_attribute("html", "lang") == "zh-CN"
    assert tab.page.locator("#a-base").input_value() == "500000"
    assert "lang=zh" in tab.page.url
    assert "a.base=500000" in tab.page.url
    tab.page.reload()
    tab.page.wait_for_selector("#stage[data-drawn]:not([aria-busy])")
    assert read(tab) == chinese
    press(tab, "English")
    assert read(tab) == before
    assert tab.look() == look
    assert tab.page.get_attribute("html", "lang") == "en"
    tab.assert_calm()


def test_the_language_is_the_readers_first_one_until_another_is_chosen(new_tab):
    for locale, lang in (("zh-CN", "zh-CN"), ("fr-FR", "en")):
        tab = new_tab(locale=locale).open("view=heat&v.length=20")
        assert tab.page.get_attribute("html", "lang") == lang
        press(tab, {"en": "中文", "zh-CN": "English"}[lang])
        chosen = tab.page.get_attribute("html", "lang")
        assert chosen != lang
        tab.open("view=heat&v.length=20")  # the address without the language
        assert tab.page.get_attribute("html", "lang") == chosen
        tab.open(f"view=heat&v.length=20&lang={lang[:2]}")
        assert tab.page.get_attribute("html", "lang") == lang
        tab.assert_calm()


@pytest.mark.sample(1)
@pytest.mark.parametrize("query", ["view=extension", "view=model", "view=profile&a=rope&v.length=20&at=0,0,5"])
def test_a_page_that_was_switched_is_one_that_was_opened_in_chinese(tab, query):
    tab.open(query)
    press(tab, "中文")
    tab.page.wait_for_timeout(500)  # the explanation of a value comes after the picture
    switched = tab.page.evaluate(TEXTS)
    tab.open(f"{query}&lang=zh")
    tab.page.wait_for_timeout(500)
    assert switched == tab.page.evaluate(TEXTS)


@pytest.mark.sample(3)
@pytest.mark.parametrize("query", VIEWS)
def test_no_sentence_of_a_view_stays_in_english(tab, query):
    tab.open(f"{query}&lang=zh")
    assert english(tab.page.evaluate(TEXTS)) == []
    assert CHINESE.search(tab.page.locator("#help").inner_text())


@pytest.mark.sample(1)
@pytest.mark.parametrize("query", CELLS)
def test_no_sentence_of_an_explanation_stays_in_english(tab, query):
    tab.open(f"view={query}&a=rope&v.length=20&lang=zh")
    tab.page.wait_for_selector(".cell .result")
    assert english(tab.page.evaluate(TEXTS)) == []
    steps = tab.page.locator(".cell li").all_inner_texts()
    assert len([step for step in steps if CHINESE.search(step)]) >= 3


def test_messages_of_the_server_are_translated(tab):
    tab.open("view=bias&a=alibi&a.n_heads=x&lang=zh")
    assert tab.said == ["explore：n_heads 必须是整数；得到的是 'x'。"]


def test_an_option_is_named_as_its_control_is(tab):
    """The table also has `window` and `row`, as words of other sentences."""
    tab.open("view=distances&a=rerope&a.window=x&lang=zh")
    assert tab.said == ["explore：window 必须是整数；得到的是 'x'。"]


@pytest.mark.parametrize("lang", ["fr", "toString", "__proto__"])
def test_an_unknown_language_in_the_address_is_ignored(tab, lang):
    tab.open(f"view=heat&v.length=20&lang={lang}")
    assert tab.page.get_attribute("html", "lang") == "en"
    assert tab.page.locator("#language-button").inner_text() == "中文"
    tab.assert_calm()


def test_a_name_is_not_looked_up_among_the_properties_of_objects(tab):
    tab.open("view=heat&v.length=20&lang=zh")
    script = "async () => (await import('/static/language.js')).translate('constructor: positions as points')"
    assert tab.page.evaluate(script) == "constructor：以点表示位置"


def sample(template, number, word):
    """Return what a template makes of a number where it has a format, and else of a word."""
    return re.sub(r"\{\w+(:s)?[^}]*\}", lambda found: word if found[1] else number, template)


def test_every_text_that_the_server_makes_is_recognised(tab):
    """A text is translated by its own template, also if another one has the same form."""
    tab.open("view=heat&v.length=20&lang=zh")
    made = {text: sample(text, "1,234.5", "xyz") for text in TABLE if re.search(r"\{\w+:", text)}
    kinds = {text: dict(re.findall(r"\{(\w+)(:s)?[^}]*\}", text)) for text in made}
    wanted = {
        text: re.sub(r"\{(\w+)\}", lambda found, text=text: "xyz" if kinds[text][found[1]] else "1,234.5", TABLE[text])
        for text in made
    }
    script = """async (texts) => {
        const { translate } = await import('/static/language.js');
        return Object.fromEntries(Object.entries(texts).map(([template, text]) => [template, translate(text)])); }"""
    assert tab.page.evaluate(script, made) == wanted
    assert len(wanted) > 100


@pytest.mark.slow
def test_an_exported_page_switches_without_a_server(new_tab, tmp_path):
    path = tmp_path / "page.html"
    subprocess.run([sys.executable, "-m", "posenc", "explore", "rope", "--export", str(path)], check=True)
    tab = new_tab(base=path.as_uri()).open()
    before = read(tab)
    press(tab, "中文")
    assert [part for part, text in read(tab).items() if not CHINESE.search(text)] == []
    tab.after(lambda: tab.page.click("#tab-profile"))
    assert english(tab.page.evaluate(TEXTS)) == []
    tab.after(lambda: tab.page.click("#tab-heat"))
    press(tab, "English")
    assert read(tab) == before
    tab.assert_calm()
    assert new_tab(base=path.as_uri(), locale="zh-CN").open().page.get_attribute("html", "lang") == "zh-CN"


@pytest.mark.slow
def test_a_page_that_was_saved_in_chinese_opens_in_chinese(tab, new_tab, tmp_path):
    tab.open("view=heat&a=rope&v.length=20&lang=zh")
    copy = new_tab(base=tab.save("保存为单个网页", tmp_path).as_uri()).open()
    fewer = {"sections", "buttons"}  # the file holds one section, and needs no button to save it
    assert {**read(copy), **dict.fromkeys(fewer)} == {**read(tab), **dict.fromkeys(fewer)}
    press(copy, "English")
    assert copy.page.locator("h1").inner_text() == "Heat map"
    copy.assert_calm()


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 900, 1440])
@pytest.mark.parametrize("query", ["view=heat&a=rope&b=sinusoidal", "view=model", "view=extension"])
def test_nothing_scrolls_sideways(new_tab, query, width):
    tab = new_tab(width, 844).open(f"{query}&lang=zh")
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
    tops = tab.page.eval_on_selector_all(
        ".top > :not(nav)", "all => all.filter(n => n.offsetWidth).map(n => n.offsetTop)"
    )
    assert max(tops) - min(tops) < 20  # the header's buttons stand in one row
    tab.assert_calm()


@pytest.mark.slow
def test_the_maps_of_a_study_are_in_chinese(new_tab, tmp_path):
    sizes = ["--train-len", "8", "--test-len", "8,16", "--seeds", "1", "--steps", "2", "--encodings", "rope,alibi"]
    command = [sys.executable, "-m", "posenc", "study", *sizes, "--out", str(tmp_path / "s")]
    subprocess.run(command, check=True, capture_output=True)
    with running(str(tmp_path / "s"), "--no-browser", "--port", "0") as (_, address):
        for draw in ("map", "distance", "encodings", "profile", "profiles"):
            tab = new_tab(base=address).open(f"v.draw={draw}&lang=zh")
            assert tab.said == []
            assert english(tab.page.evaluate(TEXTS)) == []
            assert CHINESE.search(tab.page.locator("#stage figcaption .soft").first.inner_text())
