"""Biases out of a table that nobody has shown: which distances share a number can be seen, whose row it is cannot."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from posenc.verify.biases import buckets, index, rules
from posenc.verify.biases.alibi import LONGEST
from posenc.verify.biases.calls import HIDDEN, Meter, Probe, Seen
from posenc.verify.biases.forms import shown
from posenc.verify.biases.masks import masks
from posenc.verify.biases.state import copied
from posenc.verify.guard import SubjectError
from posenc.verify.report import Cause, Findings, first


def check(meter: Meter, subject: Any, spec: Mapping[str, Any]) -> Findings:
    """Judge a bias whose table is not known, by the distances that share a number."""
    if spec.get("encoding") in ("swin", "swin_bias"):
        return _window(meter, spec)
    return _Line(meter, subject, spec).run()


def _heads(meter: Meter, spec: Mapping[str, Any], sizes: tuple[int, ...]) -> tuple[int, Seen]:
    """Return how many heads a table has, and a first call.

    Raises:
        SubjectError: No number of heads that is usual can be asked for.
    """
    error = None
    heads = [int(spec["heads"])] if spec.get("heads") else [4, 8, 12, 6, 3, 2, 16, 1]
    for size, n in ((size, n) for size in sizes for n in heads):
        try:
            return n, meter.see(Probe(n, size, size))
        except SubjectError as one:
            error = error or one
    assert error
    raise error


def labels(values: Tensor) -> Tensor:
    """Number the different columns of (heads, n) numbers by their first place."""
    size = float(values.abs().max()) or 1.0
    of: dict[tuple[int, ...], int] = {}
    keys = [tuple(c) for c in (values / size * 2**20).round().long().T.tolist()]
    return torch.tensor([of.setdefault(k, len(of)) for k in keys])


def canonical(rows: Tensor) -> Tensor:
    """Number rows by their first place: what is left of row numbers if the table is not known."""
    of: dict[int, int] = {}
    return torch.tensor([of.setdefault(int(r), len(of)) for r in rows])


class _Line:
    """Distances along a line: T5's buckets, or one number each up to a largest distance."""

    def __init__(self, meter: Meter, subject: Any, spec: Mapping[str, Any]) -> None:
        self.meter, self.subject, self.spec = meter, subject, spec
        self.t5 = spec.get("encoding") == "t5"
        self.family = "t5" if self.t5 else "relative_bias"
        self.both = bool(spec.get("bidirectional", not spec.get("causal", False)))
        self.rule = buckets.rule_of(spec, self.both)
        self.findings = Findings(definitions=[self.family])
        self.fresh = copied(meter)

    def run(self) -> Findings:
        """Return what was found."""
        size = min(int(self.rule.max_distance * 1.2) + 8, 320)
        n, seen = _heads(self.meter, self.spec, (size, 64, 24))
        if seen.probe.k_len < size:
            self.findings.measured["longest"] = seen.probe.k_len
        if hidden := self._hidden(n, seen):
            self.findings.causes = hidden
            return self.findings
        line, broken = self._by_distance(seen)
        if broken:
            self.findings.causes = [broken]
            return self.findings
        rel, values = line
        rows = next(_rows(self.subject, values, n, self.rule.n_buckets), None)
        if rows is None and bool((values == values[:, :1]).all()):
            self._constant(seen)
            return self.findings
        if rows is not None and self.t5:
            self._known(rel, rows)
        else:
            self.findings.measured["numbering"] = "not seen: the table is not known"
            self._unknown(rel, values)
        if not self.findings.causes and not self.both:
            self.findings.causes = first(self._cached(n, rel, values))
        return self.findings

    def _hidden(self, n: int, seen: Seen) -> list[Cause]:
        """Return what is wrong with keys that are hidden by -inf, in a square and in a row that passes the window."""
        rows = [seen]
        if self.meter.window and not self.both:
            with suppress(SubjectError):  # a table may end before
                rows.append(self.meter.see(Probe(n, 1, min(2 * self.meter.window + 8, LONGEST))))
        return masks(self.meter, rows, not self.both, self.family)

    def _constant(self, seen: Seen) -> None:
        """Say what one bias for all distances means: the table is empty, or a decoder's past is one bucket."""
        ahead = torch.where(seen.bias > HIDDEN, seen.bias, seen.bias[:, :1, :1])
        if self.t5 and not self.both and bool((ahead != seen.bias[:, :1, :1]).any()):
            f = rules.faults(self.rule)[0]
            message = (
                f"{f.words[:1].upper()}{f.words[1:]}: all keys behind share one bias, and those ahead have their own."
            )
            case = {"relative_position": -1}
            self.findings.causes = [Cause(f.code, message, 1.0, case, buckets.MEND)]
            return
        self.findings.unknown = "all distances have one bias: the table is empty, or the bias has no effect"

    def _by_distance(self, seen: Seen) -> tuple[tuple[Tensor, Tensor], Cause | None]:
        """Return the bias of each distance, which must have one."""
        rel = -seen.probe.distance()
        see = shown(seen, not self.both)
        low, high = int(rel[see].min()), int(rel[see].max())
        kinds = torch.arange(low, high + 1)
        values = torch.stack([seen.bias.diagonal(int(r), 1, 2)[:, 0] for r in kinds], 1)
        off = torch.where(see, seen.bias - values[:, rel.clamp(low, high) - low], 0.0).abs()
        size = float(values[values > HIDDEN].abs().max()) if bool((values > HIDDEN).any()) else 1.0
        if float(off.max()) <= 8 * seen.eps * size:
            return (kinds, values), None
        h, i, j = (int(v) for v in (off == off.max()).nonzero()[0])
        message = f"The bias is not one of the distance: in {self.meter.says(seen.probe)} head {h} has "
        message += (
            f"{float(seen.bias[h, i, j]):.5g} for query {i} and key {j}, and another for the same distance elsewhere."
        )
        case = {**seen.probe._asdict(), "head": h, "query": i, "key": j}
        cause = Cause(
            f"{self.family}.bias.not_by_distance", message, float(off.max()), case, "Look up key - query alone."
        )
        return (kinds, values), cause

    def _known(self, rel: Tensor, rows: Tensor) -> None:
        """Judge row numbers, read off a table that the subject carries."""
        buckets.judge(self.findings, rows, rel, self.rule, self.spec)
        self.findings.measured["numbering"] = "read off the subject's table"

    def _unknown(self, rel: Tensor, values: Tensor) -> None:
        """Judge which distances share a number."""
        found = labels(values)
        if not self.t5:
            top = int(self.spec.get("max_distance") or 1 << 30)
            want, near = canonical(rel.clamp(-top, top)), torch.zeros_like(rel, dtype=torch.bool)
        else:
            want, near = canonical(rules.expected(self.rule, rel)), self.rule.buckets(rel)[1]
        if _alike(found, want, near):
            return
        wrong = (canonical(found[~near]) != canonical(want[~near])).double()
        at = rel[~near][wrong > 0]
        least = int(at[at.abs().argmin()])
        tail = f": key - query = {least} is the least distance that shares its number with others than it should"
        case, share = {"relative_position": least}, float(wrong.mean())
        for faults, rule in rules.rules_of(self.rule) if self.t5 else ():
            rows, edge = rule.buckets(rel)
            if len(faults) == 1 and _alike(found, canonical(rows), edge | near):
                f = faults[0]
                message = f.words[:1].upper() + f.words[1:] + tail + "."
                self.findings.causes = [Cause(f.code, message, share, case, buckets.MEND)]
                return
        message = f"No known fault makes these distances share their numbers{tail}."
        self.findings.causes = [Cause(f"{self.family}.mismatch", message, share, case)]

    def _cached(self, n: int, rel: Tensor, values: Tensor) -> list[Cause]:
        """Judge calls with more keys than queries."""
        wrong: list[tuple[Seen, Tensor, Tensor]] = []
        local, flat = True, False
        for size in ((1, 9), (3, 8), (3, 9)):
            probe = Probe(n, *size)
            try:
                seen = self.meter.see(probe)
            except SubjectError as error:
                return [self._kept(probe, None) or error.cause]
            here = torch.arange(probe.q_len)[:, None] - torch.arange(probe.k_len)
            low = int(rel.min())
            want, other = (values[:, (-d).clamp(low, 0) - low] for d in (probe.distance(), here))
            allowed = 8 * seen.eps * float(values.abs().max())
            off = ((seen.bias - want).abs() > allowed) & shown(seen, True)
            local &= bool(((seen.bias - other).abs() <= allowed)[:, here >= 0].all())
            if bool(off.any()):
                wrong.append((seen, want, off))
                flat |= bool((seen.bias == seen.bias[..., :1]).all())
        if not wrong:
            return []
        kept = self._kept(wrong[0][0].probe, wrong[0][0].bias)
        if kept:
            return [kept]
        code, words = f"{self.family}.mismatch", "is no bias of the distance"
        if local:
            code, words = f"{self.family}.kv_cache.query_from_zero", "counts queries from 0, not from k_len - q_len"
        elif flat:
            code, words = f"{self.family}.decode.bias_dropped", "is the same for all keys"
        seen, want, off = wrong[0]
        h, i, j = (int(v) for v in off.nonzero()[0])
        message = f"With more keys than queries the bias {words}: {self.meter.says(seen.probe)} has "
        message += f"{float(seen.bias[h, i, j]):.5g} in head {h}, query {i}, key {j}, not {float(want[h, i, j]):.5g}."
        most = float((seen.bias - want).abs()[off].max())
        help_ = "Take the queries as the last q_len of k_len positions."
        return [Cause(code, message, most, {**seen.probe._asdict(), "head": h, "query": i, "key": j}, help_)]

    def _kept(self, probe: Probe, bias: Tensor | None) -> Cause | None:
        """Return a memory of other calls as the cause, if a fresh object answers a call, and otherwise."""
        fresh = copied(self.fresh) if self.fresh else None
        try:
            now = fresh.see(probe).bias if fresh else bias
        except SubjectError:
            return None
        if now is None or (bias is not None and torch.equal(now, bias)):
            return None
        message = f"{self.meter.says(probe)} is another bias after other calls than on a fresh object: one is kept."
        off = float((now - bias).abs().max()) if bias is not None else 1.0
        help_ = "Keep no bias, or keep it by everything that it depends on: heads and both lengths."
        return Cause(f"{self.family}.bias.state_kept", message, off, probe._asdict(), help_)


def _alike(found: Tensor, want: Tensor, near: Tensor) -> bool:
    return torch.equal(canonical(found[~near]), canonical(want[~near]))


def _window(meter: Meter, spec: Mapping[str, Any]) -> Findings:
    """Judge a bias over the tokens of a window."""
    size = index._asked(spec)
    if size is None:
        return Findings(unknown="the window is not said; say window")
    tokens = size[0] * size[1]
    _, seen = _heads(meter, spec, (tokens,))
    found = labels(seen.bias.flatten(1)).reshape(tokens, tokens)
    window = index.Window(*size)
    findings = Findings(definitions=["swin"], measured={"numbering": "not seen: the table is not known"})
    if int(found.max()) == 0:
        findings.unknown = "all distances have one bias: the table is empty, or the bias has no effect"
        return findings
    findings.causes = first(index.judge({size: found}, {size: window}, {size: window.rows}, size))
    return findings


def _rows(subject: Any, values: Tensor, heads: int, n_buckets: int) -> Iterator[Tensor]:
    """Yield the row of a table in which each distance's numbers stand, if the subject is a module with such a table."""
    owner = subject if isinstance(subject, nn.Module) else getattr(subject, "__self__", None)
    if not isinstance(owner, nn.Module):
        return
    for table in owner.parameters():
        if table.ndim != 2 or heads not in table.shape or n_buckets not in table.shape:
            continue
        rows = (table if table.shape[1] == heads else table.T).detach().double()
        off = (values.T[:, None] - rows[None]).abs().amax(-1)
        if float(off.min(-1).values.max()) < 1e-6 and len(rows.unique(dim=0)) == len(rows):
            yield off.argmin(-1)
