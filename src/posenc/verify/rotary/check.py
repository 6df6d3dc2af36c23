"""The check of a rotation: what scores see, near and far, then each way in which real code goes wrong beside."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from posenc.verify.guard import SubjectError
from posenc.verify.report import Cause, Findings
from posenc.verify.rotary import expected, extras, halves
from posenc.verify.rotary.angles import probe
from posenc.verify.rotary.bench import CLOSE, Bench
from posenc.verify.rotary.diagnose import explain
from posenc.verify.rotary.expected import Expected
from posenc.verify.rotary.far import FAR, doubling, far
from posenc.verify.rotary.matrix import UNLIKE, Matrices, read
from posenc.verify.rotary.scores import EPS, Verdict, compare, lanes
from posenc.verify.rotary.steady import unsteady
from posenc.verify.rotary.turner import TURNERS, Turner, Undone

NUMBERS = 2**24  # of one tensor of basis vectors


def check(subject: Any, convention: str, spec: Mapping[str, Any]) -> Findings:
    """Hold a rotation against its specification.

    Raises:
        SubjectError: A call fails in a way that is a finding of its own.
        ValueError: The specification says too little, or something impossible.
    """
    asked, turner = expected.read(spec), TURNERS[convention](subject)
    try:
        return of_turner(turner, asked)
    except SubjectError as error:
        if error.cause.code != "subject.writes_input":
            raise
        cause = error.cause
        return Findings([Cause("rope.input.mutated", cause.message, cause.evidence, cause.smallest_case, cause.help)])


def of_turner(turner: Turner, asked: Expected) -> Findings:
    """Hold a rotation that is ready to be called against what is asked for."""
    found = Findings(definitions=[asked.definition])
    near, short = _near(turner, asked)
    if (cause := short or unsteady(turner, asked.head_dim)) is not None:
        found.causes.append(cause)
        return found
    turner, near, moved = _from_zero(turner, near)
    layouts = [asked.layout] if asked.layout else ["half", "interleaved"]
    verdicts = [(compare(asked, layout, near, int(near.pos[-1]) + 1), layout) for layout in layouts]
    verdict, layout = min(verdicts, key=lambda pair: pair[0].off)
    bench = Bench(turner, asked, layout, near, int(near.pos[-1]) + 1, near.pos)
    if verdict.off > 0:
        first = _kept(bench, verdict) or _one_order(bench) or _swapped(bench, explain(bench))
        return _failed(found, _only_long(bench, verdict, first), verdict)
    for ask in (far, extras.lengths, extras.single, extras.rows, extras.state, extras.gradient):
        if (cause := ask(bench)) is not None:
            return _failed(found, cause, verdict)
    if (cause := halves.precision(bench)) is not None:
        if asked.activation_dtype is not None:
            return _failed(found, cause, verdict)
        found.measured["half_precision"] = f"{cause.message} ({cause.code}); no activation_dtype is declared"
    if moved or not verdict.same:
        found.equivalent = _difference(verdict, moved)
    found.measured["layout"] = layout
    return found


def _near(turner: Turner, asked: Expected) -> tuple[Matrices, Cause | None]:
    """Read R where it can be read, and say whether positions that must work do not."""
    end = min(asked.max_positions or FAR, asked.trained or FAR, FAR)
    if turner.reach == "start":
        end = min(end, max(16, NUMBERS // (3 * asked.head_dim**2)))
    first = end
    while True:
        try:
            matrices = read(turner.fresh(), asked.head_dim, doubling(end))
            break
        except SubjectError as error:
            if error.cause.code in UNLIKE and (cause := unsteady(turner, asked.head_dim)) is not None:
                raise SubjectError(cause) from error
            if error.cause.code != "subject.raises" or end <= 8:
                raise
            end, failed = end // 2, error.cause
    if end == first or asked.max_positions is None:
        return matrices, None
    message = f"positions from about {end:,} on fail, and {asked.max_positions:,} are asked for: {failed.message}"
    help_ = "Make the table as long as the longest text, or let it grow."
    return matrices, Cause("rope.table.too_short", message, float(end), {"positions": [first - 1]}, help_)


def _kept(bench: Bench, verdict: Verdict) -> Cause | None:
    """Tell an object that gives wrong turns only after earlier calls, of other offsets."""
    if bench.turner.reach != "run":
        return None
    alone = read(bench.turner, bench.asked.head_dim, bench.pos, fresh=True)
    right = compare(bench.asked, bench.layout, alone, bench.seq_len).off == 0
    if not right and not _first_of_length(bench):
        return None
    says = "alone every call is right" if right else "the first call of a length is right"
    message = (
        f"{says}; after calls with other offsets one is off by up to {verdict.off:.3g}: a table is kept by length, and "
        "the offset of the first call with it"
    )
    help_ = "Let the offset be part of what the table is kept by, or slice one table by it."
    return Cause("rope.offset.ignored_by_cache", message, verdict.off, {"positions": list(verdict.at)}, help_)


def _first_of_length(bench: Bench) -> bool:
    """Whether a call of a new length is right, and the next one of that length repeats it at another offset."""
    n, (first, second) = 29, (40, 7)
    pairs = tuple(lanes(bench.asked, bench.layout))
    freq, gain = bench.asked.inv_freq(bench.seq_len), bench.asked.gain(bench.seq_len)
    turner = bench.turner.fresh()
    one, other = (
        probe(turner, bench.asked.head_dim, pairs, torch.arange(start, start + n))[0].first for start in (first, second)
    )
    right = gain * np.exp(1j * np.outer(np.arange(first, first + n), freq))
    return bool(min(np.abs(one - way).max() for way in (right, right.conj())) < CLOSE > np.abs(one - other).max())


def _swapped(bench: Bench, cause: Cause) -> Cause:
    """Tell lists of LongRoPE that stand for each other: the long one in short texts, and the short one in long ones."""
    asked, trained = bench.asked, bench.asked.trained
    if cause.code not in ("rope.longrope.always_long", "rope.longrope.boundary") or trained is None:
        return cause
    end = trained + 9
    if (asked.max_positions or end) < end or (bench.turner.reach == "start" and end > FAR):
        return cause
    pairs, pos = tuple(lanes(asked, bench.layout)), torch.tensor(sorted({*doubling(end).tolist(), end - 1}))
    try:
        q, _ = probe(bench.turner.fresh(), asked.head_dim, pairs, pos)
    except SubjectError:
        return cause
    short = np.exp(1j * np.outer(pos.double().numpy(), asked.inv_freq(trained)))
    slack = CLOSE + 16 * EPS * end
    if not min(np.abs(q.first / np.abs(q.first) - way).max() for way in (short, short.conj())) < slack:
        return cause
    message = f"{cause.message}; in a text of {end:,} tokens it is the short list: the two stand for each other"
    help_ = "Take the short list up to the trained length, and the long list beyond."
    case = {"lengths": [bench.seq_len, end]}
    return Cause("rope.longrope.lists_swapped", message, cause.evidence, case, help_, (cause.code,))


def _one_order(bench: Bench) -> Cause | None:
    """Tell one side whose lanes come back in another order, and are right but for that."""
    near, asked = bench.matrices, bench.asked
    origins = [side[0] for side in (near.q, near.k)]
    if not all(bool((np.abs(m).max(1) > 1 - 1e-4).all()) for m in origins):
        return None
    ordered = Matrices(near.pos, origins[0].T @ near.q, origins[1].T @ near.k)
    if compare(asked, bench.layout, ordered, bench.seq_len).off > 0:
        return None
    plain = np.abs(origins[0] - np.eye(len(origins[0]))).max() < 0.5
    name, origin = ("keys", origins[1]) if plain else ("queries", origins[0])
    lane = int(np.flatnonzero(np.abs(np.diag(origin)) < 0.5)[0])
    other = int(np.abs(origin[lane]).argmax())
    message = f"lanes of {name} come back in another order: lane {lane} holds what belongs to lane {other}"
    help_ = "Put turned pairs back where they came from, in queries and keys alike."
    case = bench.case(side=name, lane=lane)
    return Cause(
        "rope.layout.output_not_reinterleaved", message, float((np.abs(np.diag(origin)) < 0.5).sum()), case, help_
    )


def _only_long(bench: Bench, verdict: Verdict, cause: Cause) -> Cause:
    """Tell turns that are right in a short text of their own, and wrong at the same positions of a long one."""
    short = doubling(12)
    if bench.asked.trained is not None or max(verdict.at) >= int(short[-1]) or bench.seq_len <= 64:
        return cause
    alone = read(bench.turner.fresh(), bench.asked.head_dim, short)
    if compare(bench.asked, bench.layout, alone, int(short[-1]) + 1).off > 0:
        return cause
    said = f"right in a text of {int(short[-1]) + 1} tokens, wrong at the same positions of {bench.seq_len:,}"
    message = f"{cause.message}; {said}"
    rounded = cause.code.startswith("rope.precision.")
    code = "rope.precision.cache_rebuilt_in_low_precision" if rounded else "rope.table.length_dependent"
    help_ = "Make the longer table from what the shorter one was made of, in float32 or float64."
    return Cause(code, message, cause.evidence, cause.smallest_case, help_, (cause.code,))


def _failed(found: Findings, cause: Cause, verdict: Verdict) -> Findings:
    if verdict.off > 0:
        found.measured["scores_off"] = verdict.off
        found.measured["positions"] = list(verdict.at)
    found.causes.append(cause)
    return found


def _from_zero(turner: Turner, near: Matrices) -> tuple[Turner, Matrices, str]:
    """Take back what happens at position 0 to queries and keys alike; return what that is in words, "" if nothing."""
    left, _, right = np.linalg.svd(near.q[0])
    origin = left @ right  # the orthogonal matrix that is nearest
    n = len(origin)
    alike = np.abs(near.q[0] - near.k[0]).max() < 1e-4
    if not alike or np.abs(origin - np.eye(n)).max() < 1e-4 or np.abs(near.q[0] @ near.q[0].T - np.eye(n)).max() > 1:
        return turner, near, ""
    swapped = bool((np.abs(origin).max(1) > 1 - 1e-4).all())
    said = (
        "lanes are put in another order"
        if swapped
        else "position 0 is turned as well: a constant added to all positions"
    )
    undone = Matrices(near.pos, origin.T @ near.q, origin.T @ near.k)
    return Undone(turner, torch.from_numpy(origin)), undone, f"{said}, in queries and keys alike, which no score sees"


def _difference(verdict: Verdict, moved: str) -> str:
    """Say what is different and what scores do not see."""
    if moved:
        return moved
    if verdict.clockwise:
        return "both sides turn clockwise: the same but for the sign of the second lane of each pair, in q and k alike"
    return (
        "turned lanes differ from those asked for in a way that is the same for queries and keys, which no score sees"
    )
