"""The plan of a study as data: its cells, their estimated times, and the steps that a budget allows."""

import heapq
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from posenc.study.config import Cell

MARGIN = 0.8  # of the budget: trials are short, and other work on the machine is unknown
REPORT_S = 2.0  # for the report
Kind = tuple[str, str, str]  # encoding, task and size: cells that differ only in the seed cost the same


class Estimate(NamedTuple):
    """The cost of one cell of a kind, in seconds."""

    step_s: float
    tests_s: float

    def cell(self, steps: int) -> float:
        """Return the seconds of a whole cell."""
        return steps * self.step_s + self.tests_s


def kind(cell: Cell) -> Kind:
    """Return the facts that a cell's cost depends on."""
    return cell.encoding, cell.task, cell.size


def make(cells: Sequence[Cell], estimates: Mapping[Kind, Estimate], steps: int, workers: int) -> dict[str, Any]:
    """Return the plan as JSON values: cells in the order in which they start, and seconds.

    Cells are ordered by seed, so that an interrupted study has run everything once; within a seed the longest cells
    come first.
    """
    rows = [
        {**cell._asdict(), "name": cell.name, "steps": steps, "seconds": round(estimates[kind(cell)].cell(steps), 2)}
        for cell in cells
    ]
    rows.sort(key=lambda row: (row["seed"], -row["seconds"]))
    return {"cells": rows, "seconds": round(makespan([r["seconds"] for r in rows], workers), 1), "workers": workers}


def affordable(
    cells: Sequence[Cell], estimates: Mapping[Kind, Estimate], budget_s: float, gone_s: float, workers: int
) -> int:
    """Return the largest number of steps with which all cells fit into the rest of a budget.

    Raises:
        ValueError: The budget is too small for one step of each cell.
    """
    left = budget_s * MARGIN - REPORT_S - gone_s

    def needed(steps: int) -> float:
        return makespan([estimates[kind(cell)].cell(steps) for cell in cells], workers)

    if needed(1) > left:
        raise ValueError(
            f"study: the budget of {budget_s:g}s is too small for one step of each of the {len(cells)} cells: they "
            f"need about {budget_s - left + needed(1):.0f}s. Give a larger --budget, fewer --encodings, or fewer "
            "--seeds."
        )
    low, high = 1, 2
    while needed(high) <= left:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if needed(middle) <= left else (low, middle)
    return low


def makespan(jobs: Sequence[float], workers: int) -> float:
    """Return the time at which the last job ends if each goes to the first free worker.

    >>> makespan([3.0, 2.0, 2.0], 2)
    4.0
    """
    free = [0.0] * max(1, workers)
    for job in jobs:
        heapq.heapreplace(free, free[0] + job)
    return max(free)
