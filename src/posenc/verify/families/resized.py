"""The rule by which code interpolates a trained table of an image: random entries show how cells mix them."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from posenc.families.resizing import RULES_2D, Rule, resized_image
from posenc.verify.engine.records import Array
from posenc.verify.families.added_calls import finding

NEAR = 2e-3  # tolerance of a mixed entry, whose size is about 1
WHO = "verify: interpolation"
OPEN = "the rule of interpolation: {} is used; declare interpolation ({}, or mode, align_corners and antialias)"
NO_GRID = "the rule of interpolation: the image that the table is made for is unknown; declare grid"
ALONE = "the rule of interpolation: only images of the table's own size, {} x {}, work"


@dataclass(frozen=True)
class Mixed:
    """An image of numbers from a table of random ones.

    Args:
        entries: The table, (rows, columns).
        image: The numbers of the cells, (height, width).
    """

    entries: Array
    image: Array

    @property
    def is_resized(self) -> bool:
        """Whether the image has another size than the table."""
        return self.entries.shape != self.image.shape

    @property
    def is_mixed(self) -> bool:
        """Whether a cell has a number that is no entry of the table."""
        off = np.abs(self.image.ravel()[:, None] - self.entries.ravel())
        return bool(off.min(1).max() > NEAR)

    def fits(self, rule: Rule) -> bool:
        """Return whether a rule gives this image."""
        table = torch.from_numpy(self.entries.reshape(-1, 1))
        with suppress(ValueError):  # an offset that gives another size
            found = resized_image(table, self.entries.shape, self.image.shape, rule, WHO)
            return bool(np.abs(found.numpy().reshape(self.image.shape) - self.image).max() < NEAR)
        return False


def checked(rule: Any) -> Rule | None:
    """Return a declared rule; refuse an unknown one."""
    if rule is not None:
        resized_image(torch.zeros(1, 1), (1, 1), (1, 1), rule, WHO)
    return None if rule is None else rule


def judge(mixed: Sequence[Mixed], rule: Rule | None, case: dict[str, Any]) -> str:
    """Return what was not judged of the rule; empty if images are as a declared one gives them.

    Raises:
        SubjectError: Another rule is declared.
    """
    resized = [one for one in mixed if one.is_resized]
    if rule is None and not any(one.is_mixed for one in resized):
        return ""
    if not resized:
        return ALONE.format(*mixed[0].entries.shape) if mixed else NO_GRID
    used = " or ".join(name for name in RULES_2D if all(one.fits(name) for one in resized)) or _unnamed(resized)
    if rule is None:
        return OPEN.format(used, ", ".join(RULES_2D))
    if all(one.fits(rule) for one in resized):
        return ""
    if all(Mixed(one.entries.T, one.image).fits(rule) for one in resized):
        how = "as its transpose: rows and columns of the table are exchanged on the way to interpolation"
        raise finding("learned.grid.interpolated_wrong", case, words=f"a table is interpolated {how}")
    first = next(one for one in resized if not one.fits(rule))
    (rows, columns), (h, w) = first.entries.shape, first.image.shape
    words: dict[str, Any] = {"used": used, "asked": rule, "table": f"{rows} x {columns}", "image": f"{h} x {w}"}
    raise finding("learned.interpolation.rule", case, **words)


def _unnamed(resized: Sequence[Mixed]) -> str:
    if any(all(one.fits({"mode": mode}) for one in resized) for mode in ("nearest", "nearest-exact")):
        return "the nearest entry"
    return "a rule without a name here" if any(one.is_mixed for one in resized) else "no interpolation"
