"""Images that code serves although it refuses most: square ones, or one size."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from posenc.verify import guard

Sizes = Callable[[int, int], tuple[int, int]]


def images(ask: Callable[[int, int], object], first: tuple[int, ...], grid: Any) -> tuple[Sizes, str]:
    """Return the image to ask for in place of each one, and which images are left out, in words ("" for none).

    Args:
        ask: Calls the subject with an image of so many rows and columns.
        first: An image that is not square.
        grid: The size that must work, if one is declared; others may then fail in any way.
    """

    def error(*size: int) -> guard.SubjectError | None:
        try:
            ask(*size)
        except guard.SubjectError as found:
            return found
        return None

    refused = error(*first)
    if refused is not None and not grid and not guard.is_refusal(refused):
        works = [n for n in range(2, 65) if error(n, n) is None]
        if len(works) == 1:
            hint = f'an image of {works[0]} x {works[0]} works: if the table is made for it, declare "grid": {works[0]}'
            raise guard.SubjectError(replace(refused.cause, message=f"{refused}; {hint}"))
    if refused is None or not (grid or guard.is_refusal(refused)):
        return lambda h, w: (h, w), ""
    if not grid and error(4, 4) is error(5, 5) is None:
        return lambda h, w: (h, h), f"images that are not square: {refused}"
    tried = [(grid, grid) if isinstance(grid, int) else tuple(grid)] if grid else [(n, n) for n in range(32, 1, -1)]
    one = next((size for size in tried if error(*size) is None), None)
    return (lambda h, w: one or (h, w)), f"images of other sizes than {one[0]} x {one[1]}: {refused}" if one else ""
