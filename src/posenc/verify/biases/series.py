"""Slopes that follow some other series than a geometric one, for every number of heads alike."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

_CODE = "alibi.slopes.not_geometric"
_SERIES: tuple[tuple[str, Callable[[Tensor, int], Tensor]], ...] = (  # of the head, from 1, and how many there are
    ("h + 1", lambda h, n: h),
    ("(h + 1) / n", lambda h, n: h / n),
    ("h / n", lambda h, n: (h - 1) / n),
    ("(n - h) / n", lambda h, n: (n + 1 - h) / n),
    ("1 - (h + 1) / n", lambda h, n: 1 - h / n),
    ("h / (n - 1)", lambda h, n: (h - 1) / max(n - 1, 1)),
    ("1 / (h + 1)", lambda h, n: 1 / h),
    ("1 / (h + 2)", lambda h, n: 1 / (h + 1)),
    ("1 / (8 (h + 1))", lambda h, n: 1 / (8 * h)),
    ("1 / (h + 1)**2", lambda h, n: 1 / h**2),
    ("n / (h + 1)", lambda h, n: n / h),
    ("8 (h + 1) / n", lambda h, n: 8 * h / n),
)


def series_of(found: Mapping[int, Tensor]) -> tuple[str, str] | None:
    """Return the code and words of slopes that are no powers, or None.

    Args:
        found: Slopes by the number of heads.
    """
    seen = {n: s for n, s in found.items() if len(s) == n}
    if not any(n > 2 for n in seen) or len(seen) < len(found):
        return None
    for words, make in _SERIES:
        wants = {n: make(torch.arange(1, n + 1, dtype=torch.float64), n) for n in seen}
        if all(_near(s, wants[n]) for n, s in seen.items()):
            return _CODE, f"the slopes are {words} for n heads, no powers of two"
    if all(_near(s.diff(), s.diff()[:1].expand(n - 1)) and bool(s.diff().any()) for n, s in seen.items() if n > 2):
        return _CODE, "the slopes go in equal steps from head to head, and are no powers of two"
    return None


def _near(found: Tensor, want: Tensor) -> bool:
    return bool(((found - want).abs() <= 1e-4 * want.abs().max() + 1e-12).all())
