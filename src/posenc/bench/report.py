"""Measure rows and report them: as JSON, and as lines for a terminal."""

import warnings
from collections.abc import Callable
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

import torch

from posenc.bench import machine, memory
from posenc.bench.measure import Spread, Timing, Work, compare, first_line
from posenc.bench.memory import MIB, NotMeasured, Peak
from posenc.bench.rows import DTYPES, Goal, Row, ours

SCHEMA = 2
ROW_BUDGET_S = 20.0  # after which a comparison of three rounds is done
_WIDTH = 27  # of a candidate's name
HEADING = f"{'':{_WIDTH}} {'a call':>10} {'ratio':>7}  {'middle half':<14} {'memory':>9} {'of q':>6}"
NOTE = (
    "Ratios are to a row's first line in the same round: median and middle half. A sample in which a thread lost its "
    "core is taken again, up to five times. Memory is what a call adds to the peak of a fresh process beyond its "
    "inputs, its output included."
)

Found = dict[str, Any]


def begin(command: str, rows: list[Row], **options: Any) -> Found:
    """Return the report without its rows: schema, machine and options."""
    head = {"schema": SCHEMA, "command": command, "machine": machine.examine(), "options": options}
    return head | {"asked": len(rows), "complete": False, "rows": []}


def measure_row(row: Row) -> Found:
    """Measure one row: memory first, each candidate in a process of its own, then time by turns in this one.

    A candidate that cannot run or is not installed is skipped with a sentence.
    """
    found = describe(row)
    if row.device == "cuda" and not torch.cuda.is_available():
        return found | {"skipped": "not measured: there is no GPU here that torch can use"}
    peaks = _peaks(row)
    fatal = {name: p.why for name, p in peaks.items() if isinstance(p, NotMeasured) and p.fatal}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peers speak of their own deprecations
        runs, failed = _build(row, [name for name in row.candidates if name not in fatal])
        failed |= fatal
        if row.candidates[0] not in runs:
            return found | {"skipped": f"not measured: {failed[row.candidates[0]]}"}
        settle = torch.cuda.synchronize if row.device == "cuda" else None
        timings = compare(runs, row.candidates[0], rounds=row.rounds, budget_s=ROW_BUDGET_S, settle=settle)
        if row.device == "cuda":
            peaks = {n: memory.peak_on_gpu(run) for n, run in runs.items() if isinstance(timings[n], Timing)}
    for name in row.candidates:
        found["candidates"].append(_entry(row, name, failed.get(name) or timings[name], peaks.get(name)))
    return found | {"goals": [judge(goal, found["candidates"]) for goal in row.goals]}


def module_of(row: Row) -> ModuleType:
    """Return the module that makes a row's candidates, which has `maker`, `title`, `shape` and `tokens`."""
    return import_module(f"posenc.bench.{row.kind}")


def build(row: Row, name: str) -> Work:
    """Return one candidate with inputs of its own, which a child process can be given.

    Raises:
        ImportError: It is a peer that is not installed.
        ValueError: It cannot run here.
    """
    make: Callable[[str], Work] = module_of(row).maker(row)
    return make(name)


def describe(row: Row) -> Found:
    """Return a row without what was measured."""
    keys = ("name", "kind", "mode", "batch", "length", "dtype", "device")
    entry = {key: getattr(row, key) for key in keys} | {"title": title(row), "options": dict(row.options)}
    return entry | {"q_mib": q_bytes(row) / MIB, "skipped": None, "candidates": [], "goals": []}


def q_bytes(row: Row) -> int:
    """Return the size of a row's queries."""
    q_len, heads, head_dim = module_of(row).shape(row)
    return int(row.batch * heads * q_len * head_dim * DTYPES[row.dtype].itemsize)


def judge(goal: Goal, candidates: list[Found]) -> Found:
    """Return the best of a goal's candidates, and whether it reaches the goal; None where none was measured."""
    found: Found = {"what": goal.what, "limit": goal.limit, "by": None, "got": None, "reached": None}
    got = {c["name"]: c["ratio"] and c["ratio"]["median"] if goal.what == "time" else c["of_q"] for c in candidates}
    known = {name: got[name] for name in goal.ours if got.get(name) is not None}
    if not known:
        return found
    best = min(known, key=lambda name: known[name])
    return found | {"by": best, "got": known[best], "reached": known[best] <= goal.limit}


def _peaks(row: Row) -> dict[str, Peak | NotMeasured]:
    """Return what each candidate adds to the peak of a process of its own, of rows of attention on the CPU."""
    if row.kind == "rotary" or row.device != "cpu" or row.mode == "generate":
        return {}
    small = Row(**{**vars(row), "length": min(row.length, 512)})
    found = {}
    for name in row.candidates:  # what is compiled is compiled for one size
        warm = None if "flex" in name or "compiled" in name else partial(build, small, name)
        found[name] = memory.peak(partial(build, row, name), warm=warm)
    return found


def _build(row: Row, names: list[str]) -> tuple[dict[str, Work], dict[str, str]]:
    """Return the calls over shared inputs, and why some could not be made."""
    torch.compiler.reset()  # after eight score_mods it would stop compiling new ones
    runs: dict[str, Work] = {}
    failed = {}
    try:
        make = module_of(row).maker(row)
    except Exception as error:  # an encoding may be missing, or refuse
        return {}, dict.fromkeys(names, first_line(error))
    for name in names:
        try:
            runs[name] = make(name)
        except ImportError as error:
            failed[name] = f"not installed: {first_line(error)}"
        except Exception as error:  # whatever a peer raises when it is made
            failed[name] = first_line(error)
    return runs, failed


def _entry(row: Row, name: str, timing: Timing | str, peak: Peak | NotMeasured | None) -> Found:
    role = "baseline" if name == row.candidates[0] else "posenc" if ours((name,)) else "peer"
    entry: Found = {"name": name, "title": module_of(row).title(row, name), "role": role}
    entry |= dict.fromkeys(("seconds", "ratio", "first_s", "rounds", "disturbed", "tokens_per_s"))
    entry |= {"memory_mib": None, "of_q": None, "memory_note": None, "skipped": None}
    if isinstance(timing, str):
        return entry | {"skipped": timing}
    entry |= {"seconds": _spell(timing.seconds), "ratio": _spell(timing.ratio), "first_s": timing.first_s}
    entry |= {"rounds": timing.rounds, "disturbed": timing.disturbed}
    if (tokens := module_of(row).tokens(row)) is not None:
        low, middle, high = (tokens / seconds for seconds in timing.seconds)
        entry["tokens_per_s"] = _spell(Spread(high, middle, low))
    if isinstance(peak, Peak):
        of_q = None if row.mode == "decode" else peak.extra / q_bytes(row)
        return entry | {"memory_mib": peak.extra / MIB, "of_q": of_q}
    return entry | {"memory_note": peak.why if peak else None}


def _spell(spread: Spread) -> dict[str, float]:
    return {"low": spread.low, "median": spread.middle, "high": spread.high}


def title(row: Row) -> str:
    """Return what a row is, in words.

    >>> title(Row("t5.forward", "attend", ("plain",), length=4096))
    't5.forward: 4,096 tokens, float32'
    """
    length = f"{row.length:,} {'keys' if row.mode == 'decode' else 'tokens'}"
    facts = [f"{row.batch} x {length}" if row.batch > 1 else length, row.dtype]
    return f"{row.name}: {', '.join(facts + ([] if row.device == 'cpu' else [row.device]))}"


def row_lines(row: Found) -> list[str]:
    """Return a measured row as lines of at most 80 characters, sentences about what was skipped aside."""
    if row["skipped"]:
        return [row["title"], f"  {row['skipped']}"]
    lines = [row["title"]]
    for candidate in row["candidates"]:
        if candidate["skipped"]:
            lines.append(f"  {candidate['title']}: skipped, {candidate['skipped']}")
            continue
        seconds, ratio, half, size, of_q, rate = cells(candidate)
        numbers = f"{seconds:>10} {ratio:>7}  {half:<14} {size + ' MiB' if size else '':>9} {of_q:>6}"
        lines.append(f"  {candidate['title']:{_WIDTH - 2}.{_WIDTH - 2}} {numbers}".rstrip())
        lines += [f"    {rate} tokens per second"] if rate else []
    lines += [f"  memory: {note}" for note in sorted({c["memory_note"] for c in row["candidates"]} - {None})]
    if disturbed := sum(c["disturbed"] or 0 for c in row["candidates"]):
        lines.append(f"  {disturbed} samples were disturbed by other work, however often they were taken again")
    return lines + [f"  goal: {sentence}" for sentence in goal_sentences(row)]


def goal_sentences(row: Found) -> list[str]:
    """Return each goal of a row and whether it was reached."""
    titles = {c["name"]: c["title"] for c in row["candidates"]}
    found = []
    for goal in row["goals"]:
        of = titles[row["candidates"][0]["name"]] if goal["what"] == "time" else "q"
        verdict = "not measured"
        if goal["got"] is not None:
            verdict = f"{'reached' if goal['reached'] else 'missed'}, {goal['got']:.2f} by {titles[goal['by']]}"
        found.append(f"{goal['what']} at most {goal['limit']:.2f} of {of}: {verdict}")
    return found


def cells(candidate: Found) -> list[str]:
    """Return a candidate's numbers: a call, ratio, middle half, memory, memory in sizes of q, tokens per second."""
    ratio, rate = candidate["ratio"], candidate["tokens_per_s"]
    return [
        duration(candidate["seconds"]["median"]),
        f"{ratio['median']:.2f}",
        f"{ratio['low']:.2f} .. {ratio['high']:.2f}",
        *(_short(candidate[key]) for key in ("memory_mib", "of_q")),
        f"{rate['median']:,.0f}" if rate else "",
    ]


def _short(number: float | None) -> str:
    return "" if number is None else f"{number:,.0f}" if number >= 100 else f"{number:.1f}"


def duration(seconds: float) -> str:
    """Return a duration in three digits.

    >>> duration(0.0123), duration(2.5), duration(0.000045)
    ('12.3 ms', '2.50 s', '45.0 us')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.{2 - (seconds >= 10 * size) - (seconds >= 100 * size)}f} {unit}"
    return f"{seconds * 1e6:.{2 - (seconds >= 1e-5) - (seconds >= 1e-4)}f} us"
