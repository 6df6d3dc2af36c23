"""The check of a rotation: what scores see, near and far, then each way in which real code goes wrong beside."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posenc.verify.guard import SubjectError
from posenc.verify.report import Cause, Findings
from posenc.verify.rotary import expected, extras, halves
from posenc.verify.rotary.angles import probe
from posenc.verify.rotary.bench import Bench
from posenc.verify.rotary.diagnose import explain, of_angles
from posenc.verify.rotary.expected import Expected
from posenc.verify.rotary.matrix import Matrices, read
from posenc.verify.rotary.scores import EPS, Verdict, compare, lanes
from posenc.verify.rotary.turner import TURNERS, Turner, Undone

FAR = 4096  # positions that must work where nothing is said
FARTHEST = 2**15  # positions that must be right, or refused
NUMBERS = 2**24  # of one tensor of basis vectors
STEPS = (3, 5, 7, 11, 100, 101, 257, 258, 1000, 1001)


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
    if short is not None:
        found.causes.append(short)
        return found
    turner, near, moved = _from_zero(turner, near)
    layouts = [asked.layout] if asked.layout else ["half", "interleaved"]
    verdicts = [(compare(asked, layout, near, int(near.pos[-1]) + 1), layout) for layout in layouts]
    verdict, layout = min(verdicts, key=lambda pair: pair[0].off)
    bench = Bench(turner, asked, layout, near, int(near.pos[-1]) + 1, near.pos)
    if verdict.off > 0:
        first = _kept(bench, verdict) or _one_order(bench) or explain(bench)
        return _failed(found, _only_long(bench, verdict, first), verdict)
    for ask in (_far, extras.lengths, extras.single, extras.rows, extras.state, extras.gradient):
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


def doubling(end: int, *more: int) -> Tensor:
    """Return 0, 1, 2, 4, .. and some odd positions, all below an end."""
    steps = {0, *(2**i for i in range(40) if 2**i < end), *(p for p in (*STEPS, *more) if p < end)}
    return torch.tensor(sorted(steps), dtype=torch.int64)


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
            if error.cause.code != "subject.raises" or end <= 8:
                raise
            end, failed = end // 2, error.cause
    if end == first or asked.max_positions is None:
        return matrices, None
    message = f"positions from about {end:,} on fail, and {asked.max_positions:,} are asked for: {failed.message}"
    help_ = "Make the table as long as the longest text, or let it grow."
    return matrices, Cause("rope.table.too_short", message, float(end), {"positions": [first - 1]}, help_)


def _far(bench: Bench) -> Cause | None:
    """Hold angles far out against those asked for, where only a few vectors can be fed."""
    asked = bench.asked
    end = min(asked.max_positions or FARTHEST, asked.trained or FARTHEST, FARTHEST)
    if bench.turner.reach == "start":
        end = min(end, FAR)
    while True:
        pos = doubling(end, 511, 512, 1023, 2047, end - 1)
        if int(pos[-1]) <= int(bench.matrices.pos[-1]):
            return None
        try:
            return at_length(bench, pos, int(pos[-1]) + 1)
        except SubjectError as error:
            if error.cause.code != "subject.raises":
                return None
            if asked.max_positions is not None:
                message = (
                    f"position {int(pos[-1]):,} fails, {asked.max_positions:,} are asked for: {error.cause.message}"
                )
                help_ = "Make the table as long as the longest text, or let it grow."
                return Cause("rope.table.too_short", message, float(pos[-1]), {"positions": [int(pos[-1])]}, help_)
            end //= 4  # nobody has said that it must go so far, and it says so itself


def at_length(bench: Bench, pos: Tensor, seq_len: int) -> Cause | None:
    """Return why angles at some positions of a text are wrong; None if they are right."""
    if right_at(bench, pos, seq_len):
        return None
    pairs = tuple(lanes(bench.asked, bench.layout))
    return of_angles(Bench(bench.turner, bench.asked, bench.layout, bench.matrices, seq_len, pos), pairs)


def right_at(bench: Bench, pos: Tensor, seq_len: int) -> bool:
    """Whether angles at some positions of a text are those asked for, as scores with the first token see them."""
    asked, pairs = bench.asked, tuple(lanes(bench.asked, bench.layout))
    freq, where = asked.inv_freq(seq_len), pos.double().numpy()
    q, k = probe(bench.turner.fresh(), asked.head_dim, pairs, pos)
    right = asked.gain(seq_len) ** 2 * np.exp(1j * np.outer(where - where[0], freq))
    slack = 1e-4 + 16 * EPS * np.outer(where, freq)
    with_first = (q.first * k.first[0].conj(), k.first * q.first[0].conj())
    return all(bool((np.minimum(np.abs(z - right), np.abs(z.conj() - right)) <= slack).all()) for z in with_first)


def _kept(bench: Bench, verdict: Verdict) -> Cause | None:
    """Tell an object that gives wrong turns only after earlier calls, of other offsets."""
    if bench.turner.reach != "run":
        return None
    alone = read(bench.turner, bench.asked.head_dim, bench.pos, fresh=True)
    if compare(bench.asked, bench.layout, alone, bench.seq_len).off > 0:
        return None
    message = (
        f"alone every call is right; after calls with other offsets one is off by up to {verdict.off:.3g}: a table is "
        "kept by length, and the offset of the first call with it"
    )
    help_ = "Let the offset be part of what the table is kept by, or slice one table by it."
    return Cause("rope.offset.ignored_by_cache", message, verdict.off, {"positions": list(verdict.at)}, help_)


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
