"""Where a model with a cache puts its tokens: each fault is a rule from the sizes of calls to positions."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from posenc.verify.engine import Fault
from posenc.verify.engine.records import Array


def counts(sizes: tuple[int, ...], kept: int, layer: int) -> dict[str, int]:
    """Return what a model may count in a call.

    Args:
        sizes: Tokens of each call up to and with this one.
        kept: Cached keys that are still there.
        layer: Its number, from 0.
    """
    *before, new = sizes
    seen, last = sum(before), before[-1] if before else 0
    known = {"one": 1, "seen": seen, "new": new, "before": last, "prompt": sizes[0], "call": len(before)}
    return {**known, "layer": layer * new, "kept": kept, "summed": sum(accumulate(before))}


@dataclass(frozen=True)
class Place:
    """Positions of the queries and the keys of a call.

    Args:
        q: Where queries begin, as a sum of counts in words, such as "seen new" or "seen -one".
        k: Where new keys begin; None where they stand at their queries.
        most: The largest start; None without one.
        modulo: Where starts begin at 0 again; None without it.
        flat: All tokens of the call stand at the start.
        since: The first call that is so; those before are right.
        above: Only layers above the first are so.
        again: What cached keys are rotated by once more: nothing, their "index", the "offset" of the call, or their
            index "on reading", where the cache keeps keys rotated once.
        even: Scores do not depend on positions at all.
    """

    q: str
    k: str | None = None
    most: int | None = None
    modulo: int | None = None
    flat: bool = False
    since: int = 1
    above: bool = False
    again: str = ""
    even: bool = False

    def put(self, sizes: tuple[int, ...], past: Array, layer: int) -> tuple[Array, Array, Array]:
        """Return positions of the queries, of all keys, and of the keys that the cache holds from now on."""
        if self is not RIGHT and (len(sizes) <= self.since or (self.above and layer == 0)):
            return RIGHT.put(sizes, past, layer)
        known = counts(sizes, len(past), layer)
        each = np.zeros(sizes[-1]) if self.flat else np.arange(sizes[-1], dtype=np.float64)
        q = self._start(self.q, known) + each
        new = q if self.k is None else self._start(self.k, known) + each
        index = known["seen"] - len(past) + np.arange(len(past))
        more = {"": 0, "offset": known["seen"]}.get(self.again, index)
        keys = np.concatenate((past + more, new))
        return q, keys, np.concatenate((past, new)) if self.again == "on reading" else keys

    def _start(self, words: str, known: dict[str, int]) -> int:
        at = sum(-known[word[1:]] if word[0] == "-" else known[word] for word in words.split())
        at = at if self.most is None else min(at, self.most)
        return at if self.modulo is None else at % self.modulo


RIGHT = Place("seen")
DOUBLE = ("seen seen", "seen prompt", "summed", "seen prompt -before", "seen before", "seen seen new")


def _places(room: int | None, layers: int) -> Iterator[tuple[str, Place]]:
    """Yield the names of faults and where each puts tokens, those first that are seldom mistaken for others."""
    yield "offset_ignored", Place("")
    if room:
        yield "eviction_offset", Place("kept")
        for end in dict.fromkeys((room, max(room - 1, 1), *range(2, 33))):
            yield "eviction_offset", Place("seen", most=end)
            yield "eviction_offset", Place("seen", modulo=end)
    for by in ("one", "-one", "one one", "-one -one"):
        yield "off_by_one", Place(f"seen {by}")
    for since in (1, 0):
        yield "count_too_early", Place("seen new", since=since)
        yield "count_too_early", Place("seen layer", since=since)
        yield "count_too_early", Place("seen new", since=since, above=True)
    for by in ("one", "-one"):
        yield "count_too_early", Place(f"seen {by}", above=True)
    yield "counts_calls", Place("call")
    for past in range(1, 9):
        yield "past_constant", Place("one " * past)
    yield "counts_calls", Place("prompt call -one")
    for at in DOUBLE:
        yield "offset_double_counted", Place(at)
        yield "offset_double_counted", Place(at, since=2)
    yield "offset_double_counted", Place("seen " * layers + "layer", since=0)


def faults(family: str, room: int | None, first: int | None, layers: int) -> Iterator[Fault]:
    """Yield wrong positions.

    Args:
        family: The family of the encoding.
        room: How many keys a window leaves in the cache; None without a window.
        first: The position at which steps begin to be wrong; None where they are wrong from the start.
        layers: How many layers there are.
    """
    known = list(_places(room, layers))
    if first is not None:
        beyond = [("position_capped", Place("seen", most=first - 1)), ("position_wraps", Place("seen", modulo=first))]
        known = beyond + (known if first < 100 else [])  # long tables take time
    is_bias = family in ("alibi", "t5", "relative_bias")
    rotates = family in ("rope", "xpos")
    apart = "query_from_zero" if is_bias else "query_offset_missing" if rotates else "offset_ignored"
    known += [(apart, Place("", "seen")), ("offset_ignored", Place("seen", ""))]
    for by in ("one", "-one"):
        known += [("off_by_one", Place(f"seen {by}", "seen")), ("off_by_one", Place("seen", f"seen {by}"))]
    known += [("count_too_early", Place("seen new", "seen")), ("count_too_early", Place("seen", "seen new"))]
    if rotates:
        known += [("rotated_then_rotated_again", Place("seen", again=a)) for a in ("index", "offset", "on reading")]
    for name, place in known:
        yield Fault(f"{family}.kv_cache.{name}", {"place": place})
    if family == "rope":
        for at in ("seen", "seen new -one", ""):
            how = {"how": "all tokens of a part get one position"}
            yield Fault("rope.window.positions_constant", {"place": Place(at, flat=True)}, how)
    if is_bias:
        yield Fault(f"{family}.decode.bias_dropped", {"place": Place("seen", even=True)})
