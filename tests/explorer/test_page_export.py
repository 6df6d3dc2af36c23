"""What leaves the page: one file that works from disk, pictures, tables and code."""

import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest


def save(tab, name, folder):
    with tab.page.expect_download() as waiting:
        tab.page.locator(".copy").get_by_text(name, exact=True).click()
    path = folder / waiting.value.suggested_filename
    waiting.value.save_as(path)
    return path


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


def test_the_page_saves_itself_as_one_file(tab, new_tab, tmp_path):
    tab.open("view=profile&a=rope&a.base=500000&b=alibi&v.length=300")
    look = tab.look()
    path = save(tab, "Page as one file", tmp_path)
    copy = new_tab(base=path.as_uri()).open()
    assert copy.said == []
    assert copy.page.locator("#a-base").input_value() == "500000"
    assert copy.look() == look
    copy.assert_calm()
    tab.assert_calm()


def test_pictures_are_saved_as_png_and_svg(tab, tmp_path):
    for query, inside in (("view=heat&a=rope&b=sinusoidal", "image"), ("view=bias&a=alibi", "path")):
        tab.open(query)
        png = save(tab, "PNG", tmp_path).read_bytes()
        assert png.startswith(b"\x89PNG")
        assert len(png) > 5000
        drawing = ElementTree.parse(save(tab, "SVG", tmp_path)).getroot()
        assert drawing.tag.endswith("svg")
        assert [node for node in drawing.iter() if node.tag.endswith(inside)]
    tab.assert_calm()


def test_numbers_are_saved_as_csv(tab, tmp_path):
    tab.open("view=bias&a=alibi&a.n_heads=4&v.length=20")
    lines = save(tab, "CSV", tmp_path).read_text().splitlines()
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
