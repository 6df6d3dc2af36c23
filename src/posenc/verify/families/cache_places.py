"""Where a model with a cache puts its tokens: each fault is a rule from the sizes of calls to positions."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from posenc.verify.engine import Fault
from posenc.verify.engine.records import Array

Start = tuple[tuple[str, int], ...]  # a sum of counts, each so many times


def start(**counted: int) -> Start:
    """Return where a call begins, as a sum of counts: of what was seen less one, for seen=1 and one=-1."""
    return tuple(counted.items())


SEEN, ZERO = start(seen=1), start()
LATE, LATE_BY_LAYER = start(seen=1, new=1), start(seen=1, layer=1)
DOUBLE = (
    start(seen=2),
    start(seen=1, prompt=1),
    start(summed=1),
    start(doubled=1),
    start(seen=1, prompt=1, before=-1),
    start(seen=1, before=1),
    start(seen=2, before=-1),
    start(seen=2, new=1),
    start(seen=2, prompt=-1),
)


def counts(sizes: tuple[int, ...], kept: int, layer: int) -> dict[str, int]:
    """Return what a model may count in a call.

    Args:
        sizes: Tokens of each call up to and with this one.
        kept: Cached keys that are still there.
        layer: Its number, from 0.
    """
    *before, new = sizes
    doubled = 0
    for n in before:
        doubled = 2 * doubled + n
    return {
        "one": 1,
        "seen": sum(before),
        "new": new,
        "before": before[-1] if before else 0,
        "prompt": sizes[0],
        "call": len(before),
        "layer": layer * new,
        "kept": kept,
        "summed": sum(accumulate(before)),
        "doubled": doubled,
    }


@dataclass(frozen=True)
class Place:
    """Positions of the queries and the keys of a call.

    Args:
        q: Where queries begin.
        k: Where new keys begin; None where they stand at their queries.
        most: The largest start; None without one.
        modulo: Where starts begin at 0 again; None without it.
        flat: All tokens of the call stand at the start.
        since: The first call that is so; those before are right.
        above: Only layers above the first are so.
        again: What cached keys are rotated by once more: nothing, their "index", the "offset" of the call, or their
            index "on reading", where the cache keeps keys rotated once.
        times: How often new keys are rotated.
        even: Scores do not depend on positions at all.
        within: Keys of earlier calls are not compared.
    """

    q: Start
    k: Start | None = None
    most: int | None = None
    modulo: int | None = None
    flat: bool = False
    since: int = 1
    above: bool = False
    again: str = ""
    times: int = 1
    even: bool = False
    within: bool = False

    def put(self, sizes: tuple[int, ...], past: Array, layer: int) -> tuple[Array, Array, Array]:
        """Return positions of the queries, of all keys, and of the keys that the cache holds from now on."""
        if self is not RIGHT and (len(sizes) <= self.since or (self.above and layer == 0)):
            return RIGHT.put(sizes, past, layer)
        known = counts(sizes, len(past), layer)
        each = np.zeros(sizes[-1]) if self.flat else np.arange(sizes[-1], dtype=np.float64)
        q = self._start(self.q, known) + each
        new = self.times * (q if self.k is None else self._start(self.k, known) + each)
        index = known["seen"] - len(past) + np.arange(len(past))
        more = {"index": index, "offset": 0 * index + known["seen"], "on reading": index}.get(self.again, 0 * index)
        keys = np.concatenate((past + more, new))
        return q, keys, np.concatenate((past, new)) if self.again == "on reading" else keys

    def _start(self, start: Start, known: dict[str, int]) -> int:
        at = sum(times * known[name] for name, times in start)
        at = at if self.most is None else min(at, self.most)
        return at if self.modulo is None else at % self.modulo


RIGHT = Place(SEEN)
EVEN = Place(SEEN, even=True)
WITHIN = Place(SEEN, within=True)


def places(room: int | None) -> Iterator[tuple[str, Place]]:
    """Yield the codes of faults and where each puts tokens, those first that are seldom mistaken for others.

    Args:
        room: How many keys a window leaves in the cache; None without a window.
    """
    yield "kv_cache.offset_ignored", Place(ZERO)
    if room:
        yield "kv_cache.eviction_offset", Place(start(kept=1))
        for end in dict.fromkeys((room, max(room - 1, 1), *range(2, 33))):
            yield "kv_cache.eviction_offset", Place(SEEN, most=end)
            yield "kv_cache.eviction_offset", Place(SEEN, modulo=end)
    for by in (1, -1, 2, -2):
        yield "kv_cache.off_by_one", Place(start(seen=1, one=by))
    for since in (1, 0):
        for late in (LATE, LATE_BY_LAYER):
            yield "kv_cache.count_too_early", Place(late, since=since)
        yield "kv_cache.count_too_early", Place(LATE, since=since, above=True)
    for by in (1, -1):
        yield "kv_cache.count_too_early", Place(start(seen=1, one=by), above=True)
    yield "kv_cache.counts_calls", Place(start(call=1))
    for past in range(1, 9):
        yield "kv_cache.past_constant", Place(start(one=past))
    yield "kv_cache.counts_calls", Place(start(prompt=1, call=1, one=-1))
    for at in DOUBLE:
        yield "kv_cache.offset_double_counted", Place(at)
        yield "kv_cache.offset_double_counted", Place(at, since=2)
    for times in range(2, 9):
        yield "kv_cache.offset_double_counted", Place(start(seen=times, layer=1), since=0)
        yield "kv_cache.offset_double_counted", Place(start(seen=times))
    for since in (1, 0):
        yield "window.positions_constant", Place(SEEN, flat=True, since=since)
        yield "window.positions_constant", Place(start(seen=1, new=1, one=-1), flat=True, since=since)
    yield "window.positions_constant", Place(ZERO, flat=True)
    yield "kv_cache.query_offset_missing", Place(ZERO, SEEN)
    yield "kv_cache.offset_ignored", Place(SEEN, ZERO)
    for by in (1, -1):
        yield "query.off_by_one", Place(start(seen=1, one=by), SEEN)
        yield "query.off_by_one", Place(SEEN, start(seen=1, one=by))
    yield "kv_cache.count_too_early", Place(LATE, SEEN)
    yield "kv_cache.count_too_early", Place(SEEN, LATE)
    for times in (1, 2):
        for again in ("index", "offset"):
            yield "kv_cache.rotated_then_rotated_again", Place(SEEN, again=again, times=times)
    yield "kv_cache.rotated_then_rotated_again", Place(SEEN, again="on reading")


def faults(room: int | None, first: int | None, *, biased: bool, several: bool) -> Iterator[Fault]:
    """Yield the faults of all calls, then those of parts of one token and of several.

    Args:
        room: As of `places`.
        first: The position at which steps begin to be wrong; None where they are wrong from the start.
        biased: The encoding is a bias, which may be missing.
        several: Parts of several tokens were seen as well.
    """
    known = list(places(room))
    if first is not None:
        capped, wrapped = Place(SEEN, most=first - 1), Place(SEEN, modulo=first)
        beyond = [("kv_cache.position_capped", capped), ("kv_cache.position_wraps", wrapped)]
        known = beyond + (known if first < 100 else [])  # long tables take time
    if biased:
        yield Fault("decode.bias_dropped", {"single": EVEN, "several": EVEN})
        yield Fault("decode.bias_dropped", {"single": EVEN})
    for code, place in known:
        yield Fault(code, {"single": place, "several": place})
    for code, place in known if several else ():
        if code != "window.positions_constant":
            yield Fault("decode.single_token_path", {"single": place})
    for code, place in known if several else ():
        constant = code == "window.positions_constant"
        yield Fault(code if constant else "decode.chunk_positions", {"several": place})
