"""Positions far out, where only a few vectors can be fed: they are right, or refused."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from posenc.verify.guard import SubjectError
from posenc.verify.report import Cause
from posenc.verify.rotary.angles import probe
from posenc.verify.rotary.bench import Bench
from posenc.verify.rotary.diagnose import of_angles
from posenc.verify.rotary.scores import EPS, lanes

FAR = 4096  # positions that must work where nothing is said
FARTHEST = 2**17  # of positions that are declared
UNSAID = 2**16 + 2  # where none are: beyond what 16 bits hold
STEPS = (3, 5, 7, 11, 100, 101, 257, 258, 1000, 1001)
ODD = (511, 1023, 2047, 4099, 9001, 17003, 32771)  # far ones that are no power of two, which all types hold
_HELP = "Make the table as long as the longest text, or let it grow."


def doubling(end: int, *more: int) -> Tensor:
    """Return 0, 1, 2, 4, .. and some odd positions, all below an end."""
    steps = {0, *(2**i for i in range(40) if 2**i < end), *(p for p in (*STEPS, *more) if p < end)}
    return torch.tensor(sorted(steps), dtype=torch.int64)


def far(bench: Bench) -> Cause | None:
    """Hold angles far out against those asked for. An error may be a refusal; NaN, infinity and wrong turns are not."""
    asked = bench.asked
    end = min(asked.max_positions or UNSAID, asked.trained or FARTHEST, FARTHEST)
    if bench.turner.reach == "start":
        end = min(end, FAR)
    while True:
        pos = doubling(end, *ODD, end - 2, end - 1)
        if int(pos[-1]) <= int(bench.matrices.pos[-1]):
            return None
        try:
            return at_length(bench, pos, int(pos[-1]) + 1)
        except SubjectError as error:
            if error.cause.code == "subject.not_finite":
                return _not_finite(bench, pos, error.cause)
            if error.cause.code != "subject.raises":
                raise
            if asked.max_positions is not None:
                last = int(pos[-1])
                message = f"position {last:,} fails, {asked.max_positions:,} are asked for: {error.cause.message}"
                return Cause("rope.table.too_short", message, float(last), {"positions": [last]}, _HELP)
            end //= 2  # nobody has said that it must go so far, and it says so itself


def _not_finite(bench: Bench, pos: Tensor, cause: Cause) -> Cause:
    """Tell from which position on nothing finite comes back, if nothing is wrong before."""
    good, bad = 1, len(pos)  # how many of the positions can be asked, and cannot
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            right_at(bench, pos[:middle], int(pos[-1]) + 1)
            good = middle
        except SubjectError:
            bad = middle
    if good > 1 and (before := at_length(bench, pos[:good], int(pos[-1]) + 1)) is not None:
        return before
    first = int(pos[bad - 1])
    message = f"position {first:,} gives NaN or infinity, {int(pos[good - 1]):,} does not: {cause.message}"
    help_ = "Turn far tokens rightly, or raise an error that says how far the code goes."
    return replace(cause, message=message, smallest_case={"positions": [first]}, help=help_)


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
