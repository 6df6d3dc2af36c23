"""What a run found, as rows and as a page."""

import re
from collections import Counter, defaultdict
from typing import Any

from mutants import Mutant
from reasons import COMMON, EQUIVALENT, SURVIVORS, UNCALLED
from reasons_like import LIKE

KILLED = ("wrong", "stops", "hangs", "cannot tell", "before")
LEFT = ("survives", "unreached")
NO_REASON = "NO REASON IS GIVEN"
_INTRO = """# Mutations of posenc's own arithmetic under `check`

Every one-token change of the arithmetic of the encodings, families, frequencies, positions and the plain kernel
(`mutants.py` lists the operators) is given to `posenc.verify.check`, alone, by each convention that can call it
(`subjects.py`), until one does not find it right. Written by `run.py --write`, which exits with 1 below 90 %, or where
a survivor has no reason in `reasons.py` or `reasons_like.py`.
Equivalent are those alone of which a line there says why the same numbers come out of whatever is asked: no check can
find them, so two shares are reported, with them and without.

- wrong: `check` says fail, by what the code computes.
- stops: the code raises, or returns no numbers or another shape, and `check` says so; or it cannot be built.
- hangs: it takes {limit} s of processor time beyond twice what the correct code takes.
- cannot tell: `check` says cannot_tell, where it says pass of the correct code.
- before: an earlier commit's run found it, in a function that has not changed since (`--since`).
- survives: every subject that runs the line is found right; the reasons are below.
- unreached: no subject runs the line; counted as if it survived, unless no convention can call its function.
"""
_TRUSTED = """This page was not written by one run. {found} of those found and {left} of the others were judged while
the checks grew: what was found stays found, since a check that is added takes nothing away, and what survived was asked
again by the laws, ways and subjects that had changed since, which may find too few. `run.py --keep FOLDER` without
`--trust` asks all of them by the checks as they are.
"""


def row(mutant: Mutant, fate: str, subject: str, cause: str) -> dict[str, Any]:
    """Return what is written of one mutant."""
    named = {"raises": "stops", "cannot_tell": "cannot tell", "fail": "wrong"}
    stops = fate == "fail" and cause.startswith("subject.")
    reported = {"file": mutant.file, "function": mutant.function, "line": mutant.line, "kind": mutant.kind}
    reported |= {"change": mutant.change, "fate": "stops" if stops else named.get(fate, fate)}
    return reported | {"subject": subject, "cause": cause, "reason": _reason(mutant, fate)}


def _reason(mutant: Mutant, fate: str) -> str:
    """Return why a mutant survives, or why nothing runs it."""
    key = f"{mutant.file} {mutant.function}"
    if fate == "survives":
        listed = SURVIVORS.get(key, {}).get(mutant.change)
        alike = (reason for pattern, reason in (*LIKE.get(key, ()), *COMMON) if re.fullmatch(pattern, mutant.change))
        return listed or next(alike, NO_REASON)
    if fate == "unreached":
        return UNCALLED.get(key, NO_REASON)
    return ""


def _key(row: dict[str, Any]) -> str:
    return f"{row['file']} {row['function']}"


def counts(row: dict[str, Any]) -> bool:
    """Tell whether a mutant is in the account: all are, but those that a written rule leaves out.

    One that nothing runs counts as one that survives, unless `UNCALLED` names its function as one that no convention
    can call.
    """
    return row["fate"] != "excluded" and not (row["fate"] == "unreached" and row["reason"] == UNCALLED.get(_key(row)))


def share(rows: list[dict[str, Any]]) -> float:
    """Return how many of those that count are killed."""
    counted = [row for row in rows if counts(row)]
    return sum(row["fate"] in KILLED for row in counted) / max(len(counted), 1)


def score(rows: list[dict[str, Any]]) -> float:
    """Return how many are killed of those that count and are not proven to compute the same (`EQUIVALENT`)."""
    return share([row for row in rows if not row["reason"].startswith(EQUIVALENT)])


def summary(rows: list[dict[str, Any]]) -> str:
    """Return the totals in a line."""
    fates = Counter(row["fate"] for row in rows)
    reported = ", ".join(f"{n} {fate}" for fate, n in fates.most_common())
    return f"{share(rows):.1%} killed, {score(rows):.1%} of those that are not equivalent: {reported}"


def page(rows: list[dict[str, Any]], limit: float, trusted: tuple[int, int] = (0, 0)) -> str:
    """Return RESULTS.md.

    Args:
        rows: All mutants.
        limit: Seconds beyond which a mutant hangs.
        trusted: How many were judged by earlier checks and not by those there are, of those found and of the others.
    """
    rows = sorted(rows, key=lambda row: (row["file"], row["line"], row["change"]))
    checked = [row for row in rows if counts(row)]
    fates = Counter(row["fate"] for row in checked)
    killed = sum(fates[fate] for fate in KILLED)
    lines = [_INTRO.format(limit=f"{limit:g}")]
    lines.append(
        f"**{killed} of {len(checked)} killed, {share(rows):.1%}**, and {score(rows):.1%} of those that are not "
        f"equivalent, each with its proof below; {fates['survives']} survive, and nothing runs "
        f"{fates['unreached']}, which count as if they survived.\n"
    )
    if any(trusted):
        lines.append(_TRUSTED.format(found=trusted[0], left=trusted[1]))
    lines += [*_by_file(checked), *_by_reason(checked), *_survivors(checked), *_left_out(rows)]
    return "\n".join(lines) + "\n"


def _by_file(checked: list[dict[str, Any]]) -> list[str]:
    found = defaultdict(Counter)
    for row in checked:
        found[row["file"]][row["fate"]] += 1
    columns = (*KILLED, "survives", "unreached")
    lines = [f"| file | mutants | {' | '.join(columns)} | killed |", f"|---|{'---:|' * (len(columns) + 2)}"]
    for file, fates in {**found, "all": sum(found.values(), Counter())}.items():
        n = fates.total()
        numbers = " | ".join(str(fates[column]) for column in columns)
        lines.append(f"| {file} | {n} | {numbers} | {sum(fates[k] for k in KILLED) / n:.1%} |")
    return [*lines, ""]


def _by_reason(rows: list[dict[str, Any]]) -> list[str]:
    reasons = Counter(row["reason"] for row in rows if row["fate"] in LEFT)
    lines = ["## Why they survive\n", "| reason | mutants |", "|---|---:|"]
    return [*lines, *(f"| {reason} | {n} |" for reason, n in reasons.most_common()), ""]


def _survivors(checked: list[dict[str, Any]]) -> list[str]:
    lines, file = ["## Survivors"], ""
    for row in checked:
        if row["fate"] not in LEFT:
            continue
        if row["file"] != file:
            file = row["file"]
            lines.append(f"\n### {file}\n")
        lines.append(f"- {row['line']}, `{row['function'] or 'module'}`: `{row['change']}`. {row['reason']}")
    return [*lines, ""]


def _left_out(rows: list[dict[str, Any]]) -> list[str]:
    excluded = Counter(row["cause"] for row in rows if row["fate"] == "excluded")
    uncalled = [row for row in rows if row["fate"] == "unreached" and not counts(row)]
    unreached = Counter((row["file"], row["function"], row["reason"]) for row in uncalled)
    lines = ["## Left out\n", "Not counted above. By what they are in:\n", "| part | mutants |", "|---|---:|"]
    lines += [f"| {reason} | {n} |" for reason, n in excluded.most_common()]
    lines += [
        "",
        f"Functions that no convention can call, {unreached.total()} mutants:\n",
        "| file | function | mutants | why |",
    ]
    lines += ["|---|---|---:|---|", *(f"| {f} | `{g}` | {n} | {why} |" for (f, g, why), n in sorted(unreached.items()))]
    return lines
