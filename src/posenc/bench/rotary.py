"""`posenc bench rotary`: what turning queries and keys costs beside a copy of them, on this machine."""

import mmap
import warnings
from collections.abc import Mapping
from typing import Any

from posenc.bench import machine, pages, rotary_calls
from posenc.bench.measure import TRIES, Spread, Timing, Work, beside, compare
from posenc.bench.rotary_models import count_tokens
from posenc.bench.rotary_peers import PEERS
from posenc.bench.rotary_rows import BACKENDS, HEAD_DIM, N_HEADS, N_KV_HEADS, Goal, Row

SCHEMA = 1
ROW_BUDGET_S = 20.0  # after which a row of three rounds is done
FRESH = 2.0  # copies that a clone takes, from which on its memory was new

Found = dict[str, Any]


def begin(rows: list[Row], **options: Any) -> Found:
    """Return the report without its rows: schema, machine and options."""
    packages = dict.fromkeys(["numba", *(peer.package for peer in PEERS.values() if peer.package)])
    return {
        "schema": SCHEMA,
        "command": "rotary",
        "machine": machine.examine(packages),
        "tries": TRIES,
        "options": options,
        "asked": len(rows),
        "complete": False,
        "rows": [],
    }


def measure_row(row: Row) -> Found:
    """Measure one row: all candidates by turns; one that cannot run is skipped with a sentence."""
    found = describe(row)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peers speak of their own deprecations
        runs, failed = rotary_calls.build(row)
        if row.baseline not in runs:
            return found | {"skipped": f"not measured: {failed[row.baseline]}"}
        timings = compare(runs, row.baseline, rounds=row.rounds, budget_s=ROW_BUDGET_S)
        counted = _count_faults({name: runs[name] for name, t in timings.items() if isinstance(t, Timing)})
    measured = {name: timing for name, timing in timings.items() if isinstance(timing, Timing)}
    for name in rotary_calls.list_names(row):
        timing = timings.get(name) or failed[name]
        found["candidates"].append(_tell(row, name, timing, counted.get(name)))
    found["pages"] = _judge_pages(row, measured, counted)
    found["goals"] = [judge(goal, measured, found["pages"], counted) for goal in row.goals]
    return found


def describe(row: Row) -> Found:
    """Return a row without what was measured."""
    shape = {"batch": row.batch, "length": row.length}
    if not row.is_model:
        shape |= {"n_heads": N_HEADS, "n_kv_heads": N_KV_HEADS, "head_dim": HEAD_DIM}
    return {
        "name": row.name,
        "kind": row.kind,
        "dtype": row.dtype,
        "pairing": row.pairing,
        "transposed": row.transposed,
        "shape": shape,
        "size_mib": None if row.is_model else row.bytes / 2**20,
        "pages": None,
        "goals": [],
        "skipped": None,
        "candidates": [],
    }


def judge(goal: Goal, measured: Mapping[str, Timing], state: Found | None, counted: Mapping[str, int | None]) -> Found:
    """Return the best of a goal's candidates beside the other, and whether that reaches it.

    Reached is None where nothing was measured, or where the goal is for another state of the allocator. The state is
    told by the clone; a goal for reused pages also asks that the candidate itself got no new ones (`counted`): an
    allocator may have a block for the one and none for the other, and 544 faults are 64 MiB where pages are of 2 MiB.
    """
    told: Found = {"title": goal.title, "limit": goal.limit, "beside": goal.beside, "state": goal.state}
    told |= dict.fromkeys(("by", "ratio", "reached"))
    if goal.beside not in measured:
        return told
    ratios = {name: beside(measured[name], measured[goal.beside]) for name in goal.ours if name in measured}
    if not ratios:
        return told
    best = min(ratios, key=lambda name: ratios[name].middle)
    told |= {"by": best, "ratio": _spell(ratios[best])}
    fits = goal.state == "any" or (state is not None and state["state"] == goal.state)
    fits = fits and not (goal.state == "reused" and counted.get(best))
    return told | {"reached": ratios[best].middle <= goal.limit if fits else None}


def _tell(row: Row, name: str, timing: Timing | str, faults: int | None) -> Found:
    """Return a candidate: its name, its part, and what was measured of it, or why nothing was."""
    way, _, backend = name.partition(":")
    own = backend in BACKENDS or name in ("compiled", "hf.use")
    role = "baseline" if name == row.baseline else "posenc" if own else "peer" if name in PEERS else "memory"
    told: Found = {
        "name": name,
        "title": rotary_calls.title(name),
        "role": role,
        "way": way,
        "backend": backend or None,
    }
    told |= dict.fromkeys(("seconds", "ratio", "first_s", "rounds", "disturbed", "faults", "tokens_per_s", "skipped"))
    if isinstance(timing, str):
        return told | {"skipped": timing}
    told |= {"seconds": _spell(timing.seconds), "ratio": _spell(timing.ratio), "first_s": timing.first_s}
    told |= {"rounds": timing.rounds, "disturbed": timing.disturbed, "faults": faults}
    if row.is_model:
        low, middle, high = (count_tokens(row) / seconds for seconds in timing.seconds)
        told["tokens_per_s"] = _spell(Spread(high, middle, low))
    return told


def _count_faults(runs: Mapping[str, Work]) -> dict[str, int | None]:
    """Return the page faults of a call of each, which follows another as in `sample`: what new memory costs."""
    counted: dict[str, int | None] = {}
    for name, run in runs.items():
        run()
        before = pages.faults()
        run()
        counted[name] = pages.faults() - before if before >= 0 else None
    return counted


def _judge_pages(row: Row, measured: Mapping[str, Timing], counted: Mapping[str, int | None]) -> Found | None:
    """Tell whether clones of this row got new pages: the state that every fresh output depends on."""
    clone, copy = ("clones", "copies") if row.kind == "train" else ("clone", "copy")
    if clone not in measured or copy not in measured:
        return None
    ratio, faults = beside(measured[clone], measured[copy]), counted[clone]
    whole = row.bytes * (2 if row.kind == "train" else 1)
    fresh = ratio.middle > FRESH or (faults is not None and faults * mmap.PAGESIZE > whole / 2)
    return {"state": "fresh" if fresh else "reused", "clone": _spell(ratio), "faults": faults}


def _spell(spread: Spread) -> dict[str, float]:
    return {"low": spread.low, "median": spread.middle, "high": spread.high}
