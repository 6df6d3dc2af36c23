"""Measure how long each command that needs no torch takes from its start to its end, and write STARTS.md.

    python benchmarks/starts.py PYTHON    # of an environment with posenc and without torch

Each command is a process of its own; commands take turns, and each number is the median and the least of the rounds.
"""

import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from posenc.bench import machine

GOAL, ROUNDS = 0.4, 11  # seconds, and how often each is started
COMMANDS = (
    "--version",
    "list",
    "show rope",
    "inspect llama-3.1-8b",
    "verify-config llama-3.1-8b",
    "rule rope.layout.mixed",
    "golden --config llama-3.1-8b --out golden",
    "parity qwen3-8b-yarn4",
    "plan qwen3-8b --target-len 131072",
    "write qwen3-8b --method yarn --factor 4 --to vllm",
)
BARE = "-c pass"  # Python itself


def main() -> None:
    """Start everything in turn, and write the page."""
    (python,) = sys.argv[1:]
    python = str(Path(python).absolute())
    if not subprocess.run([python, "-c", "import torch"], capture_output=True).returncode:
        sys.exit(f"{python} has torch; name the interpreter of an environment without it.")
    taken = {command: list[float]() for command in (BARE, *COMMANDS)}
    for _ in range(ROUNDS):
        for command, seconds in taken.items():
            seconds.append(_start(python, command))
    rows = [f"| {command} | {median(found):.2f} | {min(found):.2f} |" for command, found in taken.items()]
    machine_line = machine.sentence(machine.examine())
    page = [
        "# Starts of commands without torch",
        "",
        f"`python benchmarks/starts.py PYTHON` on {datetime.now(UTC):%Y-%m-%d}. Seconds of wall time of a process, "
        f"{ROUNDS} rounds in turn; the goal is {GOAL}. Machine (torch is the script's): {machine_line}.",
        "",
        "| `posenc ...` | median | least |",
        "|---|---|---|",
        *rows,
    ]
    (Path(__file__).parent / "STARTS.md").write_text("\n".join(page) + "\n")
    print("\n".join(page))


def _start(python: str, command: str) -> float:
    words = command.split() if command == BARE else ["-m", "posenc", *command.split()]
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        subprocess.run([python, *words], cwd=folder, capture_output=True)
        return time.perf_counter() - begin


if __name__ == "__main__":
    main()
