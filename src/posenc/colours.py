"""Colours: one for each encoding, the same in figures, reports and pages, on light and dark backgrounds.

Well-known encodings have hand-picked colours, so that those that are often compared differ for colour-blind readers.
The colour of any other name depends only on its letters.
"""

import math
from collections.abc import Iterable
from zlib import crc32

PAPER, DARK_PAPER = "#ffffff", "#15171b"  # the backgrounds for the shades

# Blue, nearly white, red: distinct for every kind of colour vision, with zero in the middle.
DIVERGING = ((0.0, "#2166ac"), (0.5, "#f7f7f7"), (1.0, "#b2182b"))

# name: the shade on a light background, and on a dark one; reports number their classes in this order
_KNOWN = {
    "nope": ("#6a7079", "#9ba2ad"),
    "sinusoidal": ("#0072b2", "#4ba7ea"),
    "learned": ("#a8449b", "#dc8ad0"),
    "binary": ("#9b8a1a", "#c4ad45"),
    "rope": ("#d55e00", "#ff8536"),
    "xpos": ("#6b4a00", "#f2bd45"),
    "alibi": ("#00805d", "#2ec498"),
    "t5": ("#882255", "#e0719f"),
    "kerple": ("#2b8ec4", "#86d0f7"),
    "relative_bias": ("#3b2d97", "#a99df5"),
    "transformer_xl": ("#c2475f", "#f48c9b"),
    "fire": ("#2d7f3a", "#75cb7c"),
    "fox": ("#7c5430", "#cfa27a"),
    "sine": ("#1d8a86", "#52cfc9"),
    "shaw": ("#7058c8", "#bba8ff"),
    "integer": ("#3d4043", "#d6d6d6"),
    "cope": ("#a35a7b", "#dd9dbd"),
}
_N_HUES = 24


def colour(name: str) -> str:
    """Return the colour of an encoding on a light background, as "#rrggbb".

    Args:
        name: A registered name, `package.module:Class`, or any other text.

    >>> colour("rope"), colour("sinusoidal")
    ('#d55e00', '#0072b2')
    >>> colour("mine:Own") == colour("mine:Own") != colour("rope")
    True
    """
    return SHADES[shade_of(name)][0]


def on_dark(name: str) -> str:
    """Return the colour of an encoding on a dark background: the same hue, lighter.

    >>> on_dark("rope")
    '#ff8536'
    """
    return SHADES[shade_of(name)][1]


def shade_of(name: str) -> int:
    """Return the index of an encoding in `SHADES`, for style sheets with numbered classes.

    >>> shade_of("nope")
    0
    """
    if name in _KNOWN:
        return list(_KNOWN).index(name)
    return len(_KNOWN) + crc32(name.encode()) % _N_HUES  # hash() differs between runs


def rgb(code: str) -> tuple[int, int, int]:
    """Return the red, green and blue of "#rrggbb", 0 to 255 each.

    >>> rgb("#2166ac")
    (33, 102, 172)
    """
    red, green, blue = bytes.fromhex(code.removeprefix("#"))
    return red, green, blue


def mix(first: str, second: str, part: float) -> str:
    """Return the colour that is `part` of the way from the first to the second.

    >>> mix("#000000", "#ffffff", 0.5)
    '#808080'
    """
    return _code(a + (b - a) * part for a, b in zip(rgb(first), rgb(second), strict=True))


def diverging(part: float) -> str:
    """Return the colour at `part` of the diverging map, 0 to 1; zero belongs at 0.5.

    >>> diverging(0.0), diverging(0.5), diverging(0.25)
    ('#2166ac', '#f7f7f7', '#8caed2')
    """
    low, middle, high = (code for _, code in DIVERGING)
    return mix(low, middle, 2 * part) if part < 0.5 else mix(middle, high, 2 * part - 1)


def _code(channels: Iterable[float]) -> str:
    return "#" + "".join(f"{min(max(round(c), 0), 255):02x}" for c in channels)


def _from_oklch(lightness: float, chroma: float, turn: float) -> str:
    """Return a colour of Ottosson's OKLCH, in which equal steps look equal (bottosson.github.io/posts/oklab, 2020)."""
    a, b = chroma * math.cos(2 * math.pi * turn), chroma * math.sin(2 * math.pi * turn)
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    linear = (
        4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
    )
    return _code(255 * (12.92 * c if c <= 0.0031308 else 1.055 * c ** (1 / 2.4) - 0.055) for c in linear)


def _hue(step: int) -> tuple[str, str]:
    """Return the two shades of a hue; neighbours also differ in lightness, for colour-blind readers."""
    turn, deep = step / _N_HUES, step % 2
    return _from_oklch(0.42 if deep else 0.57, 0.11, turn), _from_oklch(0.70 if deep else 0.82, 0.10, turn)


# All shades: (on a light background, on a dark one).
SHADES = (*_KNOWN.values(), *map(_hue, range(_N_HUES)))
