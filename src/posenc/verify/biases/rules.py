"""T5's rule for buckets as it should be, and the known ways to spoil it."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from posenc import definitions


@dataclass(frozen=True)
class Rule:
    """T5's rule and the ways to spoil it.

    Args:
        n_buckets: All of them.
        max_distance: From which on all share the last one.
        bidirectional: Keys ahead have buckets of their own.
        turned: query - key and key - query are exchanged.
        halves: By what n_buckets is divided for the buckets of one side.
        ahead: Where the buckets of keys ahead begin, as a share of n_buckets.
        exact: Which share of a side is one bucket a distance.
        clamp: The last bucket of a side: "side", "off" (none), "all" (of all buckets), "over" (one too high).
        cut: How a bucket's number is made whole.
        shift: Added to key - query before anything.
        reach: Added to |distance|.
        zero_ahead: Distance 0 counts as ahead.
        mirrored: Keys ahead count as those behind where only keys behind should be seen.
        log: Which wrong formula stands for the logarithm's share.
    """

    n_buckets: int = 32
    max_distance: int = 128
    bidirectional: bool = False
    turned: bool = False
    halves: int = 2
    ahead: float = 0.5
    exact: float = 0.5
    clamp: str = "side"
    cut: str = "floor"
    shift: int = 0
    reach: int = 0
    zero_ahead: bool = False
    mirrored: bool = False
    log: str = "right"

    def buckets(self, rel: Tensor) -> tuple[Tensor, Tensor]:
        """Return the bucket of key - query, and where rounding may put it one lower or higher."""
        rel = rel + self.shift
        d = rel if self.turned else -rel
        side = self.n_buckets // self.halves if self.bidirectional else self.n_buckets
        base = (d <= 0 if self.zero_ahead else d < 0).long() * int(self.ahead * self.n_buckets) * self.bidirectional
        n = d.abs() if self.bidirectional or self.mirrored else d.clamp(min=0)
        n = (n + self.reach).clamp(min=0).double()
        exact = max(int(side * self.exact), 1)
        x = self._share(n.clamp(min=1), exact, side)
        near = (x - x.round()).abs() < 1e-5 * max(side, 32)
        whole: dict[str, Callable[[Tensor], Tensor]] = {
            "floor": lambda t: (t + 1e-9).trunc(),
            "round": torch.round,
            "ceil": lambda t: (t - 1e-9).ceil(),
        }
        far = (exact * (self.log != "no_start") + whole[self.cut](x).clamp(-1e6, 1e6)).long()
        last = {"side": side - 1, "all": self.n_buckets - 1, "over": side, "off": 1 << 30}[self.clamp]
        near &= (n >= exact) & (far <= last)
        return base + torch.where(n < exact, n.long(), far.clamp(max=last)), near

    def _share(self, n: Tensor, exact: int, side: int) -> Tensor:
        """Return how many buckets beyond the exact ones, before it is made whole."""
        rest, span = side - exact, math.log(max(self.max_distance, 2) / exact) if self.max_distance > exact else 1e-3
        share = torch.log(n / exact) / span
        if self.log == "side":
            return share * side
        if self.log == "exact_not_divided":
            return torch.log(n) / span * rest
        if self.log == "span_not_divided":
            return torch.log(n / exact) / math.log(self.max_distance) * rest
        if self.log == "neither_divided":
            return torch.log(n) / math.log(self.max_distance) * rest
        if self.log == "log2_over_ln":
            return torch.log2(n / exact) / span * rest
        if self.log == "ln_over_log2":
            return torch.log(n / exact) / (span / math.log(2)) * rest
        if self.log == "ln_over_log10":
            return torch.log(n / exact) / (span / math.log(10)) * rest
        if self.log == "linear":
            return (n - exact) / max(self.max_distance - exact, 1) * rest
        if self.log == "log1p":
            return torch.log1p(n / exact) / span * rest
        if self.log == "less_one":
            return share * (rest - 1)
        if self.log == "whole_first":
            return torch.log((n / exact).floor()) / span * rest
        return share * rest


class Fault(NamedTuple):
    """One way to spoil the rule: what it changes, and how it is said."""

    code: str
    words: str
    changes: dict[str, Any]


def faults(rule: Rule) -> list[Fault]:
    """Return the known faults, those named most often in public first."""
    kinds = (_ends(rule), _hardwired(rule), _sides(rule), _shares(), _counts(), _formulas(), _numbers(rule))
    return [fault for kind in kinds for fault in kind]


def _ends(rule: Rule) -> Iterator[Fault]:
    """Yield rules whose direction or whose last bucket is wrong."""
    words = "query - key stands for key - query: past and future change places"
    yield Fault("t5.bucket.direction", words, {"turned": True})
    words = "far distances run on past the last bucket of their side"
    yield Fault("t5.bucket.not_clamped", words, {"clamp": "off"})
    yield Fault("t5.bucket.not_clamped", "the last bucket is one too high", {"clamp": "over"})


def _hardwired(rule: Rule) -> Iterator[Fault]:
    """Yield rules that do not read what they are asked for."""
    nb, md = rule.n_buckets, rule.max_distance
    if md != 128:
        yield Fault("t5.bucket.max_distance_hardwired", f"max_distance is 128, not {md}", {"max_distance": 128})
    if nb != 32:
        yield Fault("t5.bucket.num_buckets_hardwired", f"there are 32 buckets, not {nb}", {"n_buckets": 32})


def _sides(rule: Rule) -> Iterator[Fault]:
    """Yield rules that deal buckets out to both sides, or to one, in another way."""
    both = rule.bidirectional
    if both:
        words = "far distances stop at the last of all buckets, not of their side"
        yield Fault("t5.bucket.not_clamped", words, {"clamp": "all"})
        yield Fault("t5.bucket.sign_lost", "keys ahead share the buckets of keys behind", {"ahead": 0.0})
        yield Fault("t5.bucket.not_halved", "each side has as many buckets as both should", {"halves": 1})
        yield Fault("t5.bucket.not_halved", "each side has as many buckets as both", {"halves": 1, "ahead": 1.0})
        yield Fault("t5.bucket.halved_twice", "each side has a quarter of the buckets", {"halves": 4})
        words = "each side has a quarter of the buckets"
        yield Fault("t5.bucket.halved_twice", words, {"halves": 4, "ahead": 0.25})
        yield Fault("t5.bucket.zero", "distance 0 is counted as a key ahead", {"zero_ahead": True})
    words = "both sides have buckets" if not both else "keys ahead all fall into bucket 0"
    yield Fault("t5.bucket.bidirectional", words, {"bidirectional": not both})


def _shares() -> Iterator[Fault]:
    """Yield rules that have another share of exact buckets."""
    for share, name in ((0.25, "a quarter"), (1.0, "all"), (0.75, "three quarters")):
        words = f"{name} of a side's buckets are exact, not half"
        yield Fault("t5.bucket.exact_range", words, {"exact": share})


def _counts() -> Iterator[Fault]:
    """Yield rules that round or count distances in another way."""
    for cut, word in (("round", "rounded"), ("ceil", "rounded up")):
        yield Fault("t5.bucket.rounding", f"the bucket is {word}, not cut down", {"cut": cut})
    for off in (1, -1):
        yield Fault("t5.bucket.off_by_one", f"|distance| {off:+d} stands for |distance|", {"reach": off})
        yield Fault("t5.bucket.off_by_one", f"key - query {off:+d} stands for key - query", {"shift": off})


_FORMULAS = {
    "side": "the logarithm is spread over all buckets of a side, not over those beyond the exact ones",
    "exact_not_divided": "log(|d|) stands for log(|d| / exact)",
    "span_not_divided": "log(max_distance) stands for log(max_distance / exact)",
    "neither_divided": "log(|d|) / log(max_distance) is taken, neither divided by exact",
    "log2_over_ln": "log2 is divided by a natural logarithm",
    "ln_over_log2": "a natural logarithm is divided by log2",
    "ln_over_log10": "a natural logarithm is divided by log10",
    "no_start": "the number of exact buckets is not added to the logarithm's share",
    "linear": "distances beyond the exact ones are spread evenly, without a logarithm",
    "log1p": "log(1 + |d| / exact) stands for log(|d| / exact)",
    "less_one": "the logarithm is spread over one bucket too few",
    "whole_first": "|d| / exact is cut down before the logarithm",
}


def _formulas() -> Iterator[Fault]:
    """Yield rules with another formula for the logarithm's share."""
    for name, words in _FORMULAS.items():
        yield Fault("t5.bucket.formula", words, {"log": name})


def _numbers(rule: Rule) -> Iterator[Fault]:
    """Yield the right rule with other numbers."""
    nb, md = rule.n_buckets, rule.max_distance
    tops = {20, 32, 64, 100, 200, 256, 512, 1024, 2048, md // 2, md // 4, md * 2, md * 4, md - 1, md + 1} - {128, md}
    for top in sorted(tops):
        yield Fault("t5.bucket.max_distance", f"max_distance is {top}, not {md}", {"max_distance": top})
    counts = {8, 16, 64, 128, 256, nb // 2, nb * 2, nb - 1, nb + 1, nb - 2, nb + 2} - {32, nb}
    for n in sorted(counts):
        yield Fault("t5.bucket.num_buckets", f"there are {n} buckets, not {nb}", {"n_buckets": n})


def rules_of(rule: Rule) -> Iterator[tuple[list[Fault], Rule]]:
    """Yield the rule spoilt by one fault, then by two."""
    single = [f for f in faults(rule) if min(f.changes.get("max_distance", 4), f.changes.get("n_buckets", 4)) >= 4]
    for f in single:
        yield [f], replace(rule, **f.changes)
    many = ("t5.bucket.max_distance", "t5.bucket.num_buckets", "t5.bucket.formula")
    few = [f for f in single if f.code not in many]
    for a, f in enumerate(few):
        for g in few[a + 1 :]:
            if not set(f.changes) & set(g.changes):
                yield [f, g], replace(rule, **f.changes, **g.changes)


def distances(rule: Rule) -> Tensor:
    """Return values of key - query to ask for: all near ones, and far ones ever wider apart."""
    dense = torch.arange(1, min(int(2.3 * rule.max_distance), 700) + 1)
    far = [int(rule.max_distance * f) for f in (0.5, 0.7, 0.9, 0.99, 1, 1.01, 1.5, 2, 3, 8, 10, 100, 1000)]
    side = torch.cat([dense, torch.tensor([d + o for d in far for o in (-1, 0, 1)])]).clamp(min=1).unique()
    return torch.cat([-side.flip(0), torch.zeros(1, dtype=torch.long), side])


def expected(rule: Rule, rel: Tensor) -> Tensor:
    """Return the buckets by the definition."""
    row = definitions.bias.t5(
        np.array([0]),
        rel.numpy(),
        n_heads=1,
        weight=np.arange(rule.n_buckets, dtype=np.float64)[:, None],
        n_buckets=rule.n_buckets,
        max_distance=rule.max_distance,
        bidirectional=rule.bidirectional,
    )
    return torch.from_numpy(row[0, 0]).round().long()
