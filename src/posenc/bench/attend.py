"""`posenc bench attend`: what attention with each position bias costs beside plain SDPA, on this machine."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from posenc import attention
from posenc.attention.room import available
from posenc.bench import candidates, machine, memory, told
from posenc.bench.candidates import PLAIN
from posenc.bench.measure import Timing, Work, compare, exponent, tell
from posenc.bench.memory import NotMeasured, Peak
from posenc.bench.peers import estimate
from posenc.bench.rows import HEAD_DIM, N_HEADS, Row
from posenc.bench.told import Found

SCHEMA = 1
ROW_BUDGET_S = 20.0  # after which a comparison of three rounds is done
LONG = 8192  # tokens beyond which peers are measured only if asked for
GROWTH_GOAL = 1.1  # of the exponent of memory
SAME = 0.05  # between exponents of time, of which neighbours move the second decimal


@dataclass(frozen=True)
class Plan:
    """Which candidates of a row can be tried."""

    names: list[str]
    skipped: dict[str, str]  # why the others cannot
    subject: str  # the candidate that the goal is for
    auto: str | None  # the candidate that `attend` takes by itself


def begin(rows: list[Row], **options: Any) -> Found:
    """Return the report without its rows: schema, machine and options."""
    return {
        "schema": SCHEMA,
        "command": "attend",
        "machine": machine.examine(),
        "shape": {"n_heads": N_HEADS, "head_dim": HEAD_DIM},
        "options": options,
        "asked": len(rows),
        "complete": False,
        "rows": [],
        "growth": [],
    }


def measure_row(row: Row, *, full: bool = False) -> Found:
    """Measure one row: memory first, each candidate in a process of its own, then time by turns in this one.

    A candidate that cannot run, is not installed or would not fit into memory is skipped with a sentence.
    """
    found = told.describe(row)
    if _lacks_gpu(row):
        return found | {"skipped": "not measured: there is no GPU here that torch can use"}
    try:
        plan = make_plan(row, full)
    except Exception as error:  # an encoding may be missing, or refuse
        return found | {"skipped": f"not measured: {tell(error)}"}
    peaks: dict[str, Peak | NotMeasured] = {}
    if row.device == "cpu":
        peaks = {name: _peak(row, name) for name in plan.names}
    fatal = {name: p.why for name, p in peaks.items() if isinstance(p, NotMeasured) and p.fatal}
    if PLAIN in fatal:
        return found | {"skipped": f"not measured: plain SDPA does not run here: {fatal[PLAIN]}"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peers speak of their own deprecations
        runs, failed = _build(row, [name for name in plan.names if name not in fatal])
        settle = torch.cuda.synchronize if row.device == "cuda" else None
        timings = _time(row, runs, settle)
        if row.device == "cuda":
            peaks = {n: memory.peak_on_gpu(run) for n, run in runs.items() if isinstance(timings[n], Timing)}
    for name in plan.names:
        timing = timings.get(name) or fatal.get(name) or failed[name]
        one = told.entry(row, name, auto=name == plan.auto)
        if isinstance(timing, Timing):
            one = told.fill(one, row, timing, peaks.get(name))
        else:
            one["skipped"] = timing
        found["candidates"].append(one)
    found["candidates"] += [told.entry(row, name, skipped=why) for name, why in plan.skipped.items()]
    return found | {"goal_for": plan.subject, "met": told.judge(row, found["candidates"], plan.subject)}


def explain_row(row: Row) -> Found:
    """Return what each backend says of a row and the memory it would take, measuring nothing."""
    found = told.describe(row)
    if _lacks_gpu(row):
        return found | {"skipped": "not asked: there is no GPU here that torch can use"}
    try:
        said = candidates.verdicts(row)
    except Exception as error:
        return found | {"skipped": f"not asked: {tell(error)}"}
    verdicts = [
        {
            "backend": v.backend,
            "verdict": v.verdict,
            "memory_mib": v.memory / memory.MIB,
            "of_q": v.memory / row.q_bytes,
        }
        for v in said
    ]
    return found | {"verdicts": verdicts}


def grow(rows: list[Found]) -> Iterator[Found]:
    """Yield the exponents in length of time and memory, over the rows measured for that."""
    series: dict[tuple[str, str], list[Found]] = {}
    for row in rows:
        if row["growth"] and not row["skipped"]:
            series.setdefault((row["name"], row["dtype"]), []).append(row)
    for (name, dtype), measured in series.items():
        if len(measured) > 1:
            lengths = [row["length"] for row in measured]
            sides = [_find_exponents(role, lengths, measured) for role in ("baseline", "posenc")]
            goal = {"memory": GROWTH_GOAL, "time": f"at most that of plain SDPA + {SAME:g}"}
            met = {key: _kept(key, sides) for key in goal}
            yield {"name": name, "dtype": dtype, "lengths": lengths, "goal": goal, "met": met, "candidates": sides}


def _kept(what: str, sides: Sequence[Found]) -> bool | None:
    """Whether ours grows no faster than it may; None if that was not measured."""
    plain, ours = (side[what] for side in sides)
    if plain is None or ours is None:
        return None
    return bool(ours <= (GROWTH_GOAL if what == "memory" else plain + SAME))


def make_plan(row: Row, full: bool) -> Plan:
    """Ask every candidate of a row whether it can run: its backend, the memory that is free, the time it takes."""
    names, skipped, subject, room = [PLAIN], {}, None, available(row.device)
    taken = next((v.backend for v in candidates.verdicts(row) if v.verdict == "taken"), None)
    for backend in row.backends:
        chosen = (taken or "auto") if backend == "auto" else backend
        name = f"attend:{chosen}"
        subject = subject or name
        if name in names:
            continue  # what auto took is named as well
        no = "no backend takes the call" if chosen == "auto" else _refuse(row, backend, chosen, room)
        if no:
            skipped[name] = no
        else:
            names.append(name)
    for peer in row.peers:
        if row.length > LONG and row.mode != "decode" and not full:
            skipped[peer] = f"takes long beyond {LONG:,} tokens; --full measures it"
        elif room is not None and estimate(row, peer) > room:
            skipped[peer] = _too_large(estimate(row, peer), room)
        else:
            names.append(peer)
    return Plan(names, skipped, subject or PLAIN, taken and f"attend:{taken}")


def _refuse(row: Row, asked: str, chosen: str, room: int | None) -> str | None:
    """Return why a backend cannot be measured, or None; some refuse only while nobody asks for them by name."""
    if chosen not in attention.BACKENDS:
        return f"there is no backend {chosen!r} in this version"
    said = next(v for v in candidates.verdicts(row, asked) if v.backend == chosen)
    if said.verdict not in ("taken", "would run"):
        return f"it refuses: {said.verdict.rstrip('.')}"
    return _too_large(said.memory, room) if room is not None and said.memory > room else None


def _time(row: Row, runs: dict[str, Work], settle: Work | None) -> dict[str, Timing | str]:
    """Time posenc beside plain SDPA, then peers beside it: a dense mask takes most of a round, and gigabytes."""
    peers = {name: run for name, run in runs.items() if not name.startswith("attend:")}
    own = {name: run for name, run in runs.items() if name == PLAIN or name not in peers}
    measure = partial(compare, baseline=PLAIN, rounds=row.rounds, budget_s=ROW_BUDGET_S, settle=settle)
    found = measure(own)
    return measure(peers) | found if len(peers) > 1 else found  # plain SDPA's line is that beside posenc


def _lacks_gpu(row: Row) -> bool:
    return row.device == "cuda" and not torch.cuda.is_available()


def _peak(row: Row, name: str) -> Peak | NotMeasured:
    warm = None if "flex" in name else partial(candidates.build_row, row.small(), name)
    return memory.peak(partial(candidates.build_row, row, name), warm=warm)


def _build(row: Row, names: list[str]) -> tuple[dict[str, Work], dict[str, str]]:
    """Return the calls over shared inputs, and why some could not be made."""
    torch.compiler.reset()  # after eight score_mods it would stop compiling new ones
    setting = candidates.prepare(row)
    runs, failed = {}, {}
    for name in names:
        try:
            runs[name] = candidates.build(setting, name)
        except ImportError as error:
            failed[name] = f"not installed: {tell(error)}"
        except Exception as error:  # whatever a peer raises when it is made
            failed[name] = tell(error)
    return runs, failed


def _too_large(needed: int, room: int) -> str:
    return f"would need about {needed / 2**30:.1f} GiB, and {room / 2**30:.1f} GiB are free"


def _find_exponents(role: str, lengths: list[int], measured: list[Found]) -> Found:
    own = [next(c for c in row["candidates"] if c["role"] == role) for row in measured]
    times = [c["seconds"] and c["seconds"]["median"] for c in own]
    sizes = [c["memory_mib"] for c in own]
    return {
        "name": own[-1]["name"],
        "title": own[-1]["title"],
        "time": exponent(lengths, times) if all(times) else None,
        "memory": exponent(lengths, sizes) if all(sizes) else None,
    }
