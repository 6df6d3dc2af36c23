"""Measure this machine and write ATTEND.md and ROTARY.md: the rows of `posenc bench attend` and `posenc bench rotary`.

    python benchmarks/run.py [attend | rotary] [--only PATTERN]

One line a row; each row is measured in a process of its own, since what others leave in one costs up to a quarter:
pages of the allocator, compiled code. The page is written anew after each row. With --only the page is printed.
"""

import argparse
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from datetime import UTC, datetime
from pathlib import Path

from posenc.bench import machine, report
from posenc.bench.report import Found
from posenc.bench.rows import Row, choose

HERE = Path(__file__).parent
PAGES = {"attend": "Attention with a position bias, measured", "rotary": "Rotation of queries and keys, measured"}
COLUMNS = "| row | tokens | dtype | baseline | posenc | others | goals |\n|---|---|---|---|---|---|---|"
NOTE = (
    "A number is a ratio to the baseline in the same round: median (middle half), then memory in sizes of q. "
    "docs/speed.md says how it is measured."
)


def measure(row: Row) -> Found:
    """Measure a row in a process that measured no other; one that the system stops is a row that says so."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:
        try:
            return fresh.submit(report.measure_row, row).result()
        except BrokenProcessPool:
            return report.describe(row) | {"skipped": "not measured: its process was stopped, for lack of memory"}


def line(row: Found) -> str:
    """Return one row as a line of a table."""
    items = f"{row['batch']} x " if row["batch"] > 1 else ""
    head = f"| {row['name']} | {items}{row['length']:,} | {row['dtype']}"
    if row["skipped"]:
        return f"{head} | {row['skipped']} | | | |"
    base, *rest = row["candidates"]
    sides = {"posenc": [], "peer": []}
    for one in rest:
        sides[one["role"]].append(_words(one))
    goals = [sentence.partition(" at most ")[2] for sentence in report.goal_sentences(row)]
    cells = [f"{base['title']}, {report.duration(base['seconds']['median'])}"]
    cells += ["; ".join(sides["posenc"]), "; ".join(sides["peer"]), "; ".join(goals)]
    return f"{head} | {' | '.join(cells)} |"


def _words(one: Found) -> str:
    name = one["title"].removeprefix("posenc").lstrip(", ") or "posenc"
    if one["skipped"]:
        return f"{name}: {one['skipped']}"
    _, ratio, half, _, of_q, rate = report.cells(one)
    return f"{name} {ratio} ({half})" + (f", {of_q} q" if of_q else "") + (f", {rate} tokens/s" if rate else "")


def page(title: str, found: list[Found], command: str) -> str:
    """Return a whole page."""
    where = f"Machine: {machine.sentence(machine.examine())}."
    when = f"Written by `python benchmarks/run.py {command}` on {datetime.now(UTC):%Y-%m-%d}."
    return f"# {title}\n\n{NOTE} {when}\n\n{where}\n\n{COLUMNS}\n" + "\n".join(map(line, found)) + "\n"


def main() -> int:
    """Measure what was named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", choices=list(PAGES), default=list(PAGES))
    parser.add_argument("--only", help="rows with this in their name; the page is printed, not written")
    asked = parser.parse_args()
    for command in asked.pages:
        found: list[Found] = []
        for row in (row for row in choose(command, only=asked.only) if row.device == "cpu"):
            found.append(measure(row))
            print("\n".join(report.row_lines(found[-1])), flush=True)
            if not asked.only:
                (HERE / f"{command.upper()}.md").write_text(page(PAGES[command], found, command))
        if asked.only:
            print(page(PAGES[command], found, command))
    return 0


if __name__ == "__main__":
    sys.exit(main())
