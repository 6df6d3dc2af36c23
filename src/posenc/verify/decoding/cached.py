"""Models with a cache: what is generated step by step must be what one pass gives, and if not, why."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from posenc.verify import guard
from posenc.verify.decoding import reading, trials
from posenc.verify.decoding.runs import BATCH, PATTERNS, TOKENS, Bench, bench, dependence, run, smallest
from posenc.verify.decoding.words import ELSEWHERE, FAMILIES, WORDS
from posenc.verify.report import Cause, Findings


def check(subject: Any, spec: Mapping[str, Any]) -> Findings:
    """Hold model(x, cache) against its own pass over all tokens."""
    family = str(spec.get("encoding"))
    family = family if family in FAMILIES else "rope"
    found = Findings(definitions=["decode@one-pass"])
    if not _repeats(subject, spec):
        if isinstance(subject, nn.Module) and subject.training:
            subject.eval()
        if not _repeats(subject, spec):
            return _random(subject, spec, family, found)
    b = bench(subject, spec)
    fault = _of_one_pass(b, spec)
    if fault is None:
        for name, chunks in PATTERNS.items():
            b.try_pattern(name, chunks)
        fault = _diagnose(b, family, spec)
    if fault is None:
        fault = _second_time(b) or _long(b, family, spec)
    found.measured = {
        "width": b.x.shape[-1],
        "largest_error": max((max(t.errors) for t in b.trials.values()), default=0.0),
        "not_judged": dict(b.refused),
    }
    if fault is not None:
        found.causes = [_cause(b, fault, family, spec)]
    return found


def _repeats(subject: Any, spec: Mapping[str, Any]) -> bool:
    b = bench(subject, spec)
    return b.same(b.one_pass(b.x), b.full)


def _random(subject: Any, spec: Mapping[str, Any], family: str, found: Findings) -> Findings:
    """Say of a model that gives other outputs the second time whether that is chance or memory."""
    b = bench(subject, spec)
    torch.manual_seed(3)
    one = b.one_pass(b.x)
    torch.manual_seed(3)
    if b.same(b.one_pass(b.x), one):
        found.unknown = "The model draws random numbers (dropout?), so that no two passes can be compared: call eval()."
    else:
        found.causes = [_cause(b, "state", family, spec)]
    return found


def _of_one_pass(b: Bench, spec: Mapping[str, Any]) -> str | None:
    """Look at what one pass does by itself."""
    seen = dependence(b, (TOKENS,))
    if bool((seen.triu(1) > b.tolerance).any()):
        return "not_causal"
    if b.distance(b.one_pass(b.x[1:2]), b.full[1:2]) > b.tolerance:
        return "batch"
    if b.distance(b.one_pass(b.x[:, :5]), b.full[:, :5]) > b.tolerance:
        return "length"
    moved = b.one_pass(b.x[:, [1, 0, *range(2, TOKENS)]])
    if spec.get("encoding") not in (None, "nope", "none") and b.same(moved[:, 2:], b.full[:, 2:]):
        return "not_applied"
    return None


def _diagnose(b: Bench, family: str, spec: Mapping[str, Any]) -> str | None:
    """Return the fault that explains which calls are wrong; None if none is."""
    w = {name: b.wrong(name) for name in PATTERNS}
    if not any(any(calls) for calls in w.values() if calls is not None):
        return None
    if not b.same(b.run(b.x, PATTERNS["prefill 5"]), b.trials["prefill 5"].y):
        return "state"
    fault = trials.unseen(b)
    if fault is not None:
        return fault
    w = {name: b.wrong(name) for name in PATTERNS}
    if not any(any(calls) for calls in w.values() if calls is not None):
        return None
    return _from_scores(b, family, spec) or _from_outputs(b, family, spec, w)


def _from_scores(b: Bench, family: str, spec: Mapping[str, Any], *, far: bool = False) -> str | None:
    """Return the fault that explains the scores, where they can be seen."""
    seen = reading.read(b, family, spec, whole=True) if "uneven" in b.trials and not far else None
    seen = seen or reading.read(b, family, spec, whole=False, far=far)
    if seen is None or seen.right():
        return None
    if family in ("alibi", "t5") and reading.flat(seen, several=False):
        if family == "t5":
            return "query" if reading.as_of_itself(seen) else "bias_dropped"
        beside = [b.wrong(name) for name in ("equal", "uneven")]
        several_wrong = any(any(calls) for calls in beside if calls is not None)
        whole = "uneven" in b.trials and (reading.flat(seen, several=True) or not several_wrong)
        return "bias_dropped" if whole else "bias_zero"
    fault = reading.name(seen)
    return "centre" if fault is None and family == "xpos" and reading.right_within(seen) else fault


def _from_outputs(b: Bench, family: str, spec: Mapping[str, Any], w: dict[str, list[bool] | None]) -> str | None:
    """Return the fault that explains which calls are wrong, and what permuted and silent tokens do to them."""
    steps, five, eight = (_calls(w[name]) for name in ("steps", "prefill 5", "prefill 8"))
    equal, uneven, one_first = (w[name] for name in ("equal", "uneven", "one first"))
    single_wrong = any(steps) or any(five) or any(eight)
    parts = [calls for calls in (equal, uneven, one_first) if calls is not None]
    if family in ("alibi", "t5") and single_wrong and trials.order_lost(b):
        return "bias_zero" if family == "alibi" and not (parts and trials.part_lost(b)) else "bias_dropped"
    if single_wrong and not any(any(calls) for calls in parts) and (parts or trials.last_row_right(b)):
        return "single"
    if not single_wrong:
        return "constant" if trials.part_lost(b) else "chunk"
    if not any(steps) and not (equal and any(equal)):
        return "count_early" if any(five) else None
    if not any(steps):
        return "calls"
    if not five[1] and any(five):
        return "double" if not eight[1] else "table"
    for fault, looks in (
        ("offset", trials.order_lost),
        ("off_by", trials.held_together),
        ("centre", lambda b: family == "xpos" and trials.centre(b)),
        ("again", lambda b: not steps[1] and steps[2] and five[1] and trials.turned_again(b)),
        ("query", trials.self_moved),
        ("double", trials.stretched),
        ("offset", trials.restarts),
    ):
        if looks(b):
            return trials.displaced(b, spec.get("layers")) if fault == "off_by" else fault
    return "mismatch"


def _calls(wrong: list[bool] | None) -> list[bool]:
    return wrong if wrong is not None else []


def _second_time(b: Bench) -> str | None:
    """Run everything again on the same object, and once on a fresh copy in another order."""
    for chunks in (PATTERNS["prefill 8"], (TOKENS,), PATTERNS["prefill 5"], PATTERNS["steps"]):
        if not b.same(b.run(b.x, chunks), b.full):
            return "state"
    if b.spare is None or b.spare is b.subject:
        return None
    fresh = copy.deepcopy(b.spare)
    if isinstance(fresh, nn.Module) and isinstance(b.subject, nn.Module):
        fresh.train(b.subject.training)
    for chunks in (PATTERNS["steps"], PATTERNS["prefill 5"], (TOKENS,)):
        if not b.same(run(fresh, b.x, chunks), b.full):
            return "state"
    return None


def _long(b: Bench, family: str, spec: Mapping[str, Any]) -> str | None:
    """Decode after a longer prefill, where one pass takes that many."""
    x = torch.randn(1, 67, b.x.shape[-1], generator=torch.Generator().manual_seed(9)).to(b.x.dtype)
    x = x * (b.x.abs().mean() / x.abs().mean())
    try:
        wanted = b.one_pass(x)
    except guard.SubjectError:
        return None
    if b.same(b.run(x, (64, 1, 1, 1)), wanted):
        return None
    return _from_scores(b, family, spec, far=True) or "mismatch"


def _cause(b: Bench, fault: str, family: str, spec: Mapping[str, Any]) -> Cause:
    behind, does, mend = WORDS[fault]
    behind = ELSEWHERE.get((family, fault), behind)
    code = f"{family}.{behind}"
    worst = max((max(t.errors) for t in b.trials.values()), default=1.0)
    case: dict[str, Any] = smallest(b) if b.trials else {"batch": BATCH, "tokens": TOKENS}
    text = f"The model {does}."
    if b.trials:
        rows = _rows(b)
        text += f" Outputs differ from those of one pass by up to {worst:.2g} of the largest{rows}."
    if case.get("chunks"):
        text += f" Smallest case: parts of {case['chunks']} tokens, call {case['call'] + 1} is off by {case['error']}."
    return Cause(code, text, worst, case, mend)


def _rows(b: Bench) -> str:
    """Say where some rows of the batch are right and others wrong."""
    off = torch.stack([(t.y - b.full).abs().amax((1, 2)) for t in b.trials.values()]).amax(0)
    wrong = (off > b.tolerance * b.full.abs().max()).tolist()
    if all(wrong) or not any(wrong):
        return ""
    return f", in rows {[i for i, w in enumerate(wrong) if w]} of the batch only"
