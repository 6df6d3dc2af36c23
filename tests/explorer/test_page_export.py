"""What leaves the page: one file that works from disk, pictures, tables and code."""

import re
import shlex
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from explorer_client import running

pytestmark = pytest.mark.slow  # test_page.py has the flows of the default run, in one session of the browser


@pytest.fixture(scope="module")
def exported(server, tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "page.html"
    subprocess.run([sys.executable, "-m", "posenc", "explore", "rope", "--export", str(path)], check=True)
    return path


def test_an_exported_page_opens_from_disk_and_shows_pictures(new_tab, exported):
    tab = new_tab(base=exported.as_uri()).open()
    assert tab.page.locator("#encoding-a").input_value() == "rope"
    cells = """() => { const c = document.querySelector('canvas.cells');
        return new Set(c.getContext('2d').getImageData(0, 0, c.width, c.height).data).size; }"""
    assert tab.page.evaluate(cells) > 50
    assert tab.page.locator("#a-base").is_disabled()  # no server could answer
    tab.after(lambda: tab.page.click("#tab-profile"))
    assert tab.said == []
    assert tab.page.locator(".plot .js-line").count() >= 1
    tab.assert_calm()


def test_the_page_of_a_model_opens_from_disk_at_that_model(new_tab, tmp_path):
    path = tmp_path / "page.html"
    command = [sys.executable, "-m", "posenc", "explore", "gemma-3-27b", "--export", str(path)]
    subprocess.run(command, check=True)
    tab = new_tab(base=path.as_uri()).open()
    assert tab.page.locator("h1").inner_text() == "gemma-3-27b"
    first = tab.look()
    boxes = tab.page.locator('.strip li button[aria-label^="layer"]')
    assert boxes.count() == 62
    full = next(i for i, word in enumerate(boxes.all_inner_texts()) if word == "F")
    assert tab.after(lambda: boxes.nth(full).click()) != first  # another kind of layer, another base
    assert "1,000,000" in tab.page.locator(".facts").inner_text()
    other = tab.after(lambda: tab.page.click('[data-model="llama-2-7b"]'))
    assert tab.page.locator("h1").inner_text() == "llama-2-7b"
    assert other != first
    assert tab.said == []
    assert boxes.nth(3).is_disabled()  # of the others the file holds the first layer
    tab.assert_calm()


def test_numbers_are_saved_as_csv(tab, tmp_path):
    tab.open("view=bias&a=alibi&a.n_heads=4&v.length=20")
    lines = tab.save("CSV", tmp_path).read_text().splitlines()
    assert len(lines) > 20
    assert any("-0.5" in line for line in lines)  # the second head's slope is 1/16, the first one's 1/4
    tab.assert_calm()


def test_the_python_that_is_copied_runs(new_tab):
    tab = new_tab(permissions=["clipboard-read", "clipboard-write"]).open("view=heat&a=rope&a.base=500000&v.length=32")
    tab.page.get_by_role("button", name="Copy as Python").click()
    tab.page.get_by_text("Python copied.").wait_for()
    code = tab.page.evaluate("navigator.clipboard.readText()")
    assert "500000" in code
    done = subprocess.run(
        [sys.executable, "-c", code + "\nprint(values.shape)"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "(32, 64)"
    tab.page.get_by_role("button", name="Copy as command").click()
    tab.page.get_by_text("Command copied.").wait_for()
    assert re.match(r"posenc \w+", tab.page.evaluate("navigator.clipboard.readText()"))
    tab.assert_calm()


@pytest.mark.parametrize(
    "query", ["view=bias&a=alibi&a.n_heads=6&v.draw=matrix&v.head=5", "view=extension&v.target=65536"]
)
def test_the_command_that_is_copied_opens_the_same_page(new_tab, query):
    tab = new_tab(permissions=["clipboard-read", "clipboard-write"]).open(query)
    tab.page.get_by_role("button", name="Copy as command").click()
    tab.page.get_by_text("Command copied.").wait_for()
    last = tab.page.evaluate("navigator.clipboard.readText()").splitlines()[-1]
    program, command, *rest = shlex.split(last)
    assert (program, command) == ("posenc", "explore")
    with running(*rest, "--no-browser", "--port", "0") as (_, address):
        assert set(query.split("&")) <= set(address.partition("?")[2].split("&"))
        twin = new_tab(base=address.partition("?")[0])
        twin.open(address.partition("?")[2])
        assert twin.look() == tab.look()
        twin.assert_calm()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_heat_map_that_is_saved_has_labels_and_a_scale(new_tab, tmp_path, scheme):
    tab = new_tab(color_scheme=scheme).open("view=bias&a=t5&v.draw=matrix")
    drawing = ElementTree.parse(tab.save("SVG", tmp_path)).getroot()
    words = [node.text for node in drawing.iter() if node.tag.endswith("text")]
    assert "key position (tokens)" in words
    assert "query position (tokens)" in words
    assert words[-2] == "0"  # the middle of the scale
    assert words[-1] == words[-3].removeprefix("−")
    ground = next(node for node in drawing.iter() if node.tag.endswith("rect")).attrib["fill"]
    assert ground == tab.page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_the_table_of_points_has_their_positions(tab, tmp_path):
    tab.open("view=points&a=rope&v.lanes=pca3&v.length=20")
    path = tab.save("CSV", tmp_path)
    assert path.name == "posenc-points-rope.csv"
    first, *rest = path.read_text().splitlines()
    assert first == "series,position,component 1,component 2,component 3"
    assert [int(row.split(",")[1]) for row in rest] == list(range(20))
