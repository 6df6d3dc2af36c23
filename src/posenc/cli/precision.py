"""`posenc show NAME --precision`: where positions collide and how wrong angles are, for people and as numbers."""

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
TIME_LIMIT = 60.0  # seconds for a formula of the user's own, of which importing torch takes a few
_COLUMN = 10  # characters of a column of numbers
_NONE = "none"
# The child imports from where its parent does; nothing in its folder may shadow what it needs until then.
_CHILD = (
    "import json, sys; asked = json.load(sys.stdin); sys.path[:] = asked.pop('path'); "
    "from posenc.cli.precision import answer; answer(**asked)"
)


def measure(construct: Callable[[], Any], formula: str | None) -> "Found":
    """Measure the precision of an encoding, and of a formula beside it.

    Args:
        construct: Makes the encoding.
        formula: One of `FORMULAS`, or `package.module:function`; None takes float32 where a formula applies.

    Raises:
        ValueError: There is no such formula, it does not apply, or it fails.
    """
    from posenc import precision

    if formula is not None and formula not in FORMULAS and ":" not in formula:
        raise ValueError(
            f"show: --formula must be one of {', '.join(FORMULAS)}, or a function of your own, as "
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
    """Examine the user's own formula in a process that cannot harm this one.

    Raises:
        ValueError: It fails, takes too long, or does not return what it is asked for.
    """
    who = f"show: the formula {formula!r}"
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "answer.json"
        asked = {"path": sys.path, "formula": formula, "task": asdict(task), "place": str(place)}
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-c", _CHILD],
                input=json.dumps(asked),
                stdout=subprocess.DEVNULL,  # what it prints is no part of the answer
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                timeout=TIME_LIMIT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ValueError(
                f"{who} gave no answer within {TIME_LIMIT:g} seconds and was stopped. It is asked for "
                f"{task.cap:,} positions at once, and for some up to {max(task.positions):,}; make it faster."
            ) from None
        if done.returncode or not place.is_file():
            last = ([line for line in done.stderr.splitlines() if line.strip()] or ["it said nothing"])[-1]
            raise ValueError(
                f"{who} ended without an answer (exit code {done.returncode}): {last.strip().rstrip('.')}. "
                "Mend it, or leave --formula out."
            )
        found: Found = json.loads(place.read_text("utf-8"))
        return found


def answer(formula: str, task: dict[str, Any], place: str) -> None:
    """Examine a formula and write what was found to a file: the child's work."""
    from posenc import precision

    module, _, qualname = formula.partition(":")
    function: Any = import_module(module)
    for part in qualname.split("."):
        function = getattr(function, part)
    found = precision.examine(function, precision.Task(**task))
    Path(place).write_text(json.dumps(found), "utf-8")


def write(found: "Found", spelling: str, formula: str | None) -> None:
    """Write the findings for people: the collisions in a sentence each, then the errors in a table."""
    from rich.text import Text

    width = output.console().width
    lines = [Text(f"Precision of {spelling}", "bold"), Text("")]
    said = _tell_collisions(found, formula or "float32")
    said += [found["note"]] if found["note"] else []
    lines += [Text(output.wrap(sentence, width, "  ", "")) for sentence in said]
    if found["phase_error"]:
        caption = "Phase error: radians by which the angle that cos and sin stand for is wrong, rounded to each dtype; "
        caption += "the largest over the pairs, half a turn (3.14) at most."
        lines += [Text(""), Text(output.wrap(caption, width)), Text("")]
        table = _tabulate(found["phase_error"])
        lines += [Text(line) for line in table]
        if any(_NONE in line for line in table):
            lines += [Text(""), Text(f"{_NONE}: no angle; float16 holds nothing above 65,504 and little below 6e-08.")]
    output.write_rich(*lines)


def _tell_collisions(found: "Found", formula: str) -> list[str]:
    who = {"ours": "posenc", "formula": _describe_formula(formula)}
    return [f"{who[key]}: {_tell(c, found['cap'])}." for key, c in found["collisions"].items() if c is not None]


def _describe_formula(formula: str) -> str:
    return f"formula {formula}" if ":" in formula else f"formula with angles in {formula}"


def _tell(collisions: dict[str, Any], cap: int) -> str:
    """Say where positions collide; dtypes that agree are said together."""
    told: dict[tuple[str, str], list[str]] = {}
    for dtype, found in collisions.items():
        clause = f"no two of the first {cap:,} positions collide", "or"
        if found is not None:
            again, first = found["position"], found["same_as"]
            clause = f"position {again:,} is the first to have the numbers of another, {first:,},", "and"
        told.setdefault(clause, []).append(dtype)
    every = {"or": "any dtype", "and": "every dtype"}
    return "; ".join(
        f"{clause} in {every[word] if len(names) == len(collisions) else f' {word} '.join(names)}"
        for (clause, word), names in told.items()
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
