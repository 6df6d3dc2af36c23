"""Models with a cache: what is generated step by step must be what one pass gives, and if not, why."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from posenc.verify.decoding import caches, families, far, masks, reading, trials
from posenc.verify.decoding.runs import (
    BATCH,
    PARTS,
    PATTERNS,
    SMALL,
    TOKENS,
    Bench,
    Trial,
    bench,
    dependence,
    first_wrong,
    run,
    smallest,
)
from posenc.verify.decoding.words import ELSEWHERE, MENDS, OF_PARTS, WHOLE, WORDS
from posenc.verify.report import Cause, Findings


def check(subject: Any, spec: Mapping[str, Any]) -> Findings:
    """Hold model(x, cache) against its own pass over all tokens."""
    found = Findings(definitions=["decode@one-pass"])
    if not _repeats(subject, spec):
        if isinstance(subject, nn.Module) and subject.training:
            subject.eval()
        if not _repeats(subject, spec):
            return _random(subject, spec, found)
    b = bench(subject, spec)
    found.causes = [_cause(b, fault, spec) for fault in _faults(b, spec)]
    found.measured = _measured(b)
    return found


def _faults(b: Bench, spec: Mapping[str, Any]) -> list[str]:
    """Return the faults, the first that is found and what is wrong beside it."""
    fault = _of_one_pass(b, spec)
    if fault is not None:
        return [fault]
    for name, chunks in PATTERNS.items():
        b.try_pattern(name, chunks)
    named = _diagnose(b, spec)
    if named:
        return named
    if _second_time(b):
        return ["state"]
    if caches.by_turns(b):
        return ["by_turns"]
    if caches.used_again(b):
        return ["used_again"]
    fault = far.fault(b, spec)
    return [] if fault is None else [fault]


def _measured(b: Bench) -> dict[str, Any]:
    """Say how far was looked, and what was not judged."""
    trials = [*b.trials.values(), *([] if b.shown is None else [b.shown])]
    return {
        "width": b.x.shape[-1],
        "largest_error": max((max(t.errors) for t in trials), default=0.0),
        "farthest_position": b.farthest,
        "calls_compared": sum(len(t.errors) for t in trials),
        "not_judged": dict(b.refused),
    }


def _repeats(subject: Any, spec: Mapping[str, Any]) -> bool:
    b = bench(subject, spec)
    return b.same(b.one_pass(b.x), b.full)


def _random(subject: Any, spec: Mapping[str, Any], found: Findings) -> Findings:
    """Say of a model that gives other outputs the second time whether that is chance or memory."""
    b = bench(subject, spec)
    torch.manual_seed(3)
    one = b.one_pass(b.x)
    torch.manual_seed(3)
    if b.same(b.one_pass(b.x), one):
        found.unknown = "The model draws random numbers (dropout?), so that no two passes can be compared: call eval()."
    else:
        found.causes = [_cause(b, "state", spec)]
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


def _diagnose(b: Bench, spec: Mapping[str, Any]) -> list[str]:
    """Return the fault that explains which calls are wrong, and that of parts of several if it is another."""
    if not _any_wrong(b):
        return []
    if not b.same(b.run(b.x, PATTERNS["prefill 5"]), b.trials["prefill 5"].y):
        return ["state"]
    fault, of_parts = masks.unseen(b, _layers(spec))
    if fault is not None:
        return [fault]
    rest = [] if of_parts is None else [of_parts]
    if rest and not spec.get("chunked"):  # a model may be meant for single tokens beside its cache
        b.refused[PARTS] = f"a mask that is not made for them: the model {WHOLE[rest.pop()][1]}"
    if not _any_wrong(b):
        b.detail = "; single tokens are right" if rest else ""
        return rest
    w, family = {name: b.wrong(name) for name in PATTERNS}, families.of(b, spec)
    fault = _from_scores(b, family, spec) or _from_outputs(b, family, spec, w)
    if fault == "hides" or (fault == "mismatch" and masks.hides(b)):
        return ["hides"]
    return [fault, *rest]


def _any_wrong(b: Bench) -> bool:
    return any(any(calls) for name in PATTERNS if (calls := b.wrong(name)) is not None)


def _layers(spec: Mapping[str, Any]) -> int | None:
    told = spec.get("layers")
    return told if isinstance(told, int) and told > 0 else None


def _from_scores(b: Bench, family: str, spec: Mapping[str, Any]) -> str | None:
    """Return the fault that explains the scores, where they can be seen."""
    seen = reading.read(b, family, spec, whole=True) if "uneven" in b.trials else None
    seen = seen or reading.read(b, family, spec, whole=False)
    if seen is None:
        return None
    if seen.right():  # what is seen is right, and what is not seen is missing
        told = masks.counted(b, b.x[:1], TOKENS - 1)
        return "hides" if told == "window_short" or (told is None and masks.hides(b)) else told
    if family in ("alibi", "t5") and reading.flat(seen, several=False):
        if family == "t5":
            return "query" if reading.as_of_itself(seen) else "bias_dropped"
        beside = [b.wrong(name) for name in ("equal", "uneven")]
        several_wrong = any(any(calls) for calls in beside if calls is not None)
        whole = "uneven" in b.trials and (reading.flat(seen, several=True) or not several_wrong)
        return "bias_dropped" if whole else "bias_zero"
    fault = reading.name(seen)
    return "centre" if fault is None and family == "xpos" and reading.right_within(seen) else fault


def _from_outputs(b: Bench, family: str, spec: Mapping[str, Any], w: dict[str, list[bool] | None]) -> str:
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
        return "count_early" if any(five) else "mismatch"
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


def _second_time(b: Bench) -> bool:
    """Run everything again on the same object, and on a fresh copy in another order: whether something is kept."""
    for chunks in (PATTERNS["prefill 8"], (TOKENS,), PATTERNS["prefill 5"], PATTERNS["steps"]):
        if _differs(b, b.run(b.x, chunks), chunks):
            return True
    if b.spare is None or b.spare is b.subject:
        return False
    fresh = copy.deepcopy(b.spare)
    if isinstance(fresh, nn.Module) and isinstance(b.subject, nn.Module):
        fresh.train(b.subject.training)
    return any(_differs(b, run(fresh, b.x, chunks), chunks) for chunks in (PATTERNS["steps"], PATTERNS["prefill 5"]))


def _differs(b: Bench, y: Tensor, chunks: tuple[int, ...]) -> bool:
    """Whether a run differs from one pass; if so it is kept on the bench."""
    if b.same(y, b.full):
        return False
    b.shown = Trial(chunks, y, b.by_call(y, b.full, chunks))
    b.case = first_wrong(chunks, b.shown.errors, b.tolerance, BATCH)
    return True


def _cause(b: Bench, fault: str, spec: Mapping[str, Any]) -> Cause:
    """Put a fault into words, with the numbers of the runs that show it."""
    if fault in WHOLE:
        code, does, mend = WHOLE[fault]
    else:
        family, (behind, does, mend) = families.of(b, spec), WORDS[fault]
        mend, behind = MENDS.get((family, mend), mend), ELSEWHERE.get((family, fault), behind)
        code = f"{family}.{behind}"
    text = f"The model {does}{b.detail}."
    if fault.startswith("window") and isinstance(window := spec.get("window"), int):
        text += f" A window of {window}, as is asked for, is {window - 1} and the token itself."
    if b.shown is not None:
        trials, case = {"": b.shown}, b.case
    elif fault in OF_PARTS:
        trials, case = b.aside, smallest(b, b.aside, [c for c in SMALL if max(c[1:]) > 1])
    else:
        trials = b.trials
        case = smallest(b, trials, [c for c in SMALL if not b.aside or max(c[1:]) == 1]) if trials else {}
    if not trials:
        return Cause(code, text, 1.0, {"batch": BATCH, "tokens": TOKENS}, mend)
    worst = max(max(t.errors) for t in trials.values())
    text += f" Outputs differ from those of one pass by up to {worst:.2g} of the largest{_rows(b, trials)}."
    if case.get("chunks"):
        text += f" Smallest case: parts of {case['chunks']} tokens, call {case['call'] + 1} is off by {case['error']}."
    return Cause(code, text, worst, case, mend)


def _rows(b: Bench, trials: Mapping[str, Trial]) -> str:
    """Say where some rows of the batch are right and others wrong."""
    if b.shown is not None:
        return ""
    off = torch.stack([(t.y - b.full).abs().amax((1, 2)) for t in trials.values()]).amax(0)
    wrong = (off > b.tolerance * b.full.abs().max()).tolist()
    if all(wrong) or not any(wrong):
        return ""
    return f", in rows {[i for i, w in enumerate(wrong) if w]} of the batch only"
