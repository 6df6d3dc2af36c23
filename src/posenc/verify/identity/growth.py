"""Lengths that grow or shrink with the position, as xPos' do."""

from dataclasses import replace

import numpy as np

from posenc.verify.identity.angles import Turns
from posenc.verify.identity.lines import Fit, snap
from posenc.verify.identity.matrix import Array
from posenc.verify.identity.reading import Reader

_CLOSE = 1e-3  # of growth


def growth(q: Turns, k: Turns) -> tuple[Array, Array] | None:
    """Return by how much the logarithms of lengths grow a position, of queries and keys; None if they do not."""
    with np.errstate(divide="ignore"):
        logs = [np.log(np.abs(side.first)) for side in (q, k)]
    most = max(float(np.ptp(log, axis=0).max()) for log in logs)
    if most < 1e-4 or not np.isfinite(most):
        return None
    fits = [np.polyfit(q.pos, log, 1) for log in logs]
    beside = [np.abs(log - np.outer(q.pos, f[0]) - f[1]).max() for log, f in zip(logs, fits, strict=True)]
    if max(float(b) for b in beside) > 0.1 * most:
        return None  # rounded, or anything else
    steps = float(q.pos[-1] - q.pos[0])
    return (logs[0][-1] - logs[0][0]) / steps, (logs[1][-1] - logs[1][0]) / steps


def bounded(read: Reader) -> int:
    """Return a length in which nothing overflows or vanishes."""
    end = min(read.top, 1024)
    while end > 16:
        sizes = np.concatenate([np.abs(side.first) for side in read.text(end)])
        if np.isfinite(sizes).all() and sizes.min() > 1e-2 and sizes.max() < 1e2:
            break
        end //= 2
    return end


def decaying(fit: Fit, grows: tuple[Array, Array]) -> Fit:
    """Find xPos' gamma and scale_base from the growth of lengths a position."""
    q, k = grows
    i = np.arange(len(q)) / len(q)
    best: tuple[float, float, float] | None = None
    for gamma in np.round(np.arange(0.05, 2.0001, 0.05), 2):
        zeta = np.log((i + gamma) / (1 + gamma))
        scale = float((zeta * zeta).sum() / (zeta * q).sum()) if (zeta * q).sum() else np.inf
        off = float(np.abs(zeta / scale - q).max() / np.abs(q).max()) if np.isfinite(scale) else np.inf
        if best is None or off < best[0]:
            best = (off, float(gamma), scale)
    assert best is not None
    if best[0] > 1e-3:
        return replace(fit, kind="other", unknown=(*fit.unknown, "by which rule turned lanes change their length"))
    scale = snap(abs(best[2]), 1e-3)
    inverse = bool(np.abs(q + k).max() < _CLOSE * np.abs(q).max())
    parameters = fit.parameters | {
        "gamma": best[1],
        "scale_base": scale,
        "decays": best[2] > 0,
        "keys_inverse": inverse,
    }
    return replace(fit, kind="xpos", parameters=parameters)
