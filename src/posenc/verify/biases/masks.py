"""Keys that a bias hides by -inf: all that are ahead of a query or none, all that are beyond a window or none."""

import math
from typing import Any

import torch
from torch import Tensor

from posenc.verify.biases.calls import Meter, Seen
from posenc.verify.biases.forms import hidden, shown
from posenc.verify.report import Cause

CODES = {  # by family: what is hidden wrongly
    "alibi": {
        "window": "alibi.mask.window",
        "hides": "alibi.mask.hides_visible",
        "ahead": "alibi.mask.shows_ahead",
        "local": "alibi.buffer_slice_shifted",
    },
    "t5": {
        "window": "t5.mask.window",
        "hides": "t5.mask.hides_visible",
        "ahead": "t5.mask.shows_ahead",
        "local": "t5.kv_cache.query_from_zero",
    },
    "relative_bias": {
        "window": "relative_bias.mask.window",
        "hides": "relative_bias.mask.hides_visible",
        "ahead": "relative_bias.mask.shows_ahead",
        "local": "relative_bias.kv_cache.query_from_zero",
    },
}


def masks(meter: Meter, seen: list[Seen], causal: bool, family: str = "alibi") -> list[Cause]:
    """Return what is wrong with keys that are hidden by -inf."""
    for s in seen:
        gone, see, d = hidden(s), shown(s, causal), s.probe.distance()
        ahead = (d < 0) & causal
        hides, far = gone & see, gone & ~ahead & ~see
        leaks = ~gone & ahead & bool((gone & ahead).any())
        open_end = ~gone & ~ahead & ~see & bool(far.any())
        if bool(hides.any()):
            kind, words, wrong = *_hides(s, gone, causal), hides
        elif bool(open_end.any()):
            kind, words, wrong = (
                "window",
                _of_window(s, gone) or f"hides some keys beyond {_said(s)}, not all",
                open_end,
            )
        elif bool(leaks.any()):
            kind, words, wrong = "ahead", "hides some keys ahead of a query, but not this one", leaks
        else:
            continue
        h, i, j = (int(v) for v in wrong.nonzero()[0])
        message = f"{meter.says(s.probe)} {words}: head {h}, query {i} (position {s.probe.k_len - s.probe.q_len + i})"
        beyond = f" or query - key >= {s.window}" if s.window else ""
        help_ = f"Hide the keys with key > query{beyond}, and no other."
        share = float((hides | leaks | open_end).double().mean())
        return [Cause(CODES[family][kind], f"{message}, key {j}.", share, case_of(s, h, i, j), help_)]
    return []


def _hides(s: Seen, gone: Tensor, causal: bool) -> tuple[str, str]:
    """Return the kind and words of hidden keys that a query should see."""
    here = torch.arange(s.probe.q_len)[:, None] - torch.arange(s.probe.k_len)
    local = here < 0
    if s.window:
        local = local | (here >= s.window)
    if s.probe.cached and bool((gone == local).all()):
        return "local", "counts queries from 0 in place of k_len - q_len, and hides keys of the cache"
    d = s.probe.distance()
    if causal and bool(gone[:, d > 0].all()) and not bool(gone[:, d <= 0].any()):
        return "hides", "hides all keys behind a query and shows those ahead: they are compared the wrong way round"
    words = _of_window(s, gone)
    if words:
        return ("window" if s.window else "hides"), words
    return "hides", "hides a key that its query should see"


def _of_window(s: Seen, gone: Tensor) -> str | None:
    """Return words for a bias that hides all keys from some distance on, and none before; None for any other."""
    d = s.probe.distance().expand_as(gone)
    if not bool((gone & (d > 0)).any()):
        return None
    size = int(d[gone & (d > 0)].min())
    if not bool((gone | (d < size)).all()) or bool(gone[(d >= 0) & (d < size)].any()):
        return None
    words = f"hides keys from query - key = {size} on, so that a query sees {size} keys with its own"
    return f"{words}, where {_said(s)} is declared"


def _said(s: Seen) -> str:
    return f"a window of {s.window}" if s.window else "no window"


def case_of(s: Seen, h: int, i: int, j: int, want: float | None = None) -> dict[str, Any]:
    """Return one place of a call, with what was found there and what is right, as plain numbers."""
    found = float(s.bias[h, i, j])
    said = {"head": h, "query": i, "key": j, "found": found if math.isfinite(found) else str(found)}
    return {**s.probe._asdict(), **said, **({} if want is None else {"expected": want})}
