"""Write ATTEND.md: the rows of `posenc bench attend --full`, an hour of them, in one run or in several.

    python benchmarks/attend_page.py [--part] [--keep FOLDER [--again PATTERN ...]]
    python benchmarks/attend_page.py --keep FOLDER --only PATTERN ... --page ATTEND_AMX.md

Each row is measured in a process of its own, since what others leave in one costs up to a quarter: pages of the
allocator, compiled code. With --keep each row lies in FOLDER as JSON once it is measured, and a further run goes on
with what is missing, or measures again the rows that a PATTERN fits (`t5.*`). Rows of another machine are refused: a
page of its own has some of the rows, without peers.
"""

import argparse
import json
import multiprocessing
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from posenc.bench import attend, machine, rows, text
from posenc.bench.told import Found

PAGE = Path(__file__).with_name("ATTEND.md")
BUDGET_S = 10.0  # of one comparison, beyond three rounds
# peers take most of the time: here, and for goals that are a share of theirs
WITH_PEERS = ("alibi.forward.*.float32", "t5.forward.*.float32", "t5.train*", "kerple.train*", "t5.decode*")
WITH_PEERS += ("tupe.forward*", "tupe.batch*")


def choose(part: bool, only: Sequence[str]) -> list[rows.Row]:
    """Return the page's rows; a part of them, 4,096 tokens and decoding in float32, takes a quarter of an hour."""
    chosen = rows.choose([], ["float32"] if part else [], None, full=not part)
    if only:
        return [replace(r, peers=()) for r in chosen if any(rows.matches(r.key, one) for one in only)]
    if part:
        chosen = [r for r in chosen if r.device == "cpu" and (r.length == 4096 or r.mode == "decode")]
    return [r if any(rows.matches(r.key, one) for one in WITH_PEERS) else replace(r, peers=()) for r in chosen]


def measure(row: rows.Row) -> Found:
    """Measure a row in a process that measured no other."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:
        return fresh.submit(_measure, row).result()


def _measure(row: rows.Row) -> Found:
    attend.ROW_BUDGET_S = BUDGET_S
    return attend.measure_row(row)


def read(path: Path, where: str) -> tuple[Found, str] | None:
    """Return a kept row and the day it was measured, or None; one of another machine raises ValueError."""
    if not path.exists():
        return None
    kept = json.loads(path.read_text())
    if kept["machine"] != where:
        raise ValueError(f"{path} was measured on {kept['machine']}, and this is {where}: keep one machine per folder.")
    return kept["row"], kept["day"]


def main(given: Sequence[str] | None = None) -> int:
    """Measure what is missing and write the page anew after each row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="store_true", help="4,096 tokens and decoding in float32 alone")
    parser.add_argument("--keep", type=Path, help="a folder for rows that are measured")
    parser.add_argument("--again", nargs="+", default=[], metavar="PATTERN", help="measure these rows again")
    parser.add_argument("--only", nargs="+", default=[], metavar="PATTERN", help="these rows alone, without peers")
    parser.add_argument("--page", type=Path, default=PAGE, help="the file to write (ATTEND.md)")
    asked = parser.parse_args(given)
    if asked.only and asked.page == PAGE:
        parser.error("--only would leave most rows out of ATTEND.md; name another file: --page FILE.")
    if asked.again and not asked.keep:
        parser.error("--again measures rows of a folder again; say which: --keep FOLDER.")
    chosen = choose(asked.part, asked.only)
    report = attend.begin(chosen)
    where, days = machine.sentence(report["machine"]), set()
    if asked.keep:
        asked.keep.mkdir(parents=True, exist_ok=True)
    paths = {row.key: asked.keep / f"{row.key}.json" for row in chosen if asked.keep}
    again = {key for key in paths if any(rows.matches(key, one) for one in asked.again)}
    known = {key: read(path, where) for key, path in paths.items() if key not in again}  # before the page is touched
    for row in chosen:
        found = known.get(row.key)
        if found is None:
            found = measure(row), f"{datetime.now(UTC):%Y-%m-%d}"
            if row.key in paths:
                whole = paths[row.key].with_suffix(".new")
                whole.write_text(json.dumps({"machine": where, "day": found[1], "row": found[0]}))
                whole.replace(paths[row.key])
            print("\n".join(text.row_lines(found[0])), flush=True)
        report["rows"].append(found[0])
        days.add(found[1])
        report["growth"] = list(attend.grow(report["rows"]))
        asked.page.write_text(text.markdown(report, f"{where}; measured on {' and '.join(sorted(days))}"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
