"""`posenc show NAME --precision`: where positions collide, and how large the errors of angles are."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posenc.cli import output

if TYPE_CHECKING:
    from posenc.precision import Found, Task

FORMULAS = ("float32", "bfloat16", "float16")
TIME_LIMIT = 60.0  # seconds for a user's formula; importing torch takes a few of them
_COLUMN = 10  # characters of a column of numbers
_NONE = "none"
# The child takes over its parent's sys.path; until then no file in its folder may shadow a module that it needs.
_CHILD = (
    "import json, sys; asked = json.load(sys.stdin); sys.path[:] = asked.pop('path'); "
    "from posenc.cli.precision import answer; answer(**asked)"
)


def measure(construct: Callable[[], Any], formula: str | None) -> "Found":
    """Measure the precision of an encoding and, for comparison, of a formula.

    Args:
        construct: Constructs the encoding.
        formula: One of `FORMULAS`, or `package.module:function`; None means float32 if a formula applies.

    Raises:
        ValueError: The formula is unknown, does not apply, or fails.
    """
    from posenc import precision

    if formula is not None and formula not in FORMULAS and ":" not in formula:
        raise ValueError(
            f"show: --formula must be one of {', '.join(FORMULAS)}, or your own function as "
            f"package.module:function; got {formula!r}."
        )
    encoding = construct()
    subject = precision.find_subject(encoding)
    if subject.task.inv_freq is None:
        if formula is not None:
            raise ValueError(
                f"show: --formula is for tables of cos and sin of pos * inv_freq, which {encoding.name} does not have; "
                f"got {formula!r}. Leave it out."
            )
        return precision.report(subject, None)
    if formula and ":" in formula:
        return precision.report(subject, ask_child(formula, subject.task))
    tables = precision.form_tables(subject.task.inv_freq, precision.DTYPES[formula or "float32"])
    return precision.report(subject, precision.examine(tables, subject.task))


def ask_child(formula: str, task: "Task") -> "Found":
    """Examine a user's formula in a child process, so that a crash or a hang cannot harm this one.

    Raises:
        ValueError: The formula fails, takes too long, or returns something else than cos and sin.
    """
    who = f"show: the formula {formula!r}"
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "answer.json"
        asked = {"path": sys.path, "formula": formula, "task": asdict(task), "place": str(place)}
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-c", _CHILD],
                input=json.dumps(asked),
                stdout=subprocess.DEVNULL,  # its prints are no part of the answer
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                timeout=TIME_LIMIT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ValueError(
                f"{who} gave no answer within {TIME_LIMIT:g} seconds and was stopped. It is called with "
                f"{task.cap:,} positions at once, and with some up to {max(task.positions):,}. Make it faster."
            ) from None
        if done.returncode or not place.is_file():
            last = ([line for line in done.stderr.splitlines() if line.strip()] or ["it printed nothing"])[-1]
            raise ValueError(
                f"{who} ended without an answer (exit code {done.returncode}): {last.strip().rstrip('.')}. "
                "Fix it, or leave --formula out."
            )
        found: Found = json.loads(place.read_text("utf-8"))
        return found


def answer(formula: str, task: dict[str, Any], place: str) -> None:
    """Examine a formula and write the findings to a file; runs in the child."""
    from posenc import precision

    module, _, qualname = formula.partition(":")
    function: Any = import_module(module)
    for part in qualname.split("."):
        function = getattr(function, part)
    found = precision.examine(function, precision.Task(**task))
    Path(place).write_text(json.dumps(found), "utf-8")


def write(found: "Found", spelling: str, formula: str | None) -> None:
    """Print the findings as text: a sentence for each collision, then a table of errors."""
    from rich.text import Text

    width = output.console().width
    lines = [Text(f"Precision of {spelling}", "bold"), Text("")]
    sentences = _describe_collisions(found, formula or "float32")
    sentences += [found["note"]] if found["note"] else []
    lines += [Text(output.wrap(sentence, width, "  ", "")) for sentence in sentences]
    if found["phase_error"]:
        caption = "Phase error: the error in radians of the angle that cos and sin represent, rounded to each dtype; "
        caption += "the largest over the pairs, at most pi (3.14)."
        lines += [Text(""), Text(output.wrap(caption, width)), Text("")]
        table = _tabulate(found["phase_error"])
        lines += [Text(line) for line in table]
        if any(_NONE in line for line in table):
            lines += [Text(""), Text(f"{_NONE}: no angle; float16 overflows above 65,504 and underflows below 6e-08.")]
    output.write_rich(*lines)


def _describe_collisions(found: "Found", formula: str) -> list[str]:
    who = {"ours": "posenc", "formula": _describe_formula(formula)}
    return [
        f"{who[key]}: {_describe_group(c, found['cap'])}." for key, c in found["collisions"].items() if c is not None
    ]


def _describe_formula(formula: str) -> str:
    return f"formula {formula}" if ":" in formula else f"formula with angles in {formula}"


def _describe_group(collisions: dict[str, Any], cap: int) -> str:
    """Describe where positions collide; dtypes that agree share one clause."""
    clauses: dict[tuple[str, str], list[str]] = {}
    for dtype, found in collisions.items():
        clause = f"no two of the first {cap:,} positions collide", "or"
        if found is not None:
            again, first = found["position"], found["same_as"]
            clause = f"position {again:,} is the first that equals an earlier one ({first:,}),", "and"
        clauses.setdefault(clause, []).append(dtype)
    every = {"or": "any dtype", "and": "every dtype"}
    return "; ".join(
        f"{clause} in {every[word] if len(names) == len(collisions) else f' {word} '.join(names)}"
        for (clause, word), names in clauses.items()
    )


def _tabulate(rows: list[dict[str, Any]]) -> list[str]:
    sides = [side for side in rows[0] if side != "position"]
    dtypes = list(rows[0][sides[0]])
    over = "".join(f"{'posenc' if side == 'ours' else side:^{_COLUMN * len(dtypes)}}" for side in sides)
    titles = "".join(f"{dtype:>{_COLUMN}}" for _ in sides for dtype in dtypes)
    lines = [f"{'':>{_COLUMN}}  {over}".rstrip(), f"{'position':>{_COLUMN}}  {titles}"]
    for row in rows:
        cells = "".join(f"{_number(row[side][dtype]):>{_COLUMN}}" for side in sides for dtype in dtypes)
        lines.append(f"{row['position']:>{_COLUMN},}  {cells}")
    return lines


def _number(error: float | None) -> str:
    return _NONE if error is None else f"{error:.1e}" if error < 0.1 else f"{error:.2f}"
