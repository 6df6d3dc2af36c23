"""A study's trained models in the page: the study is run as people run it, as short as can be."""

import subprocess
import sys
from itertools import pairwise

import pytest

from explorer_client import running

pytestmark = pytest.mark.slow  # test_page.py has the flows of the default run, in one session of the browser
ENCODINGS = ["rope", "alibi"]
CELL = "text-64x2x4-s0"


@pytest.fixture(scope="module")
def study(browser, tmp_path_factory):
    """The directory of a real study, of two cells and two steps each."""
    path = tmp_path_factory.mktemp("study") / "s"
    sizes = ["--train-len", "8", "--test-len", "8,16", "--seeds", "1", "--steps", "2"]
    command = [sys.executable, "-m", "posenc", "study", "--encodings", ",".join(ENCODINGS), *sizes, "--out", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    return path


@pytest.fixture(scope="module")
def address(study):
    with running(str(study), "--no-browser", "--port", "0") as (_, found):
        yield found


@pytest.fixture
def tab(new_tab, address):
    return new_tab(base=address)


def test_a_study_opens_at_the_map_of_its_first_model(tab):
    tab.open()
    assert tab.page.locator("h1").inner_text() == "Attention"
    assert tab.page.locator("#cell option").all_inner_texts() == [f"{name}-{CELL}" for name in ENCODINGS]
    assert tab.said == []
    cells = tab.page.evaluate("""() => { const c = document.querySelector('canvas.cells');
        return [c.width, c.height, new Set(c.getContext('2d').getImageData(0, 0, c.width, c.height).data).size]; }""")
    text = tab.page.locator("#v-text").input_value()
    assert cells[:2] == [len(text), len(text)]  # a token is a letter
    assert cells[2] > 20
    letters = "".join(tab.page.locator(".axes text").all_text_contents())
    assert letters.startswith(text.replace("\n", "↵"))
    tab.assert_calm()


def test_layer_head_model_and_text_change_the_map(tab):
    tab.open()
    looks = [tab.look()]
    for act in (
        lambda: tab.slide("layer", 1.0),
        lambda: tab.slide("head", 1.0),
        lambda: tab.page.select_option("#cell", f"alibi-{CELL}"),
        lambda: tab.page.fill("#v-text", "to be or not to be"),
    ):
        looks.append(tab.after(act))
    assert all(now != before for before, now in pairwise(looks))
    for part in ("v.layer=1", "v.head=3", f"v.cell=alibi-{CELL}", "v.text=to"):
        assert part in tab.page.url
    tab.page.reload()
    tab.page.wait_for_selector("#stage[data-drawn]:not([aria-busy])")
    tab.page.wait_for_timeout(250)
    assert tab.page.locator("#cell").input_value() == f"alibi-{CELL}"
    assert tab.look() == looks[-1]
    assert tab.said == []
    tab.assert_calm()


@pytest.mark.parametrize(
    ("draw", "lines"),
    [
        ("distance", [f"head {h}" for h in range(4)]),
        ("encodings", ENCODINGS),
        ("profile", [f"head {h}" for h in range(4)]),
        ("profiles", ENCODINGS),
    ],
)
def test_curves_of_heads_and_of_encodings(tab, draw, lines):
    tab.open(f"v.cell=alibi-{CELL}")
    before = tab.look()
    assert tab.after(lambda: tab.page.select_option("#v-draw", draw)) != before
    assert tab.page.locator(".legend li").all_inner_texts() == lines
    assert tab.page.locator(".plot .scatterlayer .js-line").count() >= len(lines)
    assert tab.said == []
    tab.assert_calm()


def test_no_band_lies_over_a_line(tab):
    tab.open(f"v.cell=alibi-{CELL}&v.draw=profile")
    order = tab.page.eval_on_selector_all(
        ".plot .scatterlayer .trace", "all => all.map((n) => n.querySelector('.js-line')?.style.strokeWidth || '0px')"
    )
    widths = [float(width.removesuffix("px")) > 0 for width in order]
    assert widths == sorted(widths)
    assert sum(widths) == 4


def test_a_score_that_falls_with_the_distance_is_read_out(tab):
    tab.open(f"v.cell=alibi-{CELL}&v.draw=profile")
    chart = tab.page.locator(".chart")
    chart.focus()
    values = []
    for _ in range(2):
        tab.page.keyboard.press("ArrowRight")
        said = tab.page.locator(".readout .value").inner_text()
        values.append(float(said.split("head 0 ")[1].split()[0].replace("−", "-")))
    assert values[0] - values[1] == pytest.approx(0.25, abs=2e-3)  # ALiBi's steepest slope of four heads is 1/4
    tab.assert_calm()


def test_a_text_of_unknown_characters_is_refused_in_words(tab):
    """Bad text is refused in words, and the page stays usable."""
    tab.open()
    tab.page.fill("#v-text", "éé")
    tab.page.wait_for_selector("#stage .error")
    [said] = tab.said
    assert "text must have characters" in said
    tab.after(lambda: tab.page.fill("#v-text", "abc"))
    assert tab.said == []
