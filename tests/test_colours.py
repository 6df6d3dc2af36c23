import itertools
import subprocess
import sys

import pytest

import posenc
from posenc import colours
from posenc.cli.drawing import Page, _paint
from posenc.study.marks import assign_marks, colour_rules

COMPARED = ("nope", "sinusoidal", "learned", "binary", "rope", "alibi", "t5", "xpos", "kerple")


def linear(code):
    """Return linear red, green and blue, 0 to 1 (IEC 61966-2-1)."""
    parts = [int(code[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]


def contrast(first, second):
    """Return the contrast of two colours as WCAG 2 defines it."""
    bright = [0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in map(linear, (first, second))]
    return (max(bright) + 0.05) / (min(bright) + 0.05)


def lab(code, missing=None):
    """Return CIELAB, as seen by an eye without red (protan) or green (deutan) cones (Viénot, Brettel, Mollon 1999)."""
    r, g, b = linear(code)
    if missing == "protan":
        r, g, b = 0.11238 * r + 0.88762 * g, 0.11238 * r + 0.88762 * g, 0.00401 * r - 0.00401 * g + b
    elif missing == "deutan":
        r, g, b = 0.29275 * r + 0.70725 * g, 0.29275 * r + 0.70725 * g, -0.02234 * r + 0.02234 * g + b
    xyz = (
        (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505,
        0.2126 * r + 0.7152 * g + 0.0722 * b,
        (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089,
    )
    x, y, z = (t ** (1 / 3) if t > 216 / 24389 else (24389 / 27 * t + 16) / 116 for t in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def apart(first, second, missing=None):
    return sum((a - b) ** 2 for a, b in zip(lab(first, missing), lab(second, missing), strict=True)) ** 0.5


@pytest.mark.parametrize("name", posenc.names())
def test_every_colour_stands_out_on_its_ground(name):
    assert contrast(colours.colour(name), colours.PAPER) >= 3
    assert contrast(colours.on_dark(name), colours.DARK_PAPER) >= 3


@pytest.mark.parametrize("missing", [None, "protan", "deutan"])
def test_what_is_compared_most_stays_apart_for_every_eye(missing):
    gaps = {pair: apart(*map(colours.colour, pair), missing) for pair in itertools.combinations(COMPARED, 2)}
    assert min(gaps.values()) > 7, min(gaps, key=gaps.get)


@pytest.mark.parametrize("missing", [None, "protan", "deutan"])
def test_the_two_halves_of_the_diverging_map_stay_apart_for_every_eye(missing):
    for part in (0.0, 0.1, 0.2, 0.3):
        assert apart(colours.diverging(part), colours.diverging(1 - part), missing) > 15
    brightness = [lab(colours.diverging(i / 20), missing)[0] for i in range(21)]
    assert brightness[:11] == sorted(brightness[:11])
    assert brightness[10:] == sorted(brightness[10:], reverse=True)


def test_the_known_ones_differ_and_those_of_the_reports_keep_their_order():
    known = colours.SHADES[:17]
    assert len({light for light, _ in known}) == len({dark for _, dark in known}) == 17
    assert [colours.shade_of(name) for name in ("nope", "sinusoidal", "learned", "binary", "rope")] == [0, 1, 2, 3, 4]


def test_a_colour_is_the_same_in_every_process():
    code = "from posenc import colours; print(*map(colours.colour, ('mine:A', 'mine:B', 'cape')))"
    said = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True
        ).stdout
        for seed in ("1", "2")
    }
    assert said == {" ".join(map(colours.colour, ("mine:A", "mine:B", "cape"))) + "\n"}


@pytest.mark.parametrize("name", ["rope", "fire", "mine:Own"])
def test_reports_and_the_terminal_take_their_colours_from_here(name):
    light, dark = colour_rules().split("@media (prefers-color-scheme: dark)")
    place = assign_marks(["other:One", name])[name].colour
    assert f".{place} {{ --c: {colours.colour(name)} }}" in light
    assert f".{place} {{ --c: {colours.on_dark(name)} }}" in dark
    painted = _paint(0.0, 2, Page(width=80, blocks=True, colour=True)).style.bgcolor.triplet
    assert painted.hex == colours.DIVERGING[0][1]


def test_colours_are_there_without_torch():
    code = "import sys, posenc.colours; print('torch' in sys.modules, 'matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False False\n"
