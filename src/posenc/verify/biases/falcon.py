"""ALiBi by Falcon's definition, `alibi@falcon`: slope, position of the key and their product rounded to bfloat16.

Its rounding is no fault there, since the weights were trained with it: that of full precision is the other one.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posenc.definitions import versions
from posenc.verify.biases.alibi import Alibi
from posenc.verify.biases.calls import Meter, Probe, Seen
from posenc.verify.biases.forms import cached_forms, centred, same, same_scores, shown, worst
from posenc.verify.biases.masks import case_of, masks
from posenc.verify.biases.slopes import ROOTS, Asked, Measured, alike
from posenc.verify.biases.state import State
from posenc.verify.guard import SubjectError
from posenc.verify.report import Cause, Findings, first

NAME = "alibi@falcon"
NUMBERS = (6, 8, 16, 71)
SIZES = ((7, 7), (11, 11), (1, 2), (1, 9), (3, 8))
LONG = (1200, 520, 300, 130)  # from 257 on keys share a position
MEND = "Round slope, position of the key and their product to bfloat16 each, as Falcon's build_alibi_tensor does; or "
MEND += "ask for plain ALiBi where the weights were not trained with that."


@cache
def _row(heads: int, k_len: int) -> Tensor:
    at = versions.alibi_falcon(np.array([0.0]), np.arange(float(k_len)), n_heads=heads)
    return torch.from_numpy(at)


def right(probe: Probe) -> Tensor:
    """Return the bias by the definition, which has one row for all queries."""
    return _row(probe.heads, probe.k_len).expand(tuple(probe))


def slopes(n: int) -> Tensor:
    """Return the slopes that its keys have, float64."""
    return _row(n, 2)[:, 0, 1]


def check(meter: Meter, spec: Mapping[str, Any], asked: Asked) -> Findings:
    """Hold a bias against Falcon's definition; what is none of its faults is looked for as in plain ALiBi."""
    causal = bool(spec.get("causal", not spec.get("bidirectional", False)))
    findings = Findings(definitions=[NAME])
    heads = [int(spec["heads"])] if spec.get("heads") else [n for n in NUMBERS if meter.counts_heads]
    state = State(meter, bool(spec.get("heads")))
    seen = [meter.see(Probe(n, *size)) for n in heads for size in SIZES]
    seen += [one for n in heads if (one := _long(meter, n)) is not None]
    findings.causes = masks(meter, seen, causal)
    bad = [s for s in seen if not same_scores(s, right(s.probe), causal)]
    if bad and not findings.causes:
        known = _with_cache(meter, bad, causal) or _scaled(meter, seen, bad[0], causal, asked.head_dim)
        findings.causes = [known] if known else _plain(meter, spec, asked, bad[0], causal)
    elif not findings.causes:
        findings.causes = first(state.again(seen[0], causal)[1])
        if not all(same(s, right(s.probe), causal) for s in seen):
            findings.equivalent = "rows have constants of their own, which a softmax over the row takes away"
    return findings


def named(findings: Findings, meter: Meter, spec: Mapping[str, Any]) -> Findings:
    """Say of rounding that was found in plain ALiBi where it is Falcon's."""
    if not findings.causes or not findings.causes[0].code.startswith("alibi.precision."):
        return findings
    n = int(spec.get("heads") or findings.causes[0].smallest_case.get("heads", 16))
    try:
        seen = [one for one in (meter.see(Probe(n, 11, 11)), _long(meter, n)) if one is not None]
    except SubjectError:
        return findings
    if all(same_scores(s, right(s.probe), True) for s in seen):
        head = findings.causes[0]
        message = (
            f"{head.message} It is what {NAME} defines, by which Falcon was trained, and not {findings.definitions[0]}."
        )
        help_ = f'{head.help} For Falcon\'s weights say "variant": "falcon" in the spec.'
        findings.causes[0] = replace(head, message=message, help=help_)
    return findings


def judge_slopes(found: Measured, numbers: list[int], causes: list[Cause]) -> list[Cause]:
    """Return why slopes are not Falcon's.

    Args:
        found: What was measured.
        numbers: The numbers of heads to judge by.
        causes: Why they are not the authors' in full precision; of these none is a fault here where they are Falcon's.
    """
    bad = [n for n in numbers if n in found.failed or not alike(found.slopes[n], slopes(n), 1e-5)]
    if not bad or bad[0] in found.failed or len(found.slopes[bad[0]]) != bad[0]:
        return causes if bad else []
    s, want = found.slopes[bad[0]], slopes(bad[0])
    h = int((s - want).abs().argmax())
    factor = float(s[0] / want[0])
    if not causes:
        code, words = "alibi.definition.other_version", f"These are slopes in full precision, where {NAME} is asked for"
    elif all(n in found.slopes and alike(found.slopes[n], factor * slopes(n), 1e-5) for n in bad):
        code = "alibi.sign" if factor < 0 else "alibi.scale.factor"
        words = f"These are {factor:.6g} times Falcon's slopes"
    else:
        return causes
    message = f"{words}: head {h} of slopes({bad[0]}) has {float(s[h]):.8g}, where {float(want[h]):.8g} is right."
    case = {"n_heads": bad[0], "head": h, "found": float(s[h]), "expected": float(want[h])}
    return [Cause(code, message, float((s - want).abs().max()), case, MEND)]


def _long(meter: Meter, n: int) -> Seen | None:
    """Return a row of many keys, or None where a table ends before."""
    for k_len in LONG:
        try:
            return meter.see(Probe(n, 1, k_len))
        except SubjectError as error:
            if error.cause.code not in ("subject.raises", "subject.shape"):
                raise
    return None


def _with_cache(meter: Meter, bad: list[Seen], causal: bool) -> Cause | None:
    """Return the cause of a bias that is right until there are more keys than queries."""
    short = [s for s in bad if s.probe.k_len < LONG[-1]]
    if not short or not all(s.probe.cached for s in short):
        return None
    form = next(iter(cached_forms()))
    if all(bool((s.bias.std(-1) < 1e-9).all()) for s in short if s.probe.q_len == 1):
        return _cause(form.code, form.words.capitalize(), meter, short[0], causal, form.mend)
    words = f"With more keys than queries it is no longer {NAME}, by no known fault"
    return _cause("alibi.mismatch", words, meter, short[0], causal, form.mend)


def _scaled(meter: Meter, seen: list[Seen], bad: Seen, causal: bool, head_dim: int | None) -> Cause | None:
    """Return the cause of a bias that is the right one times a factor."""
    see = shown(bad, causal)
    found, want = (centred(t, see) for t in (bad.bias, right(bad.probe)))
    factor = float((found * want).sum() / want.square().sum().clamp_min(1e-30))
    if not factor or not all(same_scores(s, factor * right(s.probe), causal) for s in seen):
        return None
    roots = (head_dim,) if head_dim else ROOTS
    root = next((d for d in roots if math.isclose(abs(factor) * math.sqrt(d), 1, rel_tol=1e-4)), None)
    code = "alibi.sign" if factor < 0 else "alibi.scale.applied_to_bias" if root else "alibi.scale.factor"
    words = f"The bias is {factor:.6g} times Falcon's" + (f", divided by sqrt({root})" if root and factor > 0 else "")
    return _cause(code, words, meter, bad, causal, "Add slope * position of the key, as it is.")


def _plain(meter: Meter, spec: Mapping[str, Any], asked: Asked, bad: Seen, causal: bool) -> list[Cause]:
    """Return why a bias that is not Falcon's is not: it is plain ALiBi, or has a fault of that."""
    found = Alibi(meter, spec, asked).run()
    if not found.causes:
        words = f"This is {found.definitions[0]}, formed in full precision, where {NAME} is asked for"
        return [_cause("alibi.definition.other_version", words, meter, bad, causal, MEND)]
    head = found.causes[0]
    message = f"It is not {NAME}. Held against {found.definitions[0]}: {head.message}"
    return [replace(head, message=message)]


def _cause(code: str, words: str, meter: Meter, bad: Seen, causal: bool, mend: str) -> Cause:
    """Return a cause with the place that is off most, against the last key that its query sees."""
    want = right(bad.probe)
    most, (h, i, j) = worst(bad, want, causal)
    last = int(shown(bad, causal)[i].nonzero()[-1])
    found, wanted = (float(t[h, i, j] - t[h, i, last]) + 0.0 for t in (bad.bias, want))
    message = f"{words}: in {meter.says(bad.probe)} query {i} of head {h} has {found:.6g} more for key {j} than for "
    message += f"key {last}, where {wanted:.6g} is right; off by {most:.4g}."
    return Cause(code, message, most, case_of(bad, h, i, j, float(want[h, i, j])), mend)
