"""Marks of the report's charts: one colour, dash and marker per encoding on the whole page.

Colours are CSS classes (`s0`, `s1`, ...); `colour_rules` writes their rules for light and dark from
`posenc.colours`. Dash and marker distinguish encodings for readers who cannot distinguish two colours.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from markupsafe import Markup

from posenc import colours

# A known name has the same mark on every page.
_KNOWN = (
    "nope",
    "sinusoidal",
    "learned",
    "binary",
    "rope",
    "xpos",
    "alibi",
    "t5",
    "kerple",
    "relative_bias",
    "transformer_xl",
)
_DASHES = ("", "6 3", "2 2.5", "8 2.5 2 2.5")
_KNOWN_DASHES = (2, 0, 1, 3, 0, 1, 0, 3, 1, 0, 3)
_KNOWN_MARKERS = (1, 0, 2, 5, 0, 3, 2, 1, 3, 6, 4)
_MARKERS = (  # drawn around (0, 0), about 7 units wide
    "M-3.2 0a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0 -6.4 0Z",
    "M-2.9 -2.9H2.9V2.9H-2.9Z",
    "M0 -3.7L3.6 2.8H-3.6Z",
    "M0 -4.1L3.7 0L0 4.1L-3.7 0Z",
    "M0 3.7L3.6 -2.8H-3.6Z",
    "M-1.2 -3.6H1.2V-1.2H3.6V1.2H1.2V3.6H-1.2V1.2H-3.6V-1.2H-1.2Z",
    "M0 -4L1.2 -1.2L4 0L1.2 1.2L0 4L-1.2 1.2L-4 0L-1.2 -1.2Z",
)


@dataclass(frozen=True)
class Mark:
    """How one encoding is drawn: its number, CSS colour class, dash pattern and marker outline."""

    index: int
    colour: str
    dash: str
    marker: str


def _known(name: str) -> Mark:
    index = _KNOWN.index(name)
    return Mark(index, _colour_class(name), _DASHES[_KNOWN_DASHES[index]], _MARKERS[_KNOWN_MARKERS[index]])


def _spare(name: str, order: int) -> Mark:
    """Vary dash and marker together: the counts of both are coprime, so the first 28 combinations are distinct."""
    index = len(_KNOWN) + order
    return Mark(index, _colour_class(name), _DASHES[order % len(_DASHES)], _MARKERS[order % len(_MARKERS)])


def _colour_class(name: str) -> str:
    return f"s{colours.shade_of(name)}"


def colour_rules() -> str:
    """Return the style sheet's rules for the colour classes, light and dark."""
    light, dark = (
        " ".join(f".s{i} {{ --c: {shades[side]} }}" for i, shades in enumerate(colours.SHADES)) for side in (0, 1)
    )
    return f"{light}\n@media (prefers-color-scheme: dark) {{ {dark} }}\n"


def assign_marks(names: Iterable[str]) -> dict[str, Mark]:
    """Return a mark per name: fixed for known names; others have a fixed colour and the next dash and marker."""
    marks: dict[str, Mark] = {}
    spares = 0
    for name in names:
        if name in marks:
            continue
        if name in _KNOWN:
            marks[name] = _known(name)
        else:
            marks[name] = _spare(name, spares)
            spares += 1
    return marks


def swatch(mark: Mark) -> Markup:
    """Return a short piece of the encoding's line with its marker, to be shown before its name."""
    return Markup(
        '<svg class="swatch {}" width="22" height="10" viewBox="0 0 22 10" aria-hidden="true">'
        '<path class="ln" d="M0 5H22" stroke-dasharray="{}"/>'
        '<path class="mk" d="{}" transform="translate(11 5)"/></svg>'
    ).format(mark.colour, mark.dash or "none", mark.marker)


def bar(mark: Mark, value: float, low: float, high: float, top: float) -> Markup:
    """Return a bar of `value` on a scale from 0 to `top`, with a whisker over the range of seeds."""
    width = 110.0
    scale = width / top if top > 0 else 0.0
    body = Markup('<rect class="mk" x="0" y="2" width="{:.1f}" height="8" rx="1"/>').format(max(value * scale, 0.8))
    whisker = Markup("")
    if (high - low) * scale >= 1:
        whisker = Markup('<path class="whisker" d="M{:.1f} 6H{:.1f}"/>').format(low * scale, high * scale)
    frame = '<svg class="bar {}" width="114" height="12" viewBox="0 0 114 12" aria-hidden="true">{}{}</svg>'
    return Markup(frame).format(mark.colour, body, whisker)


def spark(mark: Mark, places: Iterable[tuple[float, float]]) -> Markup:
    """Return a sparkline through points of the unit square, with (0, 0) at the lower left."""
    points = [(2 + 72 * min(max(x, 0.0), 1.0), 20 - 18 * min(max(y, 0.0), 1.0)) for x, y in places]
    if not points:
        return Markup("")
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return Markup(
        '<svg class="spark {}" width="78" height="22" viewBox="0 0 78 22" aria-hidden="true">'
        '<path class="ln" d="{}"/><path class="mk" d="M-2 0a2 2 0 1 0 4 0a2 2 0 1 0 -4 0Z" '
        'transform="translate({:.1f} {:.1f})"/></svg>'
    ).format(mark.colour, path, *points[-1])
