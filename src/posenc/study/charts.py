"""Line charts as inline SVG: labels at the line ends, and a y range that ignores a few exploding lines.

Every chart is drawn twice, wide and narrow, and the style sheet shows one, so text stays legible on a phone
without a script. Markup escapes all text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from posenc.languages import tr

from .scales import Line, shorten, spread_labels, y_range, y_ticks


@dataclass(frozen=True)
class Frame:
    """The size of a drawing, its margins, and how much of a name fits next to the plot."""

    kind: str
    width: int
    height: int
    left: int
    right: int
    gap: float
    letters: int
    top: int = 34
    bottom: int = 44

    def grown(self, labels: int) -> Frame:
        """Return a frame that is tall enough for a number of labels."""
        need = round(labels * self.gap) + self.top + self.bottom + 10
        values = {**self.__dict__, "height": max(self.height, need)}
        return Frame(**values)


WIDE = Frame("wide", 1080, 500, 44, 222, 17, 22)
NARROW = Frame("narrow", 360, 430, 28, 134, 14, 14, top=36, bottom=42)


@dataclass(frozen=True)
class Chart:
    """Everything in a chart except its lines.

    An id, texts, x ticks (position, two labels), the trained length and the name of the region beyond it for a
    wide and a narrow drawing, the title and the unit of the y axis, and its ends if they are fixed.
    """

    ident: str
    title: str
    description: str
    ticks: tuple[tuple[float, str, str], ...]
    x_title: str
    boundary: float | None
    boundary_labels: tuple[str, str]
    y_title: str
    unit: str
    span: tuple[float, float] | None = None


# Markup.format escapes its arguments
_GRID = Markup(
    '<path class="grid" d="M{} {:.1f}H{}"/><text class="tick" x="{}" y="{:.1f}" text-anchor="end" dy=".34em">{}</text>'
)
_TICK = Markup(
    '<path class="axis" d="M{:.1f} {}v5"/>'
    '<text class="tick" x="{:.1f}" y="{}" text-anchor="middle">{}</text>'
    '<text class="tick sub" x="{:.1f}" y="{}" text-anchor="middle">{}</text>'
)
_TITLES = Markup(
    '<path class="axis" d="M{} {}H{}"/>'
    '<text class="title" x="0" y="13">{}</text>'
    '<text class="title" x="{}" y="{}">{}</text>'
)
_PAST = Markup(
    '<rect class="past" x="{:.1f}" y="{}" width="{:.1f}" height="{}"/><path class="bound" d="M{:.1f} {}V{}"/>'
)
_NOTE = Markup('<text class="note" x="{:.1f}" y="{}">{}</text>')
_PATH = Markup('<path class="hit" d="{0}"/><path class="ln" d="{0}" stroke-dasharray="{1}"/>')
_WHISKER = Markup('<path class="whisker" d="M{:.1f} {:.1f}V{:.1f}"/>')
_SEED = Markup('<circle class="seed" cx="{:.1f}" cy="{:.1f}" r="{}"/>')
_MARK = Markup('<path class="mk" d="{}" transform="translate({:.1f} {:.1f})"/>')
_RAIL = Markup('<path class="rail" d="M{:.1f} {:.1f}V{:.1f}H{:.1f}"/>')
_LEADER = Markup('<path class="leader" d="M{:.1f} {:.1f}L{:.1f} {:.1f}H{:.1f}"/>')
_SERIES = Markup(
    '<g class="series {colour}{faint}" data-s="{index}">'
    "<title>{title}</title>{drawn}{leader}{mark}"
    '<text class="label" x="{x}" y="{y}" dy=".34em">{short}{note} '
    '<tspan class="value">{last}{arrow}</tspan></text></g>'
)
_SVG = Markup(
    '<svg class="chart {kind}" viewBox="0 0 {width} {height}" role="img" '
    'aria-labelledby="{id}-t {id}-d"><title id="{id}-t">{title}</title><desc id="{id}-d">{desc}</desc>'
    '<clipPath id="{id}-clip"><rect x="{x}" y="{y}" width="{w}" height="{h}"/></clipPath>'
    "{axes}{series}</svg>"
)


class _Plot:
    """One drawing: maps data to the frame, and draws axes, lines and labels."""

    def __init__(self, chart: Chart, lines: Sequence[Line], frame: Frame) -> None:
        self.chart, self.lines, self.frame = chart, lines, frame.grown(len(lines))
        self.low, self.high = chart.span or y_range(lines)[:2]
        xs = [x for x, _, _ in chart.ticks] + [x for line in lines for x in line.xs]
        self.x_low, self.x_high = (min(xs), max(xs)) if xs else (0.0, 1.0)
        rails = sum(1 for line in lines if line.ys[-1] > self.high)
        self.ceiling = self.frame.top + 5 * rails  # each clipped line has its own rail above this
        self.floor = self.frame.height - self.frame.bottom
        self.right = self.frame.width - self.frame.right
        self.ident = f"{chart.ident}-{frame.kind}"

    def x(self, value: float) -> float:
        """Map an x value to the drawing."""
        inner = 10 if self.frame.kind == "wide" else 6
        share = (value - self.x_low) / ((self.x_high - self.x_low) or 1.0)
        return self.frame.left + inner + share * (self.right - self.frame.left - 2 * inner)

    def y(self, value: float) -> float:
        """Map a y value to the drawing."""
        return self.floor - (value - self.low) / (self.high - self.low) * (self.floor - self.ceiling)

    def axes(self) -> Markup:
        """Draw the region past the trained length, grid, ticks and titles."""
        left, right, floor = self.frame.left, self.right, self.floor
        parts = [self.past()]
        ticks = y_ticks(self.low, self.high)
        digits = 2 if len(ticks) > 1 and ticks[1] - ticks[0] < 0.1 else 1
        for tick in ticks:
            y = self.y(tick)
            parts.append(_GRID.format(left, y, right, left - 6, y, f"{tick:.{digits}f}"))
        for value, upper, lower in self.chart.ticks:
            x = self.x(value)
            parts.append(_TICK.format(x, floor, x, floor + 18, upper, x, floor + 32, lower))
        parts.append(_TITLES.format(left, floor, right, self.chart.y_title, right + 16, floor + 18, self.chart.x_title))
        parts.append(self.note())
        return Markup("").join(parts)

    def past(self) -> Markup:
        """Draw the region past the trained length, if the axis reaches beyond it."""
        boundary = self.chart.boundary
        if boundary is None or not self.x_low <= boundary < self.x_high:
            return Markup("")
        x, top, floor = self.x(boundary), self.ceiling, self.floor
        return _PAST.format(x, top, self.right - x, floor - top, x, top, floor)

    def note(self) -> Markup:
        """Label that region, above the grid."""
        boundary = self.chart.boundary
        if boundary is None or not self.x_low <= boundary < self.x_high:
            return Markup("")
        words = self.chart.boundary_labels[self.frame.kind == "narrow"]
        return _NOTE.format(self.x(boundary) + 5, self.floor - 7, words)

    def body(self, line: Line) -> Markup:
        """Draw one line with its markers, seeds and whiskers."""
        xs = [self.x(x) for x in line.xs]
        path = "M" + "L".join(f"{x:.1f} {self.y(y):.1f}" for x, y in zip(xs, line.ys, strict=True))
        inside = _PATH.format(path, line.mark.dash or "none")
        for x, (low, high) in zip(xs, line.ranges, strict=False):
            if self.y(low) - self.y(high) > 2:
                inside += _WHISKER.format(x, self.y(high), self.y(low))
        for x, values in zip(xs, line.seeds, strict=False):
            for value in values if len(values) > 1 else ():
                inside += _SEED.format(x, self.y(value), 1.6 if line.ranges else 2.6)
        drawn = Markup('<g clip-path="url(#{}-clip)">{}</g>').format(self.ident, inside)
        for x, value in list(zip(xs, line.ys, strict=True))[0 if line.points else -1 :]:
            if value <= self.high:
                drawn += _MARK.format(line.mark.marker, x, self.y(value))
        return drawn

    def exit(self, line: Line) -> float:
        """Return the x at which a line that ends above the plot last leaves it."""
        points = [(self.x(x), y) for x, y in zip(line.xs, line.ys, strict=True)]
        for (x0, y0), (x1, y1) in reversed(list(pairwise(points))):
            if y0 <= self.high < y1:
                return x0 + (x1 - x0) * (self.high - y0) / (y1 - y0)
        return points[0][0]

    def series(self) -> Markup:
        """Draw all lines, each grouped with its label, so that hovering over either highlights the line."""
        ranked = sorted(self.lines, key=lambda line: -line.ys[-1])
        rails = [line for line in ranked if line.ys[-1] > self.high]
        ends = [
            self.ceiling - 5 * (len(rails) - k) if k < len(rails) else self.y(line.ys[-1])
            for k, line in enumerate(ranked)
        ]
        spots = spread_labels(ends, self.frame.gap, self.frame.top - 6, self.floor - 4)
        groups = [self.group(line, end, spot) for line, end, spot in zip(ranked, ends, spots, strict=True)]
        return Markup("").join(reversed(groups))

    def group(self, line: Line, end: float, spot: float) -> Markup:
        """Draw one line, its label, and the leader between them."""
        mark, last, shown = line.mark, line.ys[-1], f"{line.ys[-1]:.2f}"
        over = last > self.high
        start = self.x(line.xs[-1])
        reach = self.right + (26 if self.frame.kind == "wide" else 12)
        rail = Markup("")
        if over:
            rail = _RAIL.format(self.exit(line), self.ceiling, end, self.right)
            start = self.right
        return _SERIES.format(
            colour=mark.colour,
            faint=" faint" if line.note else "",
            index=mark.index,
            title=tr(
                "{name}: {value} {unit} at the end", name=line.name + line.note, value=shown, unit=self.chart.unit
            ),
            note=line.note,
            last=shown,
            drawn=self.body(line) + rail,
            leader=_LEADER.format(start + (0 if over else 5), end, reach - 6, spot, reach),
            mark=_MARK.format(mark.marker, reach + 4, spot),
            x=reach + 11,
            y=f"{spot:.1f}",
            short=shorten(line.name, self.frame.letters),
            arrow=" ↑" if over else "",
        )

    def draw(self) -> Markup:
        """Return the whole drawing."""
        return _SVG.format(
            kind=self.frame.kind,
            width=self.frame.width,
            height=self.frame.height,
            id=self.ident,
            title=self.chart.title,
            desc=self.chart.description,
            x=self.frame.left,
            y=self.ceiling,
            w=self.right - self.frame.left + 6,
            h=self.floor - self.ceiling,
            axes=self.axes(),
            series=self.series(),
        )


def line_chart(chart: Chart, lines: Sequence[Line]) -> Markup:
    """Return a chart drawn wide and narrow, or an empty string if there is no line to draw.

    Takes the chart's texts and ticks, and lines with at least one point each. Raises nothing.
    """
    drawn = [line for line in lines if line.ys]
    if not drawn:
        return Markup("")
    return Markup("").join(_Plot(chart, drawn, frame).draw() for frame in (WIDE, NARROW))
