"""Which keys a token beside a cache sees: a mask is a table of who sees whom, held against those of known faults."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from posenc.verify import guard
from posenc.verify.decoding.runs import PATTERNS, TOKENS, Bench, dependence
from posenc.verify.decoding.watch import watch

Fault = tuple[str, Tensor]  # its name, and who sees whom in one layer


def unseen(b: Bench, layers: int | None) -> tuple[str | None, str | None]:
    """Return what is wrong in what a single new token sees, and what parts of several see.

    Of a model whose single tokens are right, parts of several are set aside: these are judged by themselves.
    """
    whole = dependence(b, (TOKENS,))
    for name in ("prefill 5", "uneven", "equal"):
        if name not in b.trials:
            continue
        here = dependence(b, PATTERNS[name])
        hidden = (whole > 10 * b.tolerance) & (here < 1e-2 * b.tolerance)
        more = (here > b.tolerance) & (whole < 1e-2 * b.tolerance)
        if not bool((hidden | more).any()):
            continue
        fault = _explained(b, whole, here, PATTERNS[name], layers)
        if name == "prefill 5":
            if fault is None:
                continue  # a wrong bias can hide keys as well: scores say more
            if fault.startswith("window"):
                counted(b, b.x[:1], TOKENS - 1)
            return fault, None
        if fault == "cache_unused":
            return fault, None
        for pattern in ("equal", "uneven", "one first"):
            if pattern in b.trials:
                b.aside[pattern] = b.trials.pop(pattern)
        ahead = bool(more.triu(1).any())
        return None, fault or ("part_ahead" if ahead else "part_hides")
    return None, None


def counted(b: Bench, x: Tensor, begin: int) -> str | None:
    """Count the keys that a step sees and those that one pass shows it, where scores are seen; None if they agree."""
    x = x[:, : begin + 1]
    try:
        steps, whole = watch(b.subject, x, (begin, 1))[1], watch(b.subject, x, (begin + 1,))[0]
    except guard.SubjectError:
        return None
    for one, other in zip(steps, whole, strict=False):
        kept, shown = (int(s.scores[:, -1].isfinite().sum(-1).max()) - 1 for s in (one, other))
        if kept != shown:
            b.detail = f": behind {begin} tokens it sees {kept} of them, where one pass shows it {shown}"
            return "window_short" if kept < shown else "window_long"
    return None


def hides(b: Bench) -> bool:
    """Whether keys are hidden from single tokens that one pass shows them."""
    whole, here = dependence(b, (TOKENS,)), dependence(b, PATTERNS["prefill 5"])
    return bool(((whole > 10 * b.tolerance) & (here < 1e-2 * b.tolerance)).any())


def _explained(b: Bench, whole: Tensor, here: Tensor, chunks: Sequence[int], layers: int | None) -> str | None:
    """Return the first fault that predicts who sees whom, through as many layers as there are."""
    for depth in (layers,) if layers else (1, 2, 3):
        for fault, mask in _faults(whole > b.tolerance, depth, chunks):
            most, least = _through(mask, depth, True), _through(mask, depth, False)
            beyond = bool(((here > b.tolerance) & ~most).any())
            lacking = bool(((here < 1e-2 * b.tolerance) & least & (whole > 10 * b.tolerance)).any())
            if not beyond and not lacking:
                return fault
    return None


def _faults(whole: Tensor, depth: int, chunks: Sequence[int]) -> Iterator[Fault]:
    """Say what each fault lets tokens see in one layer; `whole` is what one pass lets them see through all."""
    window = next((w for w in range(TOKENS, 0, -1) if bool((_through(_band(w), depth, True) == whole).all())), None)
    if window is None:
        return
    row, column = torch.arange(TOKENS)[:, None], torch.arange(TOKENS)
    begin = torch.tensor([sum(chunks[:i]) for i, n in enumerate(chunks) for _ in range(n)])[:, None]
    end = torch.tensor([sum(chunks[: i + 1]) for i, n in enumerate(chunks) for _ in range(n)])[:, None]
    base, later = _band(window), begin > 0
    corner = column <= row - begin
    yield "cache_unused", base & (column >= begin)
    if all(n == 1 for n in chunks[1:]):
        yield "top_left", torch.where(later, corner, base)
        for kept in range(1, TOKENS):
            seen = torch.where(later, _band(TOKENS) & (column >= begin - kept), base)
            if kept < window - 1:
                yield "window_short", base & seen
            elif kept >= window:
                yield "window_long", seen
        return
    yield "top_left_parts", torch.where(later, corner, base)
    yield "part_ahead", torch.where(later, (column < end) & (row - column < window), base)


def _band(window: int) -> Tensor:
    """Return who sees whom in one layer with a window, the token itself counted."""
    apart = torch.arange(TOKENS)[:, None] - torch.arange(TOKENS)
    return (apart >= 0) & (apart < window)


def _through(mask: Tensor, depth: int, itself: bool) -> Tensor:
    """Return who sees whom through several layers with one mask.

    Args:
        mask: Of one layer.
        depth: Layers.
        itself: A token sees itself whatever the mask says, by its query or by a residual branch.
    """
    one = (mask | torch.eye(len(mask), dtype=torch.bool) if itself else mask).double()
    seen = one
    for _ in range(depth - 1):
        seen = (one @ seen).clamp(max=1)
    return seen > 0
