"""Buckets of distances: T5's and DeBERTa's, and which known fault gives those that were measured."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from posenc import definitions
from posenc.verify.biases.calls import invoke
from posenc.verify.biases.rules import Fault, Rule, distances, expected, rules_of
from posenc.verify.guard import SubjectError
from posenc.verify.report import Cause, Findings, first

MEND = (
    "With d = query - key, side = n_buckets // 2 if both sides are seen else n_buckets, exact = side // 2: bucket |d| "
    "below exact, then min(exact + int(log(|d| / exact) / log(max_distance / exact) * (side - exact)), side - 1); keys "
    "ahead take the upper half, or bucket 0 where only keys behind are seen."
)


def rule_of(spec: Mapping[str, Any], both: bool) -> Rule:
    """Return the rule that a spec asks for."""
    return Rule(int(spec.get("num_buckets") or 32), int(spec.get("max_distance") or 128), both)


def check(subject: Any, spec: Mapping[str, Any]) -> Findings:
    """Judge `bucket(relative_position)`."""
    if spec.get("encoding") == "deberta":
        return _deberta(subject, spec)
    both = spec.get("bidirectional", None if spec.get("causal") is None else not spec["causal"])
    rel = distances(rule_of(spec, True))
    rel, rows = _as_far_as_it_goes(subject, rel)
    if both is None:  # not said: the one that fits, else the encoder's, which is the default of public code
        both = not agrees(rows, rel, rule_of(spec, False))
    findings = Findings(definitions=["t5"], measured={"bidirectional": both})
    judge(findings, rows, rel, rule_of(spec, bool(both)), spec)
    return findings


def _as_far_as_it_goes(subject: Any, rel: Tensor) -> tuple[Tensor, Tensor]:
    """Return distances and their buckets; a table of buckets may end, so that the farthest cannot be asked."""
    for top in (1 << 40, 1500, 500, 120):
        try:
            near = rel[rel.abs() <= top]
            return near, measure(subject, near, "t5")
        except SubjectError as error:
            if error.cause.code != "subject.raises" or top == 120:
                raise
    raise AssertionError


def measure(subject: Any, rel: Tensor, family: str) -> Tensor:
    """Return the bucket of each key - query, asked for as a matrix, then a few as a vector and alone.

    Raises:
        SubjectError: It cannot be used, or depends on what else is asked.
    """
    both = torch.stack([rel, rel.flip(0)])
    found = _whole(invoke(subject, both, what=f"bucket of {tuple(both.shape)} distances"), both, family)
    rows = found[0]
    few = torch.tensor([-3, 0, 5, 1])
    at = torch.tensor([int((rel == v).nonzero()[0]) for v in few])
    again = [found[1].flip(0)]
    try:
        again.append(_whole(invoke(subject, few, what="bucket of 4 distances"), few, family))
    except SubjectError as error:
        if error.cause.code != "subject.raises":
            raise
    for now, then in zip(again, (rows, rows[at]), strict=False):
        if not torch.equal(now, then):
            message = "The bucket of a distance depends on what other distances are asked with it."
            cause = Cause(f"{family}.bucket.not_by_distance", message, float((now != then).double().mean()))
            raise SubjectError(cause)
    return rows


def _whole(told: Any, asked: Tensor, family: str) -> Tensor:
    """Return buckets as long."""
    what = f"bucket of {tuple(asked.shape)} distances"
    if not isinstance(told, Tensor) or told.shape != asked.shape:
        got = tuple(told.shape) if isinstance(told, Tensor) else type(told).__name__
        message = f"{what} must return a tensor of that shape; got {got}"
        raise SubjectError(Cause("subject.shape", message, 1.0, {"call": what}, "Return one bucket per distance."))
    if told.is_floating_point() or told.is_complex():
        message = f"Buckets are row numbers of a table, and must be whole; they are {told.dtype}."
        raise SubjectError(Cause(f"{family}.bucket.not_integer", message, 1.0, {"call": what}, "End with .long()."))
    return told.long()


def agrees(rows: Tensor, rel: Tensor, rule: Rule, seen: Tensor | None = None) -> bool:
    """Say whether buckets are those of a rule, but for edges that a rounded logarithm may miss."""
    want, near = rule.buckets(rel)
    off = (rows - want).abs()
    fine = (off == 0) | (near & (off == 1))
    return bool((fine if seen is None else fine | ~seen).all())


def judge(findings: Findings, rows: Tensor, rel: Tensor, rule: Rule, spec: Mapping[str, Any]) -> None:
    """Write what is wrong with buckets into findings."""
    want = expected(rule, rel)
    _, near = rule.buckets(rel)
    off = (rows - want).abs()
    wrong = (off > 0) & ~(near & (off == 1))
    if not bool(wrong.any()):
        edges = rel[(off > 0) & near].tolist()
        if edges:
            findings.measured["edges_by_rounding"] = edges
        return
    inside = (rows >= 0) & (rows < rule.n_buckets)
    if not rule.bidirectional and not bool(wrong[rel <= 0].any()) and bool(inside.all()):
        findings.equivalent = "only keys ahead of the query have other buckets, and a decoder does not see them"
        return
    least = rel[wrong][rel[wrong].abs().argmin()]
    at = int((rel == least).nonzero()[0])
    case = {"relative_position": int(least), "found": int(rows[at]), "expected": int(want[at])}
    share = float(wrong.double().mean())
    tail = f": key - query = {int(least)} is in bucket {int(rows[at])}, not {int(want[at])}"
    tail += f"; {share:.0%} of the distances asked are in a wrong one"
    found = next((fs for fs, r in rules_of(rule) if agrees(rows, rel, r)), None)
    if found is None and not rule.bidirectional and bool((rows[rel > 0] < 0).all()) and not bool(wrong[rel <= 0].any()):
        found = [Fault("t5.bucket.out_of_table", "keys ahead have negative buckets, in place of bucket 0", {})]
    found = found or [Fault("t5.mismatch", "no known fault gives these buckets", {})]
    if found[0].code == "t5.bucket.direction" and len(found) == 1 and spec.get("direction") == "any":
        findings.equivalent = "past and future have changed places, and the spec leaves the direction free"
        return
    causes = [Cause(f.code, f.words[:1].upper() + f.words[1:] + tail + ".", share, case, MEND) for f in found]
    if not bool(inside.all()):
        beyond = int(rows.max()) if int(rows.max()) >= rule.n_buckets else int(rows.min())
        tail = f" Row {beyond} is not in a table of {rule.n_buckets}."
        causes[0] = replace(causes[0], message=causes[0].message + tail)
    findings.causes = first(causes)


def _deberta(subject: Any, spec: Mapping[str, Any]) -> Findings:
    """Judge DeBERTa-v2's signed buckets, of either sign of the distance and from either first number."""
    nb, md = int(spec.get("num_buckets") or 256), int(spec.get("max_distance") or 512)
    rel = torch.arange(-md + 1, md)
    rows = measure(subject, rel, "deberta")
    bucket = definitions.scores._deberta_bucket
    want = torch.tensor([bucket(-int(r), nb, md) for r in rel])
    findings = Findings(definitions=["deberta"])
    off = ((rows - want).abs() > 1) | ((rows - want).abs() * (want.abs() <= nb // 2) > 0)
    if not bool(off.any()):
        return findings
    for words, other in (
        ("buckets of key - query, the other sign of the distance", -want),
        (f"counted from 0: {nb} is added", want + nb),
        (f"of key - query, and counted from 0: {nb} is added", -want + nb),
    ):
        for top in (other, other.clamp(0, 2 * nb - 1)):
            if bool(((rows - top).abs() <= (want.abs() > nb // 2)).all()):
                findings.equivalent = f"{words}; which of them is right lies in how the rows are read"
                return findings
    at = int(off.double().argmax())
    case = {"relative_position": int(rel[at]), "found": int(rows[at]), "expected": int(want[at])}
    message = (
        f"No known fault gives these buckets: key - query = {int(rel[at])} is in {int(rows[at])}, not {int(want[at])}."
    )
    findings.causes = [Cause("deberta.mismatch", message, float(off.double().mean()), case)]
    return findings
