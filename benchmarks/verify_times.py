"""Measure how long `posenc verify` takes, and write VERIFY.md: each check of the tests' programs, and the command.

`python benchmarks/verify_times.py` takes about ten minutes: what ends in less than half of its goal runs once, since no
repetition could change what is said of it. Files that are named are measured in place of those programs, and
`--out FILE` writes elsewhere.
"""

import argparse
import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TESTS = HERE.parent / "tests"
CHECK_S, COMMAND_S = 5.0, 3.0  # the goals
CORES = 2
ROUNDS = 3
COMMANDS = 1  # files of each convention that the command is run on, where all are measured; and the slowest checks
NEAR = 0.5  # of a goal: what takes longer is repeated
SLOWEST = 10


@dataclass(frozen=True)
class Timed:
    """What one file takes.

    Args:
        path: The file.
        convention: Its STYLE.
        status: What the check says.
        check_s: Of verify.check in a process that has imported all,
        command_s: Of the whole command beyond importing torch; None where it was not run.
    """

    path: Path
    convention: str
    status: str
    check_s: float
    command_s: float | None = None


def keep_to(cores: int) -> None:
    """Keep this process and those that it starts to so many cores, where the system can, and torch to so many threads.

    It must come before torch is imported, which counts the cores then.
    """
    os.environ["OMP_NUM_THREADS"] = str(cores)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])


def loaded(path: Path) -> Any:
    """Import a file that has STYLE, SPEC and build()."""
    spec = importlib.util.spec_from_file_location(f"timed_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def written(folder: Path) -> list[Path]:
    """Write every program of the tests, correct and faulty, into a folder, and return the files."""
    sys.path.insert(0, str(TESTS))
    import programs

    paths = []
    for name, case in programs.cases().items():
        paths.append(folder / f"{name}.py")
        paths[-1].parent.mkdir(exist_ok=True)
        paths[-1].write_text(case.source, encoding="utf-8")
    return paths


def seconds(run: Callable[[], object]) -> float:
    """Return how long a run takes."""
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def command(*arguments: str) -> Callable[[], object]:
    """Return a run of Python that must answer, whatever it finds."""

    def run() -> None:
        done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1, 3):
            raise RuntimeError(f"{' '.join(arguments)} ended with {done.returncode}: {done.stderr[-500:]}")

    return run


def steady(first: float, again: Callable[[], float], goal: float, rounds: int) -> float:
    """Return a first time where it is far below a goal, else the median of as many as asked for."""
    return first if first < NEAR * goal else statistics.median([first, *(again() for _ in range(rounds - 1))])


def measure(paths: Sequence[Path], rounds: int, *, commands: int | None) -> tuple[float, list[Timed]]:
    """Return the seconds that importing torch takes, and what each file takes.

    Args:
        paths: Files with STYLE, SPEC and build().
        rounds: Runs of each that is near a goal.
        commands: On how many files of each convention the command runs, besides those whose checks are the slowest;
            None for all.
    """
    found = [check_time(path, rounds) for path in paths]
    slowest = sorted(found, key=lambda one: -one.check_s)[: 0 if commands is None else SLOWEST // 2]
    bare, torch_s, ran = command("-c", "import torch"), list[float](), dict[str, int]()
    for i, one in enumerate(found):
        done = ran.get(one.convention, 0)
        if commands is not None and done >= commands and one not in slowest:
            continue
        ran[one.convention] = done + 1
        whole = command("-m", "posenc", "verify", str(one.path))

        def beyond(whole: Callable[[], object] = whole) -> float:
            torch_s.append(seconds(bare))  # one after the other, so that both meet the same machine
            return seconds(whole) - statistics.median(torch_s)

        found[i] = replace(one, command_s=steady(beyond(), beyond, COMMAND_S, rounds))
        print(f"{one.path.stem}: command {found[i].command_s:.2f} s", flush=True)
    return statistics.median(torch_s), found


def check_time(path: Path, rounds: int) -> Timed:
    """Measure verify.check of a file in this process."""
    from posenc import verify

    module, said = loaded(path), list[str]()

    def once() -> float:
        begun = time.perf_counter()
        said.append(verify.check(module.build(), convention=module.STYLE, spec=module.SPEC).status)
        return time.perf_counter() - begun

    check_s = steady(once(), once, CHECK_S, rounds)
    print(f"{path.stem}: {check_s:.2f} s", flush=True)
    return Timed(path, module.STYLE, said[-1], check_s)


def page(torch_s: float, found: Sequence[Timed], rounds: int) -> str:
    """Return what was measured as Markdown."""
    from posenc.bench import machine

    facts = machine.examine()
    reported = [one for one in found if one.command_s is not None]
    slow_check = max(found, key=lambda one: one.check_s)
    slow_command = max(reported, key=lambda one: one.command_s or 0.0)
    lines = [
        "# How long verify takes",
        "",
        f"One run on {CORES} cores, and the median of {rounds} where that takes over half of a goal. Written by "
        f"`python benchmarks/verify_times.py` on "
        f"{datetime.now(UTC):%Y-%m-%d}. Machine: {machine.sentence(facts)}.",
        "",
        f"- Goal: a whole check takes under {CHECK_S:g} s. Slowest of {len(found)}: {slow_check.check_s:.2f} s "
        f"({_name(slow_check)}), {_met(slow_check.check_s, CHECK_S)}.",
        f"- Goal: `posenc verify FILE`, with its check, starts and ends in under {COMMAND_S:g} s beyond importing "
        f"torch, which takes {torch_s:.2f} s here. Slowest of {len(reported)}: {slow_command.command_s:.2f} s "
        f"({_name(slow_command)}), {_met(slow_command.command_s or 0.0, COMMAND_S)}.",
        "",
        "| convention | files | check, median | check, slowest | command, median | command, slowest |",
        "|---|---|---|---|---|---|",
    ]
    for convention in sorted({one.convention for one in found}):
        mine = [one for one in found if one.convention == convention]
        cells = [_spread([one.check_s for one in mine]), _spread([one.command_s for one in mine])]
        lines.append(f"| `{convention}` | {len(mine)} | {' | '.join(cells)} |")
    lines += ["", "The slowest checks:", "", "| file | convention | says | check | command |", "|---|---|---|---|---|"]
    for one in sorted(found, key=lambda one: -one.check_s)[:SLOWEST]:
        ran = "not run" if one.command_s is None else f"{one.command_s:.2f} s"
        lines.append(f"| {_name(one)} | `{one.convention}` | {one.status} | {one.check_s:.2f} s | {ran} |")
    return "\n".join(lines) + "\n"


def _spread(seconds: Sequence[float | None]) -> str:
    known = [s for s in seconds if s is not None]
    if not known:
        return "not run | not run"
    return f"{statistics.median(known):.2f} s | {max(known):.2f} s"


def _met(seconds: float, goal: float) -> str:
    return "met" if seconds < goal else "NOT met"


def _name(one: Timed) -> str:
    return f"{one.path.parent.name}/{one.path.name}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write the page; 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="Files to measure in place of the tests' programs.")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path, default=HERE / "VERIFY.md")
    asked = parser.parse_args(arguments)
    keep_to(CORES)
    with tempfile.TemporaryDirectory() as folder:
        paths = asked.files or written(Path(folder))
        torch_s, found = measure(paths, asked.rounds, commands=None if asked.files else COMMANDS)
    asked.out.write_text(page(torch_s, found, asked.rounds), encoding="utf-8")
    late = [one for one in found if one.check_s >= CHECK_S or (one.command_s or 0.0) >= COMMAND_S]
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
