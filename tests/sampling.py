"""The rule that decides which collected tests are in the default run.

1. A test marked `slow` is left out. Invariants run on each encoding's example; those on its variants are marked slow.
2. Of a test over the product of three or more parameters, a pairwise sample is kept: each two values that meet in the
   product meet in the sample. A table of cases is no product: all of its rows run.
3. Of a test marked `sample(n)`, each case of which takes long, n cases are kept, drawn from equal parts of the table.
   Without that mark it is one case of a test that compiles or exports, and twenty of a test of `verify`, whose cases
   are many and alike.
4. A property draws a third of its examples.

`--whole` keeps everything, as `make check` does; `--sample-seed N` draws another sample.
"""

import random
import sys
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from itertools import combinations
from math import prod
from typing import Any

OF_VERIFY, OF_COMPILERS = 20, 1  # cases of a test
property_share = 1 / 3  # of the examples of a property; 1 with `--whole`, which is read before tests are
TRIES = 20  # cases looked at for each pair: more make the sample a little smaller, and collecting slower


def pairwise(cases: Sequence[Sequence[Hashable]], seed: int) -> set[int]:
    """Return indices of cases such that each pair of values of two parameters that occurs in all occurs in them.

    Args:
        cases: For each case the value of each parameter.
        seed: Of the choice among the cases that hold a pair.
    """
    draw = random.Random(seed)
    pairs = [list(combinations(enumerate(case), 2)) for case in cases]
    holders: dict[Any, list[int]] = defaultdict(list)
    for index, found in enumerate(pairs):
        for pair in found:
            holders[pair].append(index)
    rarest_first = sorted(draw.sample(list(holders), len(holders)), key=lambda pair: len(holders[pair]))
    missing, kept = dict.fromkeys(rarest_first), set[int]()
    for pair in rarest_first:
        if pair in missing:
            among = holders[pair]
            tried = draw.sample(among, min(len(among), TRIES))
            best = max(tried, key=lambda index: sum(other in missing for other in pairs[index]))
            kept.add(best)
            for other in pairs[best]:
                missing.pop(other, None)
    return kept


def sampled(parameters: Sequence[dict[str, Any]], seed: int) -> set[int]:
    """Return indices of the cases of one test that the rule keeps.

    Args:
        parameters: For each case its parameters by name.
        seed: Of the sample.
    """
    cases = [tuple(_key(value) for value in case.values()) for case in parameters]
    n_values = [n for n in (len(set(column)) for column in zip(*cases, strict=True)) if n > 1]
    is_product = len(n_values) >= 3 and 2 * len(cases) >= prod(n_values)
    return pairwise(cases, seed) if is_product else set(range(len(cases)))


def _key(value: Any) -> Hashable:
    """Return what is equal for equal values: by identity for what cannot be hashed, with the type, since 1 == True."""
    try:
        hash(value)
    except TypeError:
        return id(value)
    return type(value), value


def _most(item: Any) -> int:
    """Return how many cases like this one a test keeps."""
    if mark := item.get_closest_marker("sample"):
        return int(mark.args[0])
    if item.get_closest_marker("compiles"):
        return OF_COMPILERS
    return OF_VERIFY if "tests/verify/" in item.nodeid else sys.maxsize


def spread(n_cases: int, n: int, seed: int) -> set[int]:
    """Draw one of each n-th part of the cases: neighbours in a table are alike."""
    draw = random.Random(seed)
    return {draw.randrange(i * n_cases // n, (i + 1) * n_cases // n) for i in range(n)}


def split(items: Iterable[Any], seed: int) -> tuple[list[Any], list[Any]]:
    """Return the items of the default run, and those that are left out."""
    tests: dict[tuple[str, int], list[Any]] = defaultdict(list)
    dropped = []
    for item in items:
        if item.get_closest_marker("slow"):
            dropped.append(item)
        else:
            tests[item.nodeid.partition("[")[0], _most(item)].append(item)
    kept = []
    for (_, most), cases in tests.items():
        chosen = set(range(len(cases)))
        if most < len(cases):
            chosen = spread(len(cases), most, seed)
        elif all(hasattr(item, "callspec") for item in cases):
            chosen = sampled([item.callspec.params for item in cases], seed)
        for index, item in enumerate(cases):
            (kept if index in chosen else dropped).append(item)
    return kept, dropped
