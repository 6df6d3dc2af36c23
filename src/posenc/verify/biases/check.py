"""Slopes, biases, score_mods, buckets and indices of tables: what is added to attention scores by distance."""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from posenc.definitions import versions
from posenc.verify.biases import buckets, falcon, index, scores, tables
from posenc.verify.biases.alibi import Alibi
from posenc.verify.biases.calls import BiasMeter, Meter, Probe, ScoreMeter, invoke
from posenc.verify.biases.forms import fit
from posenc.verify.biases.slopes import Asked, Measured, alike, judge
from posenc.verify.guard import SubjectError
from posenc.verify.report import Cause, Findings, first

CONVENTIONS = ("slopes_fn", "bias_fn", "score_mod", "bucket_fn", "relative_index_fn")
TABLES = ("t5", "swin_bias", "swin", "relative_bias")


def check(subject: Any, convention: str, spec: Mapping[str, Any]) -> Findings:
    """Return what is wrong with a bias.

    Args:
        subject: What build() returned.
        convention: One of CONVENTIONS.
        spec: What was asked.
    """
    try:
        return _check(subject, convention, spec)
    except SubjectError as error:
        return Findings(causes=[error.cause])


def _check(subject: Any, convention: str, spec: Mapping[str, Any]) -> Findings:
    encoding = _plain_name(spec)
    if convention == "slopes_fn":
        return slopes(subject, spec)
    if convention == "bucket_fn":
        return buckets.check(subject, spec)
    if convention == "relative_index_fn":
        return index.check(subject, spec)
    meter: Meter = BiasMeter(subject) if convention == "bias_fn" else ScoreMeter(subject)
    if encoding not in ("swin", "swin_bias"):  # whose window is a piece of an image
        meter.window = _window(spec)
    if meter.window == 1:
        return Findings(unknown="a window of 1 leaves each query its own key alone: no bias can be seen")
    if encoding in TABLES:
        return tables.check(meter, subject, spec)
    if encoding not in (None, "alibi"):
        return Findings(unknown=f"{convention} has no check for encoding {encoding!r}")
    asked = _asked(spec)
    if not isinstance(meter, ScoreMeter):
        return _alibi(meter, spec, asked)
    heads = spec.get("heads") or _heads(meter, asked)
    if heads is None:
        return Findings(unknown="the number of heads is not said, and the slopes fit no number of them; say heads")
    causes = scores.scores(meter, int(heads), asked)
    if causes:
        return Findings(causes=causes, definitions=[f"alibi@{'falcon' if _is_falcons(spec) else asked.rule}"])
    return _alibi(meter, {**spec, "heads": int(heads)}, asked)


def _alibi(meter: Meter, spec: Mapping[str, Any], asked: Asked) -> Findings:
    """Hold a bias against the version of ALiBi that is asked for."""
    if _is_falcons(spec):
        return falcon.check(meter, spec, asked)
    return falcon.named(Alibi(meter, spec, asked).run(), meter, spec)


def _plain_name(spec: Mapping[str, Any]) -> Any:
    """Return the encoding without its version, as "alibi" of "alibi@falcon"."""
    encoding = spec.get("encoding")
    return "alibi" if encoding in versions.BIASES else encoding


def _window(spec: Mapping[str, Any]) -> int | None:
    """Return how many keys a query sees.

    Raises:
        ValueError: It is no number of keys.
    """
    said = spec.get("window")
    if said is None or (isinstance(said, int) and not isinstance(said, bool) and said > 0):
        return said
    raise ValueError(f"verify: window must be how many keys a query sees; got {said!r:.60}. Give one number, as 64.")


def _is_falcons(spec: Mapping[str, Any]) -> bool:
    said = {str(spec.get("encoding")), f"alibi@{spec.get('variant')}"}
    return falcon.NAME in said or (spec.get("config") or {}).get("model_type") == "falcon"


def _asked(spec: Mapping[str, Any]) -> Asked:
    """Return what slopes a spec asks for."""
    config = spec.get("config") or {}
    top = config.get("alibi_bias_max", (config.get("attn_config") or {}).get("alibi_bias_max", 8))
    top = spec.get("bias_max") or top
    said = {str(spec.get("variant")), str(spec.get("slopes")), str(spec.get("encoding")).removeprefix("alibi@")}
    rule: Literal["authors", "geometric"] = "geometric" if said & {"geometric", "paper"} else "authors"
    return Asked(rule, float(top), spec.get("head_dim"))


def slopes(subject: Any, spec: Mapping[str, Any]) -> Findings:
    """Judge `slopes(n_heads)`."""
    asked = _asked(spec)
    heads = spec.get("heads")
    numbers = [int(heads)] if heads else [1, 2, 4, 8, 16, 32, 3, 5, 6, 12, 20, 40]
    found, causes = Measured(), list[Cause]()
    for n in [*numbers, *(n for n in (8, 4, 16, 12) if n not in numbers)]:
        try:
            found.slopes[n] = _numbers(invoke(subject, n, what=f"slopes({n})"), n)
        except SubjectError as error:
            found.failed[n] = error.cause
    if 1 in found.failed and len(numbers) > 1:
        numbers.remove(1)
        del found.failed[1]
    findings = Findings(definitions=[f"alibi@{asked.rule}"])
    findings.measured["slopes"] = {str(n): s.tolist() for n, s in found.slopes.items() if n in numbers}
    if spec.get("variant") == "learned":
        findings.unknown = "learned slopes have no right values"
        return findings
    causes, findings.equivalent = judge(found, numbers, asked)
    if _is_falcons(spec):
        findings.definitions = [falcon.NAME]
        causes = falcon.judge_slopes(found, numbers, causes)
    findings.causes = first(_again(subject, numbers, found) + causes)  # what is kept spoils what comes after it
    return findings


def _numbers(told: Any, n: int) -> Tensor:
    """Return slopes of any kind of list as a float64 vector.

    Raises:
        SubjectError: They are no numbers, or not finite.
    """
    try:
        if isinstance(told, Mapping):
            raise TypeError("a dict has no order")
        found = (
            told.detach() if isinstance(told, Tensor) else torch.tensor([float(s) for s in told], dtype=torch.float64)
        )
        if found.is_complex():
            raise TypeError("slopes are real")
    except (TypeError, ValueError) as error:
        message = f"slopes({n}) must return a list of numbers; got {type(told).__name__}"
        cause = Cause("subject.shape", message, 1.0, {"n_heads": n}, "Return one number per head.")
        raise SubjectError(cause) from error
    found = found.double().flatten()
    if not bool(found.isfinite().all()):
        message = f"slopes({n}) returns {found.tolist()[:4]}, which are not all finite."
        raise SubjectError(Cause("subject.not_finite", message, 1.0, {"n_heads": n}, "Return finite slopes."))
    return found


def _again(subject: Any, numbers: list[int], found: Measured) -> list[Cause]:
    """Ask once more, in the other order: a list that is kept and written into would show."""
    for n in numbers:
        if n not in found.slopes:
            continue
        now = _numbers(invoke(subject, n, what=f"slopes({n})"), n)
        if now.shape != found.slopes[n].shape or not alike(now, found.slopes[n], 1e-6):
            message = f"slopes({n}) gives other numbers the second time."
            return [Cause("alibi.mask_cached_on_class", message, 1.0, {"n_heads": n}, "Keep nothing between calls.")]
    return []


def _heads(meter: ScoreMeter, asked: Asked) -> int | None:
    """Return how many heads a score_mod is for, by its slopes."""
    s, failed = None, None
    for n in (64, 40, 32, 24, 20, 16, 12, 10, 8, 7, 6, 5, 4, 3, 2, 1):
        try:
            s = fit(meter.see(Probe(n, 7, 7)), True).back
        except SubjectError as error:
            failed = error
            continue
        if n < 64:
            return n
        break
    if s is None:
        assert failed
        raise failed
    return next((n for n in range(1, 65) if alike(s[:n], asked.slopes(n), 1e-3)), None)
