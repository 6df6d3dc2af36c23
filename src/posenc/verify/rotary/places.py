"""Where tokens are turned as if they stood: known ways to miscount them, and the places themselves where none fits."""

from collections.abc import Iterator

import numpy as np
import torch

from posenc.verify.report import Cause
from posenc.verify.rotary.angles import Turns
from posenc.verify.rotary.bench import CLOSE, Bench
from posenc.verify.rotary.matrix import Array, runs
from posenc.verify.rotary.scores import EPS

Place = tuple[str, str, Array]  # a code, words, and where tokens stand by such a fault
_HELP = "Turn each token by the position that it is given, in float32 or as an integer."


def positions(bench: Bench, q: Turns, k: Turns) -> Cause | None:
    """Tell right frequencies at wrong positions, by a known way to miscount them."""
    pos = bench.pos.double().numpy()
    for code, says, other in _ways(pos, bench.turner.reach):
        if np.isfinite(other).all() and _stand(bench, q, other):  # half precision does not hold all
            return _cause(bench, code, says, pos, other)
    return _ended(bench, q)


def _ended(bench: Bench, q: Turns) -> Cause | None:
    """Tell positions that are right up to some length, whatever it is, and begin again or stay behind it."""
    pos, freq = bench.pos.double().numpy(), bench.asked.inv_freq(bench.seq_len)
    z = q.first / np.abs(q.first)
    wrong = np.flatnonzero((np.abs(z - np.exp(1j * np.outer(pos, freq))) > _slack(pos, freq)).any(1))
    if not len(wrong) or wrong[0] == 0:
        return None
    first = wrong[0]
    ends = np.arange(pos[first - 1] + 1, pos[first] + 1)
    for code, says, at_first, places in (
        ("rope.table.wraps", "positions begin again at {0:,.0f}", pos[first] % ends, lambda end: pos % end),
        ("rope.table.too_short", "positions from {0:,.0f} on are those of {1:,.0f}", ends - 1,
         lambda end: np.minimum(pos, end - 1)),
    ):  # fmt: skip
        near = np.abs(z[first] - np.exp(1j * np.outer(at_first, freq))).max(1) < _slack(pos, freq)
        for end in ends[near]:
            if _stand(bench, q, places(end)):
                return _cause(bench, code, says.format(end, end - 1), pos, places(end))
    return None


def _slack(places: Array, freq: Array) -> float:
    """What turned lanes may be off at these places."""
    return CLOSE + 16 * EPS * float(np.abs(places).max() * freq.max())


def elsewhere(bench: Bench, q: Turns, k: Turns) -> Cause | None:
    """Tell right frequencies at places that no known way gives: the places are read off the slowest pair.

    It does not say how often it went round: places nearest to those given are tried, then those nearest to 0.
    """
    freq, pos = bench.asked.inv_freq(bench.seq_len), bench.pos.double().numpy()
    turning = np.flatnonzero(freq > 0)
    if not len(turning):
        return None
    slow = int(turning[freq[turning].argmin()])
    z, f = q.first[:, slow], freq[slow]
    for read in (pos + np.angle(z * np.exp(-1j * pos * f)) / f, np.angle(z) / f):
        for places in (np.round(read), np.round(2 * read) / 2):
            if (places != pos).any() and _stand(bench, q, places):
                says = "tokens stand elsewhere than they are given"
                return _cause(bench, "rope.positions.other", says, pos, places)
    return None


def _stand(bench: Bench, q: Turns, places: Array) -> bool:
    """Whether queries are turned as at these places."""
    freq, z = bench.asked.inv_freq(bench.seq_len), q.first / np.abs(q.first)
    off = np.abs(z - np.exp(1j * np.outer(places, freq))).max()
    return bool(off < _slack(places, freq))


def _cause(bench: Bench, code: str, says: str, pos: Array, places: Array) -> Cause:
    wrong = np.flatnonzero(places != pos)
    if not len(wrong):
        return Cause(code, says, 0.0, bench.case(position=0), _HELP)
    at = int(pos[wrong[0]])
    message = f"{says}: the token at position {at} is turned as if it stood at {places[wrong[0]]:g}"
    return Cause(code, message, float(at), bench.case(position=at), _HELP)


def _ways(pos: Array, reach: str) -> Iterator[Place]:
    if reach == "run":
        yield from _of_offsets(pos)
    n = np.arange(len(pos), dtype=float)
    yield "positions.given_ignored", "the positions that are given are not used, tokens are counted instead", n
    yield "positions.given_ignored", "tokens are counted from 1, whatever positions are given", n + 1
    yield "rope.window.positions_constant", "all tokens get the position of the first", np.full_like(pos, pos[0])
    yield "rope.window.positions_constant", "all tokens get the position of the last", np.full_like(pos, pos[-1])
    yield "rope.positions.reversed", "positions run backwards", pos.max() - pos
    for dtype, name in ((torch.bfloat16, "bf16"), (torch.float16, "fp16")):
        rounded = torch.from_numpy(pos).to(dtype).double().numpy()
        yield f"rope.precision.positions_{name}", f"positions are rounded to {str(dtype)[6:]}", rounded
    for bits in (8, 16):
        half = 2.0 ** (bits - 1)
        says = f"positions are kept in int{bits}, which goes on at {-half:,.0f} behind {half - 1:,.0f}"
        yield "rope.table.wraps", says, (pos + half) % (2 * half) - half


def _of_offsets(pos: Array) -> Iterator[Place]:
    """Yield what calls with offsets make of them: token i of n behind an offset should stand at offset + i."""
    calls = runs([int(p) for p in pos])
    offset = np.array([first for first, _, wanted in calls for _ in wanted], dtype=float)
    n = np.array([end - first for first, end, wanted in calls for _ in wanted], dtype=float)
    yield "rope.offset.ignored", "the offset is not used", pos - offset
    yield "rope.window.positions_constant", "all tokens of a call get the position of its first", offset
    after = np.where(offset > 0, offset, pos)
    yield "rope.window.positions_constant", "all tokens behind an offset get the position of the first", after
    yield "rope.offset.miscounted", "the offset counts twice", pos + offset
    yield "rope.offset.miscounted", "the offset is taken off and not added", pos - 2 * offset
    says = "the offset is multiplied by the number of tokens of the call"
    yield "rope.offset.miscounted", says, pos + offset * (n - 1)
    says = "the number of tokens of the call is added to the offset"
    yield "rope.offset.miscounted", says, pos + n
    yield "rope.offset.miscounted", f"{says}, where there is one", np.where(offset > 0, pos + n, pos)
    for dtype, name in ((torch.bfloat16, "bf16"), (torch.float16, "fp16")):
        rounded = torch.from_numpy(offset).to(dtype).double().numpy()
        says = f"the offset is rounded to {str(dtype)[6:]}"
        yield f"rope.precision.positions_{name}", says, pos - offset + rounded
    for more in (1, -1):
        says = f"tokens behind an offset count one too {'many' if more > 0 else 'few'}"
        yield "rope.kv_cache.off_by_one", says, np.where(offset > 0, pos + more, pos)
