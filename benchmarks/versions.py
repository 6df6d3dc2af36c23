"""Run posenc's tests on the versions of torch and transformers that people have; `make versions` does.

Each row of ROWS gets an environment under .versions: one for a version of torch, and next to it a folder of packages
for each version of transformers. Warnings of other versions are no failures. The table goes to docs/versions.md, the
output of a row to .versions/logs. Versions that lack something skip the tests of it, which say what it is.
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
HOME, PAGE = ROOT / ".versions", ROOT / "docs" / "versions.md"
ROOMS = {
    "invariants": ("tests/laws",),
    "attention": ("tests/attention",),
    "kernels": ("tests/kernels",),
    "peers": ("tests/peers",),
    "hf": tuple(sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests/interop").glob("test_hf*.py"))),
}
OF_TRANSFORMERS = ("peers", "hf")


class Row(NamedTuple):
    """A pair of versions, what else is asked for next to them, and which tests are run."""

    torch: str
    transformers: str
    rooms: tuple[str, ...] = OF_TRANSFORMERS
    pins: tuple[str, ...] = ()


OLD_NUMPY = ("numpy<2.3",)  # with later ones the interpreter of their Triton stops
ROWS = [
    Row("2.6.0", "5.23.0", tuple(ROOMS), OLD_NUMPY),
    Row("2.9.1", "5.23.0", tuple(ROOMS), OLD_NUMPY),
    Row("2.11.0", "5.23.0", tuple(ROOMS)),  # what machines with a GPU have
    Row("2.13.0", "5.23.0", tuple(ROOMS)),
    Row("2.14.1", "5.24.0", tuple(ROOMS)),
    *(Row("2.13.0", version) for version in ("5.0.0", "5.6.2", "5.13.1", "5.16.1", "5.19.0", "5.20.2", "5.24.0")),
]


def main() -> None:
    """Build what is missing, run the rows that are asked for, and write their lines into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch", nargs="*", help="only rows of these versions")
    parser.add_argument("--transformers", nargs="*", help="only rows of these versions")
    parser.add_argument("--rooms", nargs="*", choices=list(ROOMS), help="only these tests; the page stays as it is")
    given = parser.parse_args()
    for row in ROWS:
        if row.torch in (given.torch or [row.torch]) and row.transformers in (given.transformers or [row.transformers]):
            rooms = [room for room in row.rooms if room in (given.rooms or row.rooms)]
            line = _line(row, _run(row, rooms))
            print(line, flush=True)
            if given.rooms is None:
                _write(line)


def _run(row: Row, rooms: list[str]) -> dict[str, str]:
    """Run some tests in the environment of a row, and return what each printed last."""
    python, packages = _environment(row)
    own = {"PYTHONPATH": f"{packages}{os.pathsep}{ROOT / 'src'}", "PYTHONDONTWRITEBYTECODE": "1"}
    # a file whose peers this transformers does not have is an error, and the others run
    options = ("-q", "-ra", "--tb=short", "-p", "no:cacheprovider", "--continue-on-collection-errors")
    options += ("-o", "filterwarnings=default")
    found = {}
    for room in rooms:
        log = HOME / "logs" / f"{row.torch}-{row.transformers}-{room}.log"
        log.parent.mkdir(exist_ok=True)
        with log.open("w") as out:
            command = [str(python), "-m", "pytest", *options, *ROOMS[room]]
            status = subprocess.run(command, cwd=ROOT, env=os.environ | own, stdout=out, stderr=subprocess.STDOUT)
        last = [line for line in log.read_text().splitlines() if re.search(r"\d+ passed.* in \d", line)]
        counts = re.findall(r"(\d+) (passed|failed|skipped|errors?)\b", last[-1]) if last else []
        found[room] = ", ".join(" ".join(pair) for pair in counts) or f"stopped with {status.returncode}"
    return found


def _environment(row: Row) -> tuple[Path, Path]:
    """Return the interpreter of a row and its folder of packages, which are built where they are missing."""
    venv = HOME / f"torch-{row.torch}"
    python, packages = venv / "bin" / "python", HOME / f"torch-{row.torch}-transformers-{row.transformers}"
    if not (venv / "ready").exists():
        _call(sys.executable, "-m", "venv", str(venv))
        _call(str(python), "-m", "pip", "install", "--quiet", f"torch=={row.torch}", "uv")
        own = ("--editable", f"{ROOT}[test]", f"torch=={row.torch}", *row.pins)
        _call(str(python), "-m", "uv", "pip", "install", "--quiet", "--python", str(python), *own)
        _call(str(python), "-m", "pip", "install", "--quiet", "--no-deps", "timm>=1.0")
        (venv / "ready").touch()
    if not packages.exists():
        own = (f"transformers=={row.transformers}", *row.pins)
        uv = (str(python), "-m", "uv", "pip", "install", "--quiet", "--python", str(python))
        _call(*uv, "--target", str(packages), *own)
    return python, packages


def _call(*command: str) -> None:
    subprocess.run(command, check=True, cwd=ROOT)


def _line(row: Row, found: dict[str, str]) -> str:
    return f"| {row.torch} | {row.transformers} | " + " | ".join(found.get(room, "") for room in ROOMS) + " |"


def _write(line: str) -> None:
    """Put a row's line into the page, in place of the one that it has."""
    start = "|".join(line.split("|")[:3])
    lines = PAGE.read_text().splitlines()
    at = next((i for i, old in enumerate(lines) if old.startswith(start)), None)
    if at is None:
        at = max(i for i, old in enumerate(lines) if old.count("|") == line.count("|")) + 1
        lines.insert(at, line)
    lines[at] = line
    PAGE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
