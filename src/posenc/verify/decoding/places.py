"""Where faults put queries and keys: each is a function from a call to positions."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor


@dataclass(frozen=True)
class Step:
    """One call in one layer.

    Args:
        call: Its number, from 0.
        sizes: Tokens of each call up to and with this one.
        kept: Cached keys that are still there.
    """

    call: int
    sizes: tuple[int, ...]
    kept: int
    layer: int
    layers: int

    @property
    def new(self) -> int:
        """Tokens of this call."""
        return self.sizes[-1]

    @property
    def seen(self) -> int:
        """Tokens of all calls before."""
        return sum(self.sizes[:-1])

    def before(self) -> tuple[int, ...]:
        """Tokens of each call before."""
        return self.sizes[:-1]


Start = Callable[[Step], int]
Place = Callable[[Step, Tensor], tuple[Tensor, Tensor]]  # call, cached keys' positions -> of queries, of all keys


@dataclass(frozen=True)
class Rule:
    """A fault and where it puts what: in all calls, or right in the first; for parts of one or of several alone."""

    fault: str
    place: Place
    first: bool = False
    only: str = ""

    def __call__(self, s: Step, past: Tensor) -> tuple[Tensor, Tensor]:
        """Return positions of the queries and of all keys."""
        spared = (s.call == 0 and not self.first) or (self.only and (s.new == 1) != (self.only == "single"))
        return right(s, past) if spared else self.place(s, past)


def right(s: Step, past: Tensor) -> tuple[Tensor, Tensor]:
    """Begin where the cache ends."""
    return _from(lambda s: s.seen)(s, past)


def _from(start: Start) -> Place:
    def place(s: Step, past: Tensor) -> tuple[Tensor, Tensor]:
        p = start(s) + torch.arange(s.new)
        return p, torch.cat((past, p))

    return place


def _all_at(start: Start) -> Place:
    def place(s: Step, past: Tensor) -> tuple[Tensor, Tensor]:
        p = torch.full((s.new,), start(s))
        return p, torch.cat((past, p))

    return place


def _apart(of_q: Start, of_k: Start) -> Place:
    def place(s: Step, past: Tensor) -> tuple[Tensor, Tensor]:
        n = torch.arange(s.new)
        return of_q(s) + n, torch.cat((past, of_k(s) + n))

    return place


def _again(new: int, by: int) -> Place:
    """Turn cached keys again, by their index (by = 0) or by the new offset as well; new ones `new` times."""

    def place(s: Step, past: Tensor) -> tuple[Tensor, Tensor]:
        p, at = s.seen + torch.arange(s.new), s.seen - len(past)
        more = at + torch.arange(len(past)) if by == 0 else torch.full_like(past, by * s.seen)
        return p, torch.cat((past + more, new * p))

    return place


def _read_again(s: Step, past: Tensor) -> tuple[Tensor, Tensor]:
    """Turn a second time what is in the cache, on reading alone."""
    p = s.seen + torch.arange(s.new)
    return p, torch.cat((2 * (s.seen - len(past) + torch.arange(len(past))), p))


_read_again.reads = True  # type: ignore[attr-defined]  # what is stored stays turned once


def _summed(s: Step) -> int:
    return sum(accumulate(s.before()))


def _doubling(s: Step) -> int:
    at = 0
    for n in s.before():
        at = 2 * at + n
    return at


def _later(start: Start) -> Start:
    return lambda s: start(s) if s.call > 1 else s.seen


_DOUBLE: tuple[Start, ...] = (
    lambda s: 2 * s.seen,
    lambda s: s.seen + s.sizes[0],
    _summed,
    _doubling,
    lambda s: s.sizes[0] + sum(s.before()[:-1]),  # grows by the call before
    lambda s: s.seen + s.before()[-1] if s.call else 0,
    lambda s: s.seen + sum(s.before()[:-1]),
    lambda s: 2 * s.seen + s.new,
    lambda s: 2 * s.seen - s.sizes[0],
)


def _beside(by: int) -> Start:
    return lambda s: s.seen + by


def _always(past: int) -> Start:
    return lambda _: past


def _at_most(room: int) -> Start:
    return lambda s: min(s.seen, room)


def _round(room: int) -> Start:
    return lambda s: s.seen % room


def _times(times: int, each: int) -> Start:
    """Count every call `times`, and once more in each layer below where `each` is 1."""
    return lambda s: times * s.seen + each * s.layer * s.new


def beyond(first: int) -> Iterator[Rule]:
    """Name the faults of single tokens that begin at a position."""
    yield Rule("capped", _from(_at_most(first - 1)))
    yield Rule("wraps", _from(_round(first)))


def rules(window: int | None) -> Iterator[Rule]:
    """Name the faults, those told apart by least first."""
    yield Rule("offset", _from(lambda _: 0))
    if window:
        yield Rule("eviction", _from(lambda s: s.kept))
        for room in dict.fromkeys((window, window - 1, *range(2, 33))):
            yield Rule("eviction", _from(_at_most(room)))
            yield Rule("eviction", _from(_round(room)))
    for off in (1, -1, 2, -2):
        yield Rule("off_by", _from(_beside(off)))
    for first in (False, True):
        yield Rule("count_early", _from(lambda s: s.seen + s.new), first)
        yield Rule("count_early", _from(lambda s: s.seen + s.layer * s.new), first)
    yield Rule("calls", _from(lambda s: s.call))
    for past in range(1, 9):
        yield Rule("past_constant", _from(_always(past)))
    yield Rule("calls", _from(lambda s: s.sizes[0] + s.call - 1))
    for start in _DOUBLE:
        yield Rule("double", _from(start))
        yield Rule("double", _from(_later(start)))
    for times in range(2, 9):
        yield Rule("double", _from(_times(times, 1)), first=True)
        yield Rule("double", _from(_times(times, 0)))
    for first in (False, True):
        yield Rule("constant", _all_at(lambda s: s.seen), first)
        yield Rule("constant", _all_at(lambda s: s.seen + s.new - 1), first)
    yield Rule("constant", _all_at(lambda _: 0))
    yield Rule("query", _apart(lambda _: 0, lambda s: s.seen))
    yield Rule("offset", _apart(lambda s: s.seen, lambda _: 0))
    for off in (1, -1):
        yield Rule("query_off", _apart(_beside(off), _beside(0)))
        yield Rule("query_off", _apart(_beside(0), _beside(off)))
    yield Rule("count_early", _apart(lambda s: s.seen + s.new, lambda s: s.seen))
    yield Rule("count_early", _apart(lambda s: s.seen, lambda s: s.seen + s.new))
    for new in (1, 2):
        for by in (0, 1):
            yield Rule("again", _again(new, by))
    yield Rule("again", _read_again)


def parted(whole: list[Rule]) -> Iterator[Rule]:
    """Name them again for parts of one token alone, then for parts of several."""
    for only, fault in (("single", "single"), ("chunk", "chunk")):
        for rule in whole:
            if rule.fault == "constant" and only == "single":
                continue
            yield Rule("constant" if rule.fault == "constant" else fault, rule.place, rule.first, only)
