"""Keys that a bias hides by -inf: all that are ahead of a query, or none."""

import math
from typing import Any

import torch

from posenc.verify.biases.calls import Meter, Seen
from posenc.verify.biases.forms import hidden, shown
from posenc.verify.report import Cause


def masks(meter: Meter, seen: list[Seen], causal: bool) -> list[Cause]:
    """Return what is wrong with keys that are hidden by -inf."""
    for s in seen:
        gone, see = hidden(s), shown(s, causal)
        hides = gone & see
        leaks = ~gone & ~see
        if bool(hides.any()):
            h, i, j = (int(v) for v in hides.nonzero()[0])
            local = torch.arange(s.probe.k_len) > torch.arange(s.probe.q_len)[:, None]
            code, words = "alibi.mask.hides_visible", "hides a key that its query should see"
            if s.probe.cached and bool((gone == local).all()):
                code = "alibi.buffer_slice_shifted"
                words = "counts queries from 0 in place of k_len - q_len, and hides keys of the cache"
        elif bool(gone.any()) and bool(leaks.any()):
            h, i, j = (int(v) for v in leaks.nonzero()[0])
            code, words = "alibi.mask.shows_ahead", "hides some keys ahead of a query, but not this one"
        else:
            continue
        message = f"{meter.says(s.probe)} {words}: head {h}, query {i}, key {j}."
        share = float((hides | leaks).double().mean())
        return [Cause(code, message, share, case_of(s, h, i, j), "Hide the keys with key > query, and no other.")]
    return []


def case_of(s: Seen, h: int, i: int, j: int, want: float | None = None) -> dict[str, Any]:
    """Return one place of a call, with what was found there and what is right, as plain numbers."""
    found = float(s.bias[h, i, j])
    said = {"head": h, "query": i, "key": j, "found": found if math.isfinite(found) else str(found)}
    return {**s.probe._asdict(), **said, **({} if want is None else {"expected": want})}
