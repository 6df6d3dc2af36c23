"""The page in a real browser: it opens, its controls change the pictures, its state stays, its keys work."""

import json
import re
from urllib.parse import parse_qs, urlsplit
from urllib.request import urlopen
from xml.etree import ElementTree

import pytest

from explorer_client import CONFIG, Tab


@pytest.fixture(scope="module")
def _shared(server, browser):
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    yield Tab(page, server)
    page.close()


@pytest.fixture
def tab(_shared):
    """One tab for all flows, without what the one before has stored or said."""
    yield _shared
    _shared.page.evaluate("localStorage.clear()")
    _shared.page.goto("about:blank")
    _shared.errors, _shared.strangers = [], []


def more(*case):
    """A case of `make check` only."""
    return pytest.param(*case, marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def start(server, browser):
    page = browser.new_page()
    page.goto(server)
    page.wait_for_selector("#stage[data-drawn]", timeout=60_000)
    page.close()
    with urlopen(f"{server}api/start") as answer:
        return json.load(answer)


def test_the_first_page_draws_an_encoding_and_asks_nobody_else(tab):
    tab.open()
    assert tab.page.locator("h1").inner_text() == "Heat map"
    assert tab.page.locator("#encoding-a").input_value() == "rope"
    cells = tab.page.evaluate("""() => { const c = document.querySelector('canvas.cells');
        return [c.width, c.height, new Set(c.getContext('2d').getImageData(0, 0, c.width, c.height).data).size]; }""")
    assert cells[0] == 64
    assert cells[1] > 100
    assert cells[2] > 50  # many colours, so no empty picture
    tab.assert_calm()


VIEWS = ["heat", "points", "wavelengths", "profile", "similarity", "bias", "distances", "precision"]


def test_the_views_named_here_are_those_of_encodings(start):
    assert sorted(VIEWS) == sorted(view["id"] for view in start["views"] if view["of_encoding"])


@pytest.mark.slow
@pytest.mark.parametrize("view", VIEWS)
def test_every_view_opens_for_an_encoding_that_fits(tab, start, view):
    fitting = [encoding["name"] for encoding in start["encodings"] if view in encoding["views"]]
    name = next(known for known in ("rope", "alibi", *fitting) if known in fitting)
    tab.open(f"view={view}&a={name}")
    assert tab.page.get_attribute(f"#tab-{view}", "aria-selected") == "true"
    assert tab.said == []
    assert tab.look()
    tab.assert_calm()


@pytest.mark.slow
@pytest.mark.parametrize("family", ["additive", "embedded", "content_bias", "score_map", "piecewise", "values", "none"])
def test_an_encoding_of_every_family_opens_at_its_first_view(tab, start, family):
    name = next(encoding["name"] for encoding in start["encodings"] if encoding["family"] == family)
    tab.open(f"a={name}")
    assert tab.said == []
    assert tab.look()
    tab.assert_calm()


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("query", "option", "share"),
    [
        ("view=heat&a=rope", "head_dim", 0.6),
        ("view=bias&a=alibi", "n_heads", 0.3),
        more("view=heat&a=rope", "base", 0.9),
        more("view=heat&a=rope", "length", 0.2),
        more("view=profile&a=rope", "base", 0.2),
        more("view=wavelengths&a=sinusoidal", "d_model", 0.5),
        more("view=precision&a=rope", "up_to", 0.2),
    ],
)
def test_a_slider_changes_the_picture_and_the_address(tab, query, option, share):
    tab.open(query)
    before = tab.look()
    assert tab.after(lambda: tab.slide(option, share)) != before
    assert f".{option}=" in urlsplit(tab.page.url).query
    assert tab.said == []
    tab.assert_calm()


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("query", "control", "word"),
    [
        ("view=bias&a=alibi", "a-sides", "one-sided"),
        ("view=heat&a=rope", "encoding-a", "sinusoidal"),
        more("view=heat&a=rope", "a-pairing", "interleaved"),
        more("view=heat&a=rope", "v-unit", "pair"),
        more("view=profile&a=rope", "v-content", "independent"),
        more("view=bias&a=alibi", "v-draw", "matrix"),
    ],
)
def test_a_list_of_words_changes_the_picture(tab, query, control, word):
    tab.open(query + ("&v.ahead=true" if control == "a-sides" else ""))
    before = tab.look()
    assert tab.after(lambda: tab.page.select_option(f"#{control}", word)) != before
    tab.assert_calm()


@pytest.mark.slow
def test_a_box_for_a_number_and_a_tick_change_the_picture(tab):
    tab.open("view=similarity&a=sinusoidal&v.length=64")
    before = tab.look()
    ticked = tab.after(lambda: tab.page.check("#v-cosine"))
    assert len(ticked) == len(before)
    longer = tab.after(lambda: tab.page.fill("#v-length", "90"))
    assert longer != ticked
    assert "v.length=90" in tab.page.url
    tab.assert_calm()


def test_two_encodings_stand_beside_their_difference_with_one_cursor(tab):
    tab.open("view=heat&a=rope&b=sinusoidal&b.d_model=64&v.length=100")
    maps = tab.page.locator(".heat")
    assert maps.count() == 3
    maps.nth(0).focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight", "ArrowRight"):
        tab.page.keyboard.press(key)
    places = tab.page.eval_on_selector_all(".cross", "all => all.map((n) => [n.hidden, n.style.left, n.style.top])")
    assert places[0] == places[1] == places[2]
    assert places[0][0] is False
    said = tab.page.locator(".readout").inner_text()
    assert "position 1, lane 3" in said
    numbers = [
        float(part.split()[1].replace("−", "-")) for part in tab.page.locator(".readout .value").all_inner_texts()
    ]
    assert numbers[2] == pytest.approx(numbers[1] - numbers[0], abs=2e-3)  # each is written with four digits
    tab.until("document.querySelector('[aria-live]').textContent.includes('lane 3')")
    tab.assert_calm()


@pytest.mark.slow
def test_pictures_that_cannot_be_subtracted_say_why(tab):
    tab.open("view=heat&a=rope&b=sinusoidal&b.d_model=32")
    assert "No difference" in tab.page.locator(".why").inner_text()
    tab.assert_calm()


def test_a_cell_explains_its_value(tab):
    tab.open("view=heat&a=rope&v.length=64")
    tab.page.locator(".heat").click(position={"x": 70, "y": 200})
    tab.page.wait_for_selector(".cell .result")
    shown = float(tab.page.locator(".readout .value").inner_text().split()[1].replace("−", "-"))
    reported = float(tab.page.locator(".cell .result").inner_text().removeprefix("=").strip().replace("−", "-"))
    assert reported == pytest.approx(shown, abs=1e-3)
    assert tab.page.locator(".cell li").count() >= 3
    assert "at=" in tab.page.url
    tab.page.reload()
    tab.page.wait_for_selector(".cell .result")
    tab.page.get_by_role("button", name="Close").click()
    assert "at=" not in tab.page.url
    tab.assert_calm()


def test_a_refused_value_is_said_in_words_where_the_picture_was(tab):
    tab.open("view=heat&a=rope")
    tab.page.fill("#a-head_dim", "7")
    tab.page.wait_for_selector("#stage .error")
    [said] = tab.said
    assert "head_dim must be even" in said
    assert tab.page.locator("canvas.cells").count() == 0
    tab.page.fill("#a-head_dim", "8")
    tab.page.wait_for_selector("canvas.cells")
    assert tab.said == []
    assert tab.strangers == []


@pytest.mark.slow
def test_the_state_survives_a_reload(tab):
    tab.open("view=profile&a=rope&b=alibi")
    tab.after(lambda: tab.slide("base", 0.8))
    tab.after(lambda: tab.page.select_option("#v-content", "independent"))
    query, look = parse_qs(urlsplit(tab.page.url).query), tab.look()
    assert query["a"] == ["rope"]
    assert query["b"] == ["alibi"]
    assert query["v.content"] == ["independent"]
    tab.page.reload()
    tab.page.wait_for_selector("#stage[data-drawn]:not([aria-busy])")
    assert parse_qs(urlsplit(tab.page.url).query) == query
    assert tab.page.locator("#v-content").input_value() == "independent"
    assert tab.look() == look
    tab.assert_calm()


def test_the_page_can_be_used_by_keys_alone(tab):
    tab.open("view=heat&a=rope")
    tab.page.keyboard.press("Tab")
    assert tab.page.evaluate("document.activeElement.textContent") == "Skip to the picture"
    tab.page.keyboard.press("Enter")
    tab.page.keyboard.press("Tab")
    assert tab.page.evaluate("document.activeElement.id") == "tab-heat"
    tab.after(lambda: tab.page.keyboard.press("ArrowRight"))
    assert tab.page.evaluate("document.activeElement.id") == "tab-points"
    assert tab.page.get_attribute("#tab-points", "aria-selected") == "true"
    outline = tab.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"  # the focus is seen
    tab.page.keyboard.press("Tab")
    assert tab.page.evaluate("document.activeElement.className") == "chart"
    tab.page.keyboard.press("ArrowRight")
    assert "position 0" in tab.page.locator(".readout").inner_text()
    tab.assert_calm()


@pytest.mark.slow
def test_everything_that_is_chosen_or_pressed_has_a_name(tab):
    tab.open("view=bias&a=alibi&b=t5")
    nameless = tab.page.evaluate("""() => {
        const all = [...document.querySelectorAll('button, select, input, textarea, [role=application]')];
        const name = (node) => node.getAttribute('aria-label') || node.textContent.trim() || node.labels?.length;
        return all.filter((node) => !name(node)).map((node) => node.outerHTML); }""")
    assert nameless == []
    label = tab.page.locator(".chart").first.get_attribute("aria-label")
    assert "distance" in label
    assert "from" in label  # the chart in words
    tab.assert_calm()


@pytest.mark.slow
@pytest.mark.parametrize(
    "query", ["view=heat&a=rope&b=sinusoidal", more("view=bias&a=alibi"), "view=model", more("view=extension")]
)
def test_a_phone_shows_no_sideways_scrolling(new_tab, query):
    tab = new_tab(390, 844).open(query)
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 390
    tab.page.get_by_role("button", name="Controls").click()
    tab.until("document.getElementById('panel').getBoundingClientRect().left >= 0")
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert tab.page.evaluate("document.getElementById('panel').contains(document.activeElement)")
    tab.page.keyboard.press("Escape")
    assert tab.page.get_attribute("#drawer-button", "aria-expanded") == "false"
    tab.assert_calm()


@pytest.mark.slow
def test_dark_and_light_follow_the_system_until_one_is_chosen(new_tab):
    tab = new_tab(color_scheme="dark").open("view=heat&a=rope")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark, picture = tab.page.evaluate(ground), tab.look()
    assert max(map(int, dark.removeprefix("rgb(").removesuffix(")").split(","))) < 60
    tab.page.get_by_role("button", name="Theme").click()  # dark, chosen
    tab.page.get_by_role("button", name="Theme").click()  # light
    assert min(map(int, tab.page.evaluate(ground).removeprefix("rgb(").removesuffix(")").split(","))) > 200
    assert tab.look() != picture  # the map is drawn for its ground
    tab.page.reload()
    tab.page.wait_for_selector("#stage[data-drawn]:not([aria-busy])")
    assert tab.page.evaluate(ground) != dark
    tab.assert_calm()


def test_the_shelf_is_searched_and_a_model_drawn(tab):
    tab.open("view=model&model=llama-2-7b")
    assert tab.page.locator("h1").inner_text() == "llama-2-7b"
    assert int(re.search(r"\d+", tab.page.locator("#panel [role=status]").first.inner_text()).group()) >= 25
    before = tab.look()
    tab.page.fill("#model-search", "llama-3.1")
    assert tab.page.locator("[data-model]").count() == 1
    after = tab.after(lambda: tab.page.click('[data-model="llama-3.1-8b"]'))
    assert after != before
    assert {"kept", "blended", "divided"} <= set(
        tab.page.eval_on_selector_all(".strip li", "all => all.map((n) => n.dataset.kind)")
    )
    assert "model=llama-3.1-8b" in tab.page.url or tab.page.locator("h1").inner_text() == "llama-3.1-8b"
    tab.assert_calm()


@pytest.mark.slow
def test_a_config_of_ones_own_is_read(tab):
    tab.open("view=model")
    tab.after(lambda: tab.give(("config.json", json.dumps(CONFIG).encode())))
    assert tab.said == []
    facts = tab.page.locator(".facts").inner_text()
    assert "40,000" in facts
    assert "4,096" in facts
    assert tab.page.locator('.strip li button[aria-label^="layer"]').count() == 5
    tab.assert_calm()


@pytest.mark.slow
def test_the_bench_answers_to_target_and_methods(tab):
    tab.open("view=extension")
    rows = tab.page.locator(".strip.narrow")
    assert rows.count() >= 6
    before = tab.look()
    farther = tab.after(lambda: tab.slide("target", 0.9))
    assert farther != before
    assert tab.after(lambda: tab.slide("beta_slow", 0.6)) != farther
    n = rows.count()
    tab.after(lambda: tab.page.uncheck('.methods input[value="yarn"]'))
    assert rows.count() == n - 1
    assert "yarn" not in tab.page.locator(".strips").inner_text()
    tab.assert_calm()


@pytest.mark.slow
def test_the_page_saves_itself_as_one_file(tab, new_tab, tmp_path):
    tab.open("view=profile&a=rope&a.base=500000&b=alibi&v.length=300")
    look = tab.look()
    path = tab.save("Page as one file", tmp_path)
    copy = new_tab(base=path.as_uri()).open()
    assert copy.said == []
    assert copy.page.locator("#a-base").input_value() == "500000"
    assert copy.look() == look
    copy.assert_calm()
    tab.assert_calm()


@pytest.mark.slow
def test_pictures_are_saved_as_png_and_svg(tab, tmp_path):
    for query, inside in (("view=heat&a=rope&b=sinusoidal", "image"), ("view=bias&a=alibi", "path")):
        tab.open(query)
        png = tab.save("PNG", tmp_path).read_bytes()
        assert png.startswith(b"\x89PNG")
        assert len(png) > 5000
        drawing = ElementTree.parse(tab.save("SVG", tmp_path)).getroot()
        assert drawing.tag.endswith("svg")
        assert [node for node in drawing.iter() if node.tag.endswith(inside)]
    tab.assert_calm()
