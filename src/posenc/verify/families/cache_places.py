"""Where a model with a cache puts its tokens: each fault is a rule from the sizes of calls to positions."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from posenc.verify.engine import Fault
from posenc.verify.engine.records import Array

BIASES = ("alibi", "t5")


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
        *before, new = sizes
        seen, last = sum(before), before[-1] if before else 0
        known = {"one": 1, "seen": seen, "new": new, "before": last, "prompt": sizes[0], "call": len(before)}
        known |= {"layer": layer * new, "kept": len(past), "summed": sum(accumulate(before))}
        each = np.zeros(new) if self.flat else np.arange(new, dtype=np.float64)
        q = self._start(self.q, known) + each
        k = q if self.k is None else self._start(self.k, known) + each
        index = seen - len(past) + np.arange(len(past))
        keys = np.concatenate((past + {"": 0, "offset": seen}.get(self.again, index), k))
        return q, keys, np.concatenate((past, k)) if self.again == "on reading" else keys

    def _start(self, words: str, known: dict[str, int]) -> int:
        at = sum(-known[word[1:]] if word[0] == "-" else known[word] for word in words.split())
        at = at if self.most is None else min(at, self.most)
        return at if self.modulo is None else at % self.modulo


RIGHT = Place("seen")


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
    yield "counts_calls", Place("call")
    for past in range(1, 9):
        yield "past_constant", Place("one " * past)
    for at in ("seen seen", "seen prompt", "summed", "seen before", "seen prompt -before", "seen seen new"):
        yield "offset_double_counted", Place(at)
    yield "offset_double_counted", Place("seen " * layers + "layer", since=0)


def faults(encoding: str, room: int | None, layers: int) -> Iterator[Fault]:
    """Yield wrong positions.

    Args:
        encoding: The first word of the codes.
        room: How many keys a window leaves in the cache; None without a window.
        layers: How many layers there are.
    """
    known, rotates = list(_places(room, layers)), encoding in ("rope", "xpos", "model")
    apart = "query_offset_missing" if rotates else "query_from_zero" if encoding in BIASES else "offset_ignored"
    known += [(apart, Place("", "seen")), ("offset_ignored", Place("seen", ""))]
    for by in ("one", "-one"):
        known += [("off_by_one", Place(f"seen {by}", "seen")), ("off_by_one", Place("seen", f"seen {by}"))]
    known += [("count_too_early", Place("seen new", "seen")), ("count_too_early", Place("seen", "seen new"))]
    if rotates:
        known += [("rotated_then_rotated_again", Place("seen", again=a)) for a in ("index", "offset", "on reading")]
    for name, place in known:
        yield Fault(f"{encoding}.kv_cache.{name}", {"place": place})
    for at in ("seen", "seen new -one", "") if rotates else ():
        how = {"how": "all tokens of a part get one position"}
        yield Fault(f"{encoding}.window.positions_constant", {"place": Place(at, flat=True)}, how)
    if encoding in (*BIASES, "model"):
        yield Fault(f"{encoding}.decode.bias_dropped", {"place": Place("seen", even=True)})
