"""What is told of a row and of each candidate: the parts of the JSON report."""

from typing import Any

from posenc.bench.candidates import PLAIN
from posenc.bench.measure import Spread, Timing
from posenc.bench.memory import MIB, NotMeasured, Peak
from posenc.bench.peers import PEERS
from posenc.bench.rows import Row

Found = dict[str, Any]


def describe(row: Row) -> Found:
    """Return a row without what was measured."""
    return {
        "name": row.name,
        "encoding": row.encoding,
        "mode": row.mode,
        "batch": row.batch,
        "length": row.length,
        "dtype": row.dtype,
        "device": row.device,
        "causal": row.causal,
        "window": row.window,
        "documents": row.documents,
        "growth": row.growth,
        "q_mib": row.q_bytes / MIB,
        "goal": {key: value for key, value in vars(row.goal).items() if value is not None},
        "goal_for": None,
        "met": {},
        "skipped": None,
        "candidates": [],
    }


def entry(row: Row, name: str, *, auto: bool = False, skipped: str | None = None) -> Found:
    """Return a candidate without what was measured; `auto` says that `attend` chose this backend itself."""
    kind, _, backend = name.partition(":")
    role = {PLAIN: "baseline", "attend": "posenc"}.get(kind, "peer")
    ours = f"posenc, auto: {backend}" if auto and backend != "auto" else f"posenc, {backend}"
    plain = "plain causal SDPA" if row.causal and row.mode != "decode" else "plain SDPA"
    if row.mode == "model":
        plain, ours = "as transformers loads it", "posenc.hf.use"
    title = {"baseline": plain, "posenc": ours}.get(role) or PEERS[name].title
    told: Found = {"name": name, "title": title, "role": role, "backend": backend or None, "auto": auto}
    told |= dict.fromkeys(("seconds", "ratio", "first_s", "rounds", "disturbed"))
    told |= dict.fromkeys(("memory_mib", "of_q", "process_mib", "memory_note"))
    return told | {"skipped": skipped}


def fill(told: Found, row: Row, timing: Timing, peak: Peak | NotMeasured | None) -> Found:
    """Add what was measured of a candidate to its entry."""
    told |= {"seconds": _spell(timing.seconds), "ratio": _spell(timing.ratio), "first_s": timing.first_s}
    told |= {"rounds": timing.rounds, "disturbed": timing.disturbed}
    if not isinstance(peak, Peak):
        return told | {"memory_note": peak.why if peak else "not measured"}
    sizes = {"memory_mib": peak.extra / MIB, "of_q": of_q(row, peak.extra)}
    return told | sizes | {"process_mib": peak.total / MIB}


def of_q(row: Row, size: int) -> float | None:
    """Return a size in those of q; a decoded q is a single token, which says nothing."""
    return None if row.mode == "decode" else size / row.q_bytes


def judge(row: Row, told: list[Found], subject: str) -> dict[str, bool | None]:
    """Return for each goal whether the candidate that it is for reached it; None where that was not measured."""
    own = next(c for c in told if c["name"] == subject)
    dense = next((c["memory_mib"] for c in told if c["name"] == "dense"), None)
    share = own["memory_mib"] / dense if own["memory_mib"] is not None and dense else None
    ratio = own["ratio"] and own["ratio"]["median"]
    got = {"ratio": ratio, "of_q": own["of_q"], "of_dense": share, "total_mib": own["process_mib"]}
    goals = {key: value for key, value in vars(row.goal).items() if value is not None}
    return {key: None if got[key] is None else got[key] <= goal for key, goal in goals.items()}


def _spell(spread: Spread) -> dict[str, float]:
    return {"low": spread.low, "median": spread.middle, "high": spread.high}
