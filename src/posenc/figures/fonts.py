"""The fonts of figures: the one of matplotlib, and behind it an installed one with Chinese glyphs."""

from __future__ import annotations

import warnings
from contextlib import suppress

from matplotlib import font_manager

from posenc import languages

PLAIN = "DejaVu Sans"  # comes with matplotlib, so English figures are the same on every machine
# Fonts with Chinese glyphs. The last three are the first faces of collections; matplotlib before 3.11 reads no others.
CHINESE = (
    *("Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "Source Han Sans CN"),
    *("Microsoft YaHei", "PingFang SC", "Hiragino Sans GB", "STHeiti", "SimHei", "SimSun", "Arial Unicode MS"),
    *("WenQuanYi Micro Hei", "WenQuanYi Zen Hei", "Droid Sans Fallback"),
    *("Noto Sans CJK JP", "PingFang HK", "Heiti TC"),
)


def choose() -> tuple[str, list[str]]:
    """Return the language of the labels, and the fonts that write it.

    Labels are in the language in use. If it is Chinese and no font has its glyphs, a warning states so, and labels are
    English.
    """
    if languages.current() == "en":
        return "en", [PLAIN]
    found = find_chinese()
    if found:
        return languages.current(), [PLAIN, found]  # in this order, since Chinese fonts have a very wide − and √
    warnings.warn(
        "posenc.figures: no font with Chinese glyphs is installed, so the labels stay English. Install, for example, "
        "Noto Sans CJK SC (the package fonts-noto-cjk of Debian and Ubuntu).",
        stacklevel=3,  # the line that calls a function of posenc.figures
    )
    return "en", [PLAIN]


def find_chinese() -> str | None:
    """Return the first of the fonts `CHINESE` that is installed."""
    found = _find_listed()
    if found is None:
        _list_new_fonts()
        found = _find_listed()
    return found


def _find_listed() -> str | None:
    listed = {font.name for font in font_manager.fontManager.ttflist}
    return next((name for name in CHINESE if name in listed), None)


def _list_new_fonts() -> None:
    """Add fonts to matplotlib's list that were installed after matplotlib had written it to its cache."""
    listed = {font.fname for font in font_manager.fontManager.ttflist}
    for path in sorted({*font_manager.findSystemFonts()} - listed):
        with suppress(Exception):  # a font that cannot be read; matplotlib ignores it too
            font_manager.fontManager.addfont(path)
