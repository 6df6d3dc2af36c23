"""Slopes that were taken once for each rank or each group of heads, where every head has its own."""

from collections.abc import Callable, Mapping

from torch import Tensor

Slopes = Callable[[int], Tensor]
Told = tuple[str, str]


def repeated(found: Mapping[int, Tensor], right: Slopes, alike: Callable[[Tensor, Tensor], bool]) -> Told | None:
    """Return the code and words of slopes that come over and over, once for each of so many parts of the heads.

    Args:
        found: Slopes by the number of heads.
        right: The right ones.
        alike: Whether two lists of slopes agree.
    """
    whose = "each rank takes the first slopes in place of its own part of the model's"
    few = "each rank takes the slopes of a model with only its own heads"
    group = "the heads of a group share a slope, where each head has its own"
    ways: tuple[tuple[str, str, Callable[[int, int], Tensor]], ...] = (
        ("alibi.tensor_parallel.head_offset", whose, lambda n, r: right(n)[: n // r].repeat(r)),
        ("alibi.tensor_parallel.head_offset", few, lambda n, r: right(n // r).repeat(r)),
        ("alibi.slopes.shared", group, lambda n, r: right(n // r).repeat_interleave(r)),
        ("alibi.slopes.shared", group, lambda n, r: right(n)[::r].repeat_interleave(r)),
    )
    for parts in (2, 4, 8, 3):
        seen = [n for n in found if n % parts == 0 and n // parts > 1]
        for code, words, make in ways:
            if seen and all(alike(found[n], make(n, parts)) for n in seen):
                return code, f"{words} ({parts} {'ranks' if 'rank' in words else 'heads a group'})"
    return None
