"""Keys that a bias hides by -inf: all that are ahead of a query or none, all that are beyond a window or none."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from posenc.verify.engine.records import Array, Fault
from posenc.verify.families.bias_calls import Places, Size, distance

HIDDEN = -9000.0  # what is below hides a key: -10000 was BERT's way to say -inf


def window(spec: Mapping[str, Any]) -> int | None:
    """Return how many keys a query sees on a side, its own included.

    Raises:
        ValueError: It is no number of keys.
    """
    said = spec.get("window")
    if said is None or (isinstance(said, int) and not isinstance(said, bool) and said > 0):
        return said
    raise ValueError(f"verify: window must be how many keys a query sees; got {said!r:.60}. Give one number, as 64.")


def on_both_sides(size: int | None) -> list["Mask"]:
    """Return the masks of a window on both sides: counted on a side with or without its end, or on both."""
    return [Mask(False)] if size is None else [Mask(False, reach) for reach in (size - 1, size, size // 2)]


@dataclass(frozen=True)
class Mask:
    """Which keys a query sees.

    Args:
        causal: It sees no keys ahead.
        reach: The largest distance that it sees; None where there is no window.
    """

    causal: bool
    reach: int | None = None

    @lru_cache(maxsize=64)  # noqa: B019 : masks are few, and small
    def shown(self, size: Size) -> Places:
        """Return which keys a query sees, (q_len, k_len)."""
        d = distance(size)
        seen: Places = ((d >= 0) | (not self.causal)) & (np.abs(d) <= (np.inf if self.reach is None else self.reach))
        return seen

    def wrong(self, size: Size, gone: Places) -> Places:
        """Return the places that a bias hides and must not, or shows while it hides others of their kind.

        Args:
            size: The call.
            gone: What it hides, (heads, q_len, k_len).
        """
        see, ahead = self.shown(size), (distance(size) < 0) & self.causal
        found: Places = gone & see
        for kind in (ahead, ~ahead & ~see):
            found = found | (~gone & kind & (gone & kind).any())
        return found

    def fault(self, size: Size, gone: Places, family: str) -> Fault | None:
        """Return what is wrong with the keys that a bias hides; None if nothing is."""
        wrong = self.wrong(size, gone)
        if not wrong.any():
            return None
        code, words = self._named(size, gone, wrong)
        if code == "local":
            code = "alibi.buffer_slice_shifted" if family == "alibi" else f"{family}.kv_cache.query_from_zero"
        else:
            code = f"{family}.mask.{code}"
        h, i, j = (int(v) for v in np.argwhere(wrong)[0])
        case = {**dict(zip(("heads", "q_len", "k_len"), size, strict=True)), "head": h, "query": i, "key": j}
        return Fault(code, {}, {"words": words, "evidence": float(wrong.mean())}, case)

    def _named(self, size: Size, gone: Places, wrong: Places) -> tuple[str, str]:
        """Return the kind of fault and its words."""
        d, said = distance(size), "no window" if self.reach is None else f"a window of {self.reach + 1}"
        window = "hides_visible" if self.reach is None else "window"
        _, q_len, k_len = size
        if q_len < k_len and (gone == ~_local(self, size)).all():
            return "local", "queries are counted from 0 in place of k_len - q_len, so that keys of the cache are hidden"
        if self.causal and gone[:, d > 0].all() and not gone[:, d <= 0].any():
            words = (
                "all keys behind a query are hidden and those ahead are shown: they are compared the wrong way round"
            )
            return "hides_visible", words
        if gone[:, d < 0].any() and (first := _first_gone(gone, np.abs(d))):
            words = f"keys are hidden from |query - key| = {first} on, on both sides of a query"
            one_sided = self.causal and self.reach is not None
            return ("both_sides", words) if one_sided else (window, f"{words}, where {said} is declared")
        if not self.causal and gone[:, d < 0].all():
            return "hides_visible", "keys ahead are hidden, and an encoder's query sees them"
        ends = (_first_gone(gone, np.maximum(d, 0)), _first_gone(gone, np.where(d < 0, k_len, d)))
        if first := next((end for end in ends if 0 < end < k_len), 0):
            words = f"keys are hidden from query - key = {first} on, so that a query sees {first} keys with its own"
            return window, f"{words}, where {said} is declared"
        if (gone & self.shown(size)).any():
            return "hides_visible", "a key is hidden that its query should see"
        if (wrong & (d < 0)).any() and self.causal:
            return "shows_ahead", "some keys ahead of a query are hidden, but not this one"
        return "window", f"some keys beyond {said} are hidden, and others not"


def _local(mask: Mask, size: Size) -> Places:
    """Return which keys are shown where queries are counted from 0."""
    _, q_len, k_len = size
    d = np.arange(q_len)[:, None] - np.arange(k_len)
    shown: Places = (d >= 0) & (d <= (k_len if mask.reach is None else mask.reach))
    return shown


def _first_gone(gone: Places, d: Array) -> int:
    """Return the number from which on all keys are hidden and before which none is; 0 if there is none."""
    if not (gone & (d > 0)).any():
        return 0
    first = int(np.broadcast_to(d, gone.shape)[gone & (d > 0)].min())
    return first if (gone == (d >= first)).all() else 0
