"""What a suite sees: line coverage of src, and how many of a fixed sample of mutants it kills.

Run this before and after tests are taken away:

    python benchmarks/thinning.py coverage --tree DIR --json before.json
    python benchmarks/thinning.py mutants --tree DIR --json before.json [--ask FILE]

Coverage runs the commands of `make test` with every process traced, children included. For the mutants each room of src
is changed by the operators of `benchmarks/mutations`, one change at a time, in a copy of the tree; the tests of that
room, and the invariants of the encodings whose class stands in the changed file or inherits from it, run with `-x`.
Both print one line for each result as it comes; `--json` keeps them. `--ask FILE` runs only the mutants that survived
in an earlier result: what a part of a suite kills, the whole suite kills too.
"""

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "mutations"))

from mutants import Mutant, mutants, mutated

SEED = 35
ROOMS = {  # files below src/posenc, and the tests of their own
    "encodings": ["tests/encodings"],
    "families": ["tests/encodings", "tests/test_encoding.py"],
    "frequencies": ["tests/test_frequencies.py", "tests/definitions", "tests/encodings"],
    "attention": ["tests/attention"],
    "kernels": ["tests/kernels"],
}
NOT_COPIED = (".venv", ".git", "__pycache__", ".*_cache")
LIMIT = 3600  # seconds for one mutant; one that hangs is killed
OWNERS = """
import sys, posenc
for name in posenc.names():
    cls = posenc.card(name).cls
    if sys.argv[1] in [c.__module__ for c in cls.__mro__]:
        print(cls.__name__)
"""
COVERAGE = """[run]
source_pkgs = posenc
parallel = true
sigterm = true
data_file = {data}
disable_warnings = no-data-collected,module-not-imported,module-not-measured,already-imported
"""


def drawn(tree: Path, seed: int, n: int) -> list[Mutant]:
    """Return n mutants of each room; the same seed and source give the same ones."""
    root, chosen = tree / "src" / "posenc", []
    for room in ROOMS:
        found = [
            mutant
            for path in sorted((root / room).rglob("*.py"))
            for mutant in mutants(str(path.relative_to(root)), path.read_text())
            if not mutant.excluded
        ]
        chosen += random.Random(f"{seed} {room}").sample(found, n)
    return chosen


def commands(tree: Path) -> list[str]:
    """Return the lines of `make test` that run pytest."""
    shown = subprocess.run(["make", "-n", "-C", str(tree), "test"], capture_output=True, text=True, check=True)
    return [line for line in shown.stdout.replace("\\\n", " ").splitlines() if "-m pytest" in line]


def pytest_options(tree: Path, also: str = "") -> list[list[str]]:
    """Return what `make test` says to pytest about which tests run and how, without paths, workers and reports.

    Args:
        tree: The checkout.
        also: Marks that are asked for as well, such as "not compiles".
    """
    found = []
    for line in commands(tree):
        options = []
        marks = re.search(r'-m "([^"]*)"', line)
        hook = re.search(r"--jaxtyping-packages=\S+", line)
        asked = " and ".join(f"({said})" for said in (marks and marks[1], also) if said)
        options += ["-m", asked] if asked else []
        options += [hook[0]] if hook else []
        if "--doctest-modules" not in line:  # whose tests are of the command line and the study
            found.append(options)
    return [options for i, options in enumerate(found) if options not in found[:i]]


def environment(copy: Path) -> dict[str, str]:
    """Return an environment in which the copy's package is the one that is imported."""
    return os.environ | {"PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}


def judge(mutant: Mutant, copy: Path, python: str, marks: str) -> dict[str, Any]:
    """Run the tests of a mutant's room in a copy of the tree, and restore the copy; `marks` leaves some out."""
    path, room = copy / "src" / "posenc" / mutant.file, mutant.file.split("/")[0]
    source, start = path.read_text(), time.monotonic()
    module = "posenc." + mutant.file.removesuffix(".py").replace("/", ".")
    owners = subprocess.run(
        [python, "-c", OWNERS, module], env=environment(copy), capture_output=True, text=True, check=True
    ).stdout.split()
    targets = [["tests/laws/test_registry.py", "-k", " or ".join(owners)]] if owners else []
    killed_by = ""
    path.write_text(ast.unparse(mutated(source, mutant)))
    try:
        for options in pytest_options(copy, marks):
            for target in [*targets, ROOMS[room]]:
                killed_by = killed_by or failed([python, "-m", "pytest", "-x", "-q", *options, *target], copy)
    finally:
        path.write_text(source)
    row = {"room": room, "file": mutant.file, "line": mutant.line, "change": mutant.change, "site": mutant.site}
    return row | {"killed_by": killed_by, "seconds": round(time.monotonic() - start)}


def failed(command: list[str], copy: Path) -> str:
    """Return the first test that fails, or ""; no test selected is no failure."""
    with tempfile.TemporaryDirectory() as cache:
        own = ["-p", "no:cacheprovider", "--basetemp", f"{cache}/t"]
        try:
            done = subprocess.run(
                [*command, *own], cwd=copy, env=environment(copy), capture_output=True, text=True, timeout=LIMIT
            )
        except subprocess.TimeoutExpired:
            return "hangs"
    if done.returncode in (0, 5):
        return ""
    said = re.search(r"^(?:FAILED|ERROR) (.*)$", done.stdout, re.MULTILINE)
    return said[1][:160] if said else f"exit code {done.returncode}: {(done.stdout + done.stderr)[-160:]}"


def run_mutants(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Judge the sample, some mutants at once, each in a copy of its own."""
    chosen = [m for m in drawn(options.tree, options.seed, options.n) if m.file.split("/")[0] in options.rooms]
    if options.ask:
        asked = {(row["file"], *row["site"]) for row in json.loads(options.ask.read_text()) if not row["killed_by"]}
        chosen = [mutant for mutant in chosen if (mutant.file, *mutant.site) in asked]
    print(f"seed {options.seed}: {len(chosen)} mutants", flush=True)
    copies: Queue[Path] = Queue()
    with tempfile.TemporaryDirectory() as folder:
        for i in range(options.processes):
            copy = Path(folder) / f"copy{i}"
            shutil.copytree(options.tree, copy, ignore=shutil.ignore_patterns(*NOT_COPIED))
            copies.put(copy)

        def work(mutant: Mutant) -> dict[str, Any]:
            copy = copies.get()
            row = judge(mutant, copy, options.python, options.marks)
            copies.put(copy)
            said = row["killed_by"] or "SURVIVES"
            if options.json:
                with options.json.with_suffix(".jsonl").open("a") as lines:
                    lines.write(json.dumps(row) + "\n")
            print(f"{row['file']}:{row['line']} {row['change']}: {said}, {row['seconds']} s", flush=True)
            return row

        with ThreadPoolExecutor(options.processes) as pool:
            rows = list(pool.map(work, chosen))
    for room in ROOMS:
        here = [row for row in rows if row["room"] == room]
        print(f"{room}: {sum(bool(row['killed_by']) for row in here)} of {len(here)} killed")
    print(f"all: {sum(bool(row['killed_by']) for row in rows)} of {len(rows)} killed")
    return rows


def run_coverage(options: argparse.Namespace) -> dict[str, Any]:
    """Trace every Python process of the suite, and return the share of lines run, by room."""
    with tempfile.TemporaryDirectory() as folder:
        settings, data = Path(folder) / "rc", Path(folder) / "data"
        settings.write_text(COVERAGE.format(data=data))
        site = Path(folder) / "site"
        site.mkdir()
        (site / "sitecustomize.py").write_text("import coverage\ncoverage.process_startup()\n")
        env = os.environ | {"COVERAGE_PROCESS_START": str(settings), "PYTHONPATH": str(site)}
        for line in commands(options.tree):
            subprocess.run(line, shell=True, cwd=options.tree, env=env, check=False)
        tool = [options.python, "-m", "coverage"]
        subprocess.run([*tool, "combine", "-q", f"--rcfile={settings}"], check=True, cwd=options.tree)
        report = Path(folder) / "report.json"
        ours = ["json", "-q", f"--rcfile={settings}", f"--include={options.tree.resolve()}/src/*", "-o", str(report)]
        subprocess.run([*tool, *ours], check=True, cwd=options.tree)  # tests copy the package, and run copies
        files = json.loads(report.read_text())["files"]
    rooms: dict[str, list[int]] = {}
    for path, found in files.items():
        room = path.split("posenc/")[-1].split("/")[0]
        for key in (room, "all"):
            counts = rooms.setdefault(key, [0, 0])
            counts[0] += found["summary"]["covered_lines"]
            counts[1] += found["summary"]["num_statements"]
    for room, (covered, all_lines) in sorted(rooms.items()):
        print(f"{room}: {100 * covered / max(all_lines, 1):.2f} % of {all_lines} lines")
    return rooms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("coverage", "mutants"))
    parser.add_argument("--tree", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--python", default=sys.executable, help="of the environment that has the tests' packages")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--n", type=int, default=12, help="mutants of each room")
    parser.add_argument("--rooms", nargs="+", choices=ROOMS, default=list(ROOMS))
    parser.add_argument("--marks", default="", help='tests that are asked for as well as by make test: "not compiles"')
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--ask", type=Path, help="a result; run only the mutants that survived there")
    options = parser.parse_args()
    found = run_coverage(options) if options.what == "coverage" else run_mutants(options)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
