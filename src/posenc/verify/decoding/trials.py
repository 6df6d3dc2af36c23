"""Experiments with a model whose scores cannot be seen: what its outputs tell of where its tokens stand."""

import torch

from posenc.verify import guard
from posenc.verify.decoding.runs import TOKENS, Bench


def last_row_right(b: Bench) -> bool:
    """Whether the last token of a part is right, which sees all others even where the part has no mask."""
    try:
        return b.same(b.run(b.x[:, :8], (5, 3))[:, -1], b.full[:, 7])
    except guard.SubjectError:
        return False


def order_lost(b: Bench) -> bool:
    """Whether single tokens, one after the other, come out alike in whatever order earlier ones came."""
    x = b.x[:, :4]
    there = b.run(x[:, [2, 0, 1, 3]], (1,) * 4)[:, -1]
    return b.same(there, b.run(x, (1,) * 4)[:, -1])


def part_lost(b: Bench) -> bool:
    """Whether the last token of a part comes out alike in whatever order the others of its part came."""
    x = b.x[:, :8]
    try:
        there, here = b.run(x[:, [0, 1, 2, 3, 6, 4, 5, 7]], (4, 4)), b.run(x, (4, 4))
    except guard.SubjectError:
        return False
    return b.same(there[:, -1], here[:, -1])


def held_together(b: Bench) -> bool:
    """Whether what follows the first call does not depend on how it is cut: the whole of it is displaced."""
    pairs = (("steps", "one first"), ("prefill 5", "uneven"))
    known = [(b.trials[m], b.trials[n]) for m, n in pairs if m in b.trials and n in b.trials]
    if known:
        return all(b.same(one.y, other.y) for one, other in known)
    try:  # the last token of a part sees all others, even where the part has no mask
        if b.same(b.run(b.x[:, :8], (5, 3))[:, -1], b.run(b.x[:, :8], (5, 1, 1, 1))[:, -1]):
            return True
    except guard.SubjectError:
        pass
    if not _zeros_are_silent(b):
        return False
    x = torch.zeros_like(b.x[:, :7])  # a prefill of zeros has no keys, so that a distance to it is not seen
    x[:, 4:] = b.x[:, :3]
    return b.same(b.run(x, (4, 1, 1, 1)), b.one_pass(x))


def self_moved(b: Bench) -> bool:
    """Whether a token after tokens of zeros, which have no keys, scores itself otherwise than in one pass."""
    if not _zeros_are_silent(b):
        return False
    x = torch.zeros_like(b.x[:, :5])
    x[:, -1] = b.x[:, 0]
    return not b.same(b.run(x, (4, 1))[:, -1], b.one_pass(x)[:, -1])


def restarts(b: Bench) -> bool:
    """Whether tokens after zeros are right in one part and wrong in two: each part begins anew.

    For several layers alone; with one, `order_lost` tells.
    """
    if not _zeros_are_silent(b) or not _deep(b):
        return False
    x = torch.zeros_like(b.x[:, :7])
    x[:, 4:] = b.x[:, :3]
    try:
        whole = b.same(b.run(x, (4, 3)), b.one_pass(x))
    except guard.SubjectError:
        return False
    return whole and not b.same(b.run(x, (4, 1, 1, 1)), b.one_pass(x))


def turned_again(b: Bench) -> bool:
    """Whether a key at 2 among zeros looks like one at 4 after a prefill; where that cannot be seen, all else fits."""
    if not _zeros_are_silent(b) or _deep(b):
        return True
    x, later = torch.zeros_like(b.x[:, :9]), torch.zeros_like(b.x[:, :9])
    x[:, 2], later[:, 4], x[:, 8], later[:, 8] = b.x[:, 0], b.x[:, 0], b.x[:, 1], b.x[:, 1]
    return b.same(b.run(x, (8, 1))[:, -1], b.one_pass(later)[:, -1])


def stretched(b: Bench) -> bool:
    """Whether two steps after zeros stand two positions apart."""
    if not _zeros_are_silent(b) or _deep(b):
        return False
    x, wide = torch.zeros_like(b.x[:, :6]), torch.zeros_like(b.x[:, :6])
    x[:, 4:], wide[:, 3], wide[:, 5] = b.x[:, :2], b.x[:, 0], b.x[:, 1]
    return b.same(b.run(x, (4, 1, 1))[:, -1], b.one_pass(wide)[:, -1])


def displaced(b: Bench, layers: int | None) -> str:
    """Say by how much what follows the first call stands too far from it.

    A token among zeros, which have no keys, three before the end of a prefill of eight, and one after it: as one pass
    gives it at one of the distances 1..8, or, displaced by the whole prefill, at none.
    """
    if (layers is not None and layers > 1) or _deep(b):
        return "count_early_deep"
    if not _zeros_are_silent(b):
        return "off_by"
    x = torch.zeros_like(b.x[:, :9])
    x[:, 5], x[:, 8] = b.x[:, 0], b.x[:, 1]
    got = b.run(x, (8, 1))[:, -1]
    for distance in range(1, 9):
        x = torch.zeros_like(x)
        x[:, 8 - distance], x[:, 8] = b.x[:, 0], b.x[:, 1]
        if b.same(got, b.one_pass(x)[:, -1]):
            return "off_by"
    return "double"


def _zeros_are_silent(b: Bench) -> bool:
    try:
        y = b.one_pass(torch.zeros_like(b.x[:, :3]))
    except guard.SubjectError:  # divided by their size, they are NaN
        return False
    return bool(y.abs().max() <= b.tolerance * b.full.abs().max())


def _deep(b: Bench) -> bool:
    """Whether several layers see positions: with one, a last token of zeros asks nothing and weighs all alike."""
    if not _zeros_are_silent(b):
        return False
    x = b.x[:, :5].clone()
    x[:, -1] = 0
    return not b.same(b.one_pass(x[:, [2, 0, 3, 1, 4]])[:, -1], b.one_pass(x)[:, -1])


def centre(b: Bench) -> bool:
    """Whether a step is right where the middle of the sequence stays, or the error is a scale's and not a turn's."""
    errors = {n: max(b.by_call(b.run(b.x[:, : n + 1], (n, 1)), b.full[:, : n + 1], (n, 1))) for n in range(4, 9)}
    right = [n for n, e in errors.items() if e <= b.tolerance]
    if right and {n % 2 for n in right} != {0, 1}:
        return True
    moved = b.one_pass(b.x[:, [1, 0, *range(2, TOKENS)]])
    return max(errors.values()) < 0.3 * b.distance(moved[:, 2:], b.full[:, 2:])
