"""Measure rows and report them: as JSON, and as lines for a terminal."""

import warnings
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from posenc.bench import machine, memory
from posenc.bench.attend import Attention
from posenc.bench.candidates import Inputs, fault
from posenc.bench.measure import Spread, Timing, Work, compare, first_line
from posenc.bench.memory import MIB, NotMeasured
from posenc.bench.models import Models
from posenc.bench.rotary import Rotation
from posenc.bench.rows import Goal, Row

KINDS: dict[str, type[Inputs]] = {"attend": Attention, "rotary": Rotation, "models": Models}
SCHEMA = 3
ROW_BUDGET_S = 15.0  # no further rounds start after this, once there are three
_WIDTH = 27  # of a candidate's name
HEADING = f"{'':{_WIDTH}} {'a call':>10} {'ratio':>7}  {'middle half':<14} {'memory':>9} {'of q':>6}"
NOTE = (
    "Ratios are to a row's first line in the same round: median and middle half. A sample in which a thread lost its "
    "core is repeated, up to five times. Memory is the increase of a fresh process's peak by a call, beyond its inputs "
    "and including its output."
)

Found = dict[str, Any]


def begin(command: str, rows: list[Row], **options: Any) -> Found:
    """Return the report without its rows: schema, machine and options."""
    head = {"schema": SCHEMA, "command": command, "machine": machine.examine(), "options": options}
    return head | {"asked": len(rows), "complete": False, "rows": []}


def measure_row(row: Row) -> Found:
    """Measure one row: memory first, each candidate in its own process, then time in turn in this one.

    A candidate that cannot run, is not installed or computes wrong numbers is skipped with an explanation.
    """
    found = describe(row)
    inputs = _prepare(row)
    if isinstance(inputs, str):
        return found | {"skipped": f"not measured: {inputs}"}
    peaks = _peaks(row)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peers warn about their own deprecations
        runs, failed = _build(inputs, peaks)
        if row.baseline not in runs:
            return found | {"skipped": f"not measured: {failed[row.baseline]}"}
        settle = torch.cuda.synchronize if row.device == "cuda" else None
        timings = compare(runs, row.baseline, rounds=row.rounds, budget_s=ROW_BUDGET_S, settle=settle)
        if row.device == "cuda":
            peaks = {n: memory.peak_on_gpu(run) for n, run in runs.items() if isinstance(timings[n], Timing)}
    for name in row.candidates:
        found["candidates"].append(_entry(inputs, name, failed.get(name) or timings[name], peaks.get(name)))
    return found | {"goals": [judge(goal, found["candidates"]) for goal in row.goals]}


def explain_row(row: Row) -> Found:
    """Return the verdict of each attention backend on a row and its memory, without measuring anything."""
    found = describe(row) | {"verdicts": []}
    inputs = _prepare(row, empty=True)
    if not isinstance(inputs, Attention):
        return found | {"skipped": f"not explained: {inputs}"}
    return found | {"verdicts": [v._asdict() | {"of_q": v.memory / inputs.q_bytes} for v in inputs.verdicts()]}


def build(row: Row, name: str) -> Work:
    """Return one candidate with its own inputs, in a form that a child process can receive."""
    return KINDS[row.kind](row).make(name)


def describe(row: Row) -> Found:
    """Return a row without measurements."""
    keys = ("name", "kind", "mode", "batch", "length", "dtype", "device")
    entry = {key: getattr(row, key) for key in keys} | {"title": title(row), "options": dict(row.options)}
    return entry | {"skipped": None, "candidates": [], "goals": []}


def judge(goal: Goal, candidates: list[Found]) -> Found:
    """Return the best of a goal's candidates, and whether it reaches the goal; None if none was measured."""
    got = {c["name"]: c["ratio"] and c["ratio"]["median"] if goal.what == "time" else c["of_q"] for c in candidates}
    known = {name: got[name] for name in goal.of if got.get(name) is not None}
    best = min(known, key=lambda name: known[name], default=None)
    found: Found = {"what": goal.what, "limit": goal.limit, "by": best, "got": best and known[best]}
    return found | {"reached": best and known[best] <= goal.limit}


def _prepare(row: Row, **options: Any) -> Inputs | str:
    """Return a row's inputs, or why there are none."""
    if row.device == "cuda" and not torch.cuda.is_available():
        return "there is no GPU here that torch can use"
    try:
        return KINDS[row.kind](row, **options)
    except Exception as error:  # an encoding may be missing, or refuse its options
        return first_line(error)


def _peaks(row: Row) -> dict[str, int | NotMeasured]:
    """Return the peak increase of each candidate in its own process, for rows of attention on the CPU."""
    if row.kind == "rotary" or row.device != "cpu" or row.mode == "generate":
        return {}
    small = replace(row, length=min(row.length, 512))
    found = {}
    for name in row.candidates:  # compiled candidates are compiled for one size
        warm = None if "flex" in name or "compiled" in name else partial(build, small, name)
        found[name] = memory.peak(partial(build, row, name), warm=warm)
    return found


def _build(inputs: Inputs, peaks: dict[str, int | NotMeasured]) -> tuple[dict[str, Work], dict[str, str]]:
    """Return the calls whose numbers are right, and why the others are missing."""
    torch.compiler.reset()  # after eight score_mods it would stop compiling new ones
    row, runs = inputs.row, {}
    failed = {name: p.why for name, p in peaks.items() if isinstance(p, NotMeasured) and p.fatal}
    for name in (name for name in row.candidates if name not in failed):
        try:
            run = inputs.make(name)
            wrong = None if name == row.baseline else fault(run(), inputs.expected, row.dtype)
        except Exception as error:  # any error of a peer
            wrong = ("not installed: " if isinstance(error, ImportError) else "") + first_line(error)
        if wrong:
            failed[name] = wrong
        else:
            runs[name] = run
    return runs, failed


def _entry(inputs: Inputs, name: str, timing: Timing | str, peak: int | NotMeasured | None) -> Found:
    row = inputs.row
    role = "baseline" if name == row.baseline else "posenc" if name in row.ours else "peer"
    entry: Found = {"name": name, "title": inputs.candidates[name].title.format(inputs), "role": role}
    numbers = ("seconds", "ratio", "rounds", "disturbed", "tokens_per_s", "memory_mib", "of_q", "memory_note")
    entry |= dict.fromkeys((*numbers, "skipped"))
    if isinstance(timing, str):
        return entry | {"skipped": timing}
    entry |= timing._asdict() | {"seconds": timing.seconds._asdict(), "ratio": timing.ratio._asdict()}
    if inputs.tokens is not None:
        low, median, high = (inputs.tokens / seconds for seconds in timing.seconds)
        entry["tokens_per_s"] = Spread(high, median, low)._asdict()
    if isinstance(peak, int):
        of_q = None if row.mode == "decode" else peak / inputs.q_bytes
        return entry | {"memory_mib": peak / MIB, "of_q": of_q}
    return entry | {"memory_note": peak and peak.why}


def title(row: Row) -> str:
    """Return the title of a row.

    >>> title(Row("t5.forward", "attend", "plain", (), length=4096))
    't5.forward: 4,096 tokens, float32'
    """
    length = f"{row.length:,} {'keys' if row.mode == 'decode' else 'tokens'}"
    facts = [f"{row.batch} x {length}" if row.batch > 1 else length, row.dtype]
    return f"{row.name}: {', '.join(facts + ([] if row.device == 'cpu' else [row.device]))}"


def row_lines(row: Found) -> list[str]:
    """Return a row, measured or explained, as lines of at most 80 characters, except for explanations."""
    lines = [row["title"]]
    if row["skipped"]:
        return [*lines, f"  {row['skipped']}"]
    for said in row.get("verdicts", ()):
        size = f"{said['memory'] / MIB:,.1f} MiB, {said['of_q']:,.1f} q"
        lines.append(f"  {said['backend']:18} {size:>24}  {said['verdict']}")
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
        lines.append(f"  {disturbed} samples were disturbed by other work, even after all retries")
    return lines + [f"  goal: {sentence}" for sentence in goal_sentences(row)]


def goal_sentences(row: Found) -> list[str]:
    """Return each goal of a row and whether it was reached."""
    titles = {c["name"]: c["title"] for c in row["candidates"]}
    found = []
    for goal in row["goals"]:
        of = row["candidates"][0]["title"] if goal["what"] == "time" else "q"
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
    rounded = float(f"{seconds:.2e}")
    unit, size = ("s", 1.0) if rounded >= 1 else ("ms", 1e-3) if rounded >= 1e-3 else ("us", 1e-6)
    return f"{rounded / size:#.3g}".rstrip(".") + f" {unit}"
