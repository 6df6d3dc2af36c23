"""The evaluation's report, in the study's style: one self-contained HTML file."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from posenc.extend.evaluate.findings import NONE, Estimate, Findings
from posenc.extend.evaluate.measures import DEPTHS, NEEDLES, POSITION, SLIDING
from posenc.study.charts import Chart, line_chart
from posenc.study.marks import Mark, assign_marks, swatch
from posenc.study.measures import FLAT, plain, signed
from posenc.study.page import asset, write_page
from posenc.study.scales import Line, y_range
from posenc.study.tables import NONE as NOTHING
from posenc.study.tables import arxiv_link

Run = Mapping[str, Any]


def render(run: Run, cells: Sequence[Mapping[str, Any]]) -> str:
    """Return the whole page as one string of HTML.

    Args:
        run: The record of an evaluation.
        cells: The finished cells, at least one.
    """
    found, marks = Findings(run, cells), assign_marks(run["methods"])
    lengths = sorted({*found.short, *found.lengths})
    chart, cut = _chart(found, marks, lengths, run["unit"])
    context = {
        "run": run,
        "answer": answer(found, run["unit"]),
        "facts": _facts(run, len(cells)),
        "lengths": lengths,
        "long": found.lengths,
        "times": lambda length: f"{length / found.trained_len:g}×",
        "chart": chart,
        "cut": cut,
        "position": _table(found, POSITION, lengths, lambda one: _with_ends(one, 3)),
        "sliding": _table(found, SLIDING, found.lengths, _perplexity),
        "against": _against(found, lengths),
        "expected": [(one, _with_ends(gap, 3, sign=True), _share(gap), verdict)
                     for one, gap, verdict in found.expectations(found.lengths[-1])],
        "guard": [(name, [_with_ends(cost, 3, sign=True) for cost in costs], verdict)
                  for name, costs, verdict in found.guard()],
        "flat": f"{FLAT:g}",
        "needles": {kind: _needles(found, kind) for kind in found.kinds},
        "templates": NEEDLES,
        "depths": [f"{depth:.0%}" for depth in DEPTHS],
        "swatch": lambda name: swatch(marks[name]),
        "key": lambda name: marks[name].index,
        "arxiv": arxiv_link,
    }  # fmt: skip
    return write_page(asset("posenc.extend.evaluate", "report.html.j2"), context, {"run": run, "cells": cells})


def answer(found: Findings, unit: str) -> list[str]:
    """Return the findings as sentences: the ranking at the longest length, published rankings, short texts, needles."""
    longest = found.lengths[-1]
    where = f"{longest:,} {unit}s ({longest / found.trained_len:g}× the trained length)"
    ranking = found.ranking(longest)
    if not ranking:
        return [f"Nothing is measured at {where} yet."]
    parts = []
    for name, mean, apart in ranking:
        parts += ["," if apart else ", not significantly better than", f" {name} {plain(mean.mean, 3)}"]
    sentences = [f"Bits per {unit} at {where}, best first: {''.join(parts[1:]).strip()}."]
    for one, gap, verdict in found.expectations(longest):
        if verdict != "seen":
            sentences.append(f"{one.claim}: {verdict} here ({_with_ends(gap, 3, sign=True)} bits).")
    lost = [name for name, _, verdict in found.guard() if verdict == "lost"]
    if lost:
        sentences.append(f"Short texts lose more than {FLAT:g} bits per {unit} with {', '.join(lost)}.")
    helps = []
    for kind in found.kinds:
        gains = {name: found.mean(name, kind, longest, "gain") for name in found.methods}
        if names := [name for name, gain in gains.items() if gain and gain.low > FLAT]:
            helps.append(f"{kind} with {', '.join(names)}")
    if found.kinds:
        kinds = "; ".join(helps) or "none with any method"
        which = f"Needles that save significantly more than {FLAT:g} bits per {unit} of the answer at that length"
        sentences.append(f"{which}: {kinds}.")
    return sentences


def _facts(run: Run, n_cells: int) -> list[str]:
    models = len(run["models"])
    return [
        f"{models} {'model' if models == 1 else 'models'}, trained at {run['trained_len']:,} {run['unit']}s",
        f"{run['text']['name']}, {run['text']['tokens']:,} {run['unit']}s",
        f"{run['pieces']} pieces of {run['scored']} scored {run['unit']}s",
        f"{n_cells} of {run['expected']} cells",
    ]


def _chart(found: Findings, marks: Mapping[str, Mark], lengths: Sequence[int], unit: str) -> tuple[str, str]:
    """Draw the loss by length of context, and return the end of its axis if a line leaves it."""
    lines = []
    for name in found.methods:
        means = {n: mean for n in lengths if (mean := found.mean(name, POSITION, n))}
        if means:
            xs, stats = tuple(math.log2(n) for n in means), tuple(means.values())
            ends, models = tuple((one.low, one.high) for one in stats), tuple(one.models for one in stats)
            lines.append(Line(name, marks[name], xs, tuple(one.mean for one in stats), ends, models))
    chart = Chart(
        "by-position",
        "Loss of the same scored tokens by length of context, one line per method",
        f"Bits per {unit} with {', '.join(map(str, lengths))} {unit}s of context. All values are in the table below.",
        tuple((math.log2(n), f"{n:,}", f"{n / found.trained_len:g}×") for n in lengths),
        f"{unit}s of context",
        math.log2(found.trained_len),
        ("past the trained length", "past trained"),
        f"Bits per {unit}, lower is better",
        f"bits per {unit}",
    )
    _, high, clipped = y_range(lines) if lines else (0.0, 0.0, False)
    return line_chart(chart, lines), f"{high:.1f}" if clipped else ""


def _table(found: Findings, measure: str, lengths: Sequence[int], show: Any) -> list[tuple[str, list[str]]]:
    """Return a row for each method, with a formatted value for each length."""
    return [(name, [show(found.mean(name, measure, length)) for length in lengths]) for name in found.methods]


def _against(found: Findings, lengths: Sequence[int]) -> list[tuple[str, list[str]]]:
    """Return how many bits each method is above the unscaled model, on the same tokens."""
    return [
        (name, [_with_ends(found.difference(name, NONE, POSITION, n), 3, sign=True) for n in lengths])
        for name in found.methods
        if name != NONE
    ]


def _needles(found: Findings, kind: str) -> list[tuple[str, list[str], list[str]]]:
    """Return a row for each method: values by length, and by depth at the longest length."""

    def show(name: str, length: int, depth: float | None = None) -> str:
        gain, exact = (found.mean(name, kind, length, fact, depth) for fact in ("gain", "exact"))
        if gain is None or exact is None:
            return NOTHING
        ends = _with_ends(gain, 1, sign=True) if depth is None else signed(gain.mean, 1)
        return f"{ends} · {exact.mean:.0%}"

    longest = found.lengths[-1]
    return [
        (name, [show(name, n) for n in found.lengths], [show(name, longest, depth) for depth in DEPTHS])
        for name in found.methods
    ]


def _with_ends(one: Estimate | None, digits: int, sign: bool = False) -> str:
    """Return a mean with the ends of its interval."""
    if one is None:
        return NOTHING
    mean, low, high = (signed(value, digits) if sign else plain(value, digits) for value in one[:3])
    return f"{mean} [{low}, {high}]"


def _perplexity(one: Estimate | None) -> str:
    return NOTHING if one is None else f"{2**one.mean:,.2f} [{2**one.low:,.2f}, {2**one.high:,.2f}]"


def _share(gap: Estimate) -> str:
    """Return the number of models in which a difference is above 0."""
    return f"{sum(value > 0 for value in gap.models)} of {len(gap.models)}"
