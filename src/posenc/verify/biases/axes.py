"""Slopes that stand along the queries or the keys, where each head has its own."""

import torch
from torch import Tensor

from posenc.verify.biases.calls import Meter, Probe, Seen
from posenc.verify.biases.forms import hidden, shown
from posenc.verify.guard import SubjectError

MEND = "Give the slopes the axis of the heads: slopes[:, None, None], or slopes[h]."


def told(seen: list[Seen], causal: bool) -> tuple[str, str] | None:
    """Return the code and words of a bias that is the same in all heads, with one slope for each query or each key."""
    wide = [s for s in seen if s.probe.q_len > 3]
    if not wide or any(s.probe.heads < 2 or not _shared(s, causal) for s in wide):
        return None
    for code, name in (("alibi.axis.queries", "query"), ("alibi.axis.keys", "key")):
        slopes = [_slopes(s, causal, by_key=name == "key") for s in wide]
        if all(s is not None and float(max(s) - min(s)) > 1e-3 * max(map(abs, s)) for s in slopes):
            some = ", ".join(f"{s:.4g}" for s in (slopes[0] or [])[:3])
            words = f"all heads have one bias, and its slope hangs on the {name} ({some}, ...): the slopes lie along "
            return code, words + ("the queries" if name == "query" else "the keys")
    return None


def behind(meter: Meter, heads: int, causal: bool) -> tuple[str, str, list[Seen]] | None:
    """Return the same of a bias that can be asked for some sizes only, such as one key for each head."""
    seen = []
    for size in (heads, 7, 4):
        try:
            seen.append(meter.see(Probe(heads, size, size)))
        except SubjectError:
            continue
    found = told(seen, causal)
    return None if found is None else (*found, seen)


def _shared(s: Seen, causal: bool) -> bool:
    see = shown(s, causal)
    if bool((hidden(s) & see).any()):
        return False
    size = float(torch.where(see, s.bias, 0.0).abs().max())
    return bool((torch.where(see, s.bias - s.bias[:1], 0.0).abs() <= 16 * s.eps * size).all()) and size > 0


def _slopes(s: Seen, causal: bool, *, by_key: bool) -> list[float] | None:
    """Return the slope of each row, whatever is added to it, or of each column; None where they are not linear."""
    see, d, b = shown(s, causal) & (s.probe.distance() >= 0), s.probe.distance().double(), s.bias[0]
    if by_key:
        see, d, b = see.T, d.T, b.T
    found = []
    for i in range(len(b)):
        x, y = d[i, see[i]], b[i, see[i]]
        if len(x) < 3:
            continue
        origin: tuple[Tensor | float, Tensor | float] = (0.0, 0.0) if by_key else (x[-1], y[-1])
        far = int(x.argmax())
        slope = (y[far] - origin[1]) / (x[far] - origin[0])
        off = (y - origin[1] - slope * (x - origin[0])).abs().max()
        if float(off) > 16 * s.eps * float(y.abs().max()) + 1e-9:
            return None
        found.append(-float(slope))
    return found or None
