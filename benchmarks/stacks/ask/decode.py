"""Measure a rotation from vectors before and after it, without knowledge of how it was computed."""

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Found = dict[str, Any]
CLOSE = 2e-4  # how far the size of rotated pairs may differ for the pairs to be the right ones


def decode(raw: Array, rotated: Array, at: list[int]) -> Found | None:
    """Return pairing, rotary_dim, inv_freq and gain; None if nothing rotates.

    Args:
        raw: Vectors before the rotation, (positions, width).
        rotated: The same after it.
        at: The positions, 0 and 1 first, the distance of each to the next at most about the positions before.
    """
    raw, rotated = np.asarray(raw, np.float64), np.asarray(rotated, np.float64)
    moved = np.flatnonzero((np.abs(rotated - raw) > 1e-5 * np.abs(raw).max()).any(0))
    if not len(moved):
        return None
    best: tuple[Any, ...] | None = None
    for pairing, n_dims, start in _pairings(raw.shape[1], int(moved.min()), int(moved.max()) + 1):
        first, second = _pairs(n_dims, pairing, start)
        before = raw[:, first] + 1j * raw[:, second]
        turned = (rotated[:, first] + 1j * rotated[:, second]) / before
        strong = np.abs(before) > 0.05 * np.median(np.abs(before))
        gain = float(np.median(np.abs(turned)[strong]))
        off = float(np.abs(np.abs(turned) / gain - 1)[strong].max())
        if best is None or off < best[0]:
            best = (off, pairing, n_dims, start, turned, before, gain)
        if off < CLOSE:
            break
    assert best is not None
    off, pairing, n_dims, start, turned, before, gain = best
    if off > 50 * CLOSE:
        return {"error": f"no pairing fits: {pairing} {n_dims} off {off:.3g}"}
    usable = np.abs(before) > 0.002 * np.median(np.abs(before))  # weak pairs still show their angle
    inv_freq = _frequencies(turned, usable, at)
    out = {"pairing": pairing, "rotary_dim": int(n_dims), "gain": gain, "inv_freq": inv_freq.tolist()}
    return out | ({"start": int(start)} if start else {})


def _pairings(width: int, low: int, high: int) -> list[tuple[str, int, int]]:
    """Return the candidates (pairing, number of dimensions, first dimension) if dimensions low to high moved."""
    even = high + high % 2
    found = [("half", n, 0) for n in dict.fromkeys([width, *range(even, width + 1, 2)]) if not n % 2]
    found.append(("interleaved", even, 0))
    if low and not (width - low) % 2:
        found += [("half", width - low, low), ("interleaved", width - low, low)]
    return [one for one in found if one[1] + one[2] <= width]


def _pairs(n_dims: int, pairing: str, start: int) -> tuple[Array, Array]:
    k = np.arange(n_dims // 2)
    return (start + k, start + k + n_dims // 2) if pairing == "half" else (start + 2 * k, start + 2 * k + 1)


def _frequencies(turned: Array, usable: Array, at: list[int]) -> Array:
    """Return radians per position: each position corrects what the ones before it say."""
    theta = np.zeros(turned.shape[1])
    for i in range(1, len(at)):
        angle = np.angle(turned[i] / turned[0])
        step = (angle - theta * at[i] + np.pi) % (2 * np.pi) - np.pi
        if at[i] == 1:
            theta = angle
        else:
            theta = np.where(usable[i] & usable[0] & (np.abs(step) < 2.0), theta + step / at[i], theta)
    return np.where(np.abs(theta) < 1e-12, 0.0, theta)


def still(rotated: Array, at: list[int], warm: dict[str, float] | None) -> Found | None:
    """Decode without vectors from before the rotation: the one at position 0 is as it was."""
    if warm:
        rotated = rotated / np.array(list(warm.values()))[:, None]
    return decode(rotated[:1].repeat(len(at), 0), rotated, at)


def temperature(q: Array, at: list[int]) -> dict[str, float] | None:
    """Return the factor of q's length by position relative to position 0, None if it is 1 everywhere."""
    size = np.linalg.norm(np.asarray(q, np.float64), axis=-1)
    ratio = size / size[0]
    if np.abs(ratio - 1).max() < 1e-4:
        return None
    return {str(p): round(float(r), 6) for p, r in zip(at, ratio, strict=True)}


def see(out: Any, seen: list[tuple[Array, float]]) -> None:
    """Note angles at the second position and the gain of a rotary module's output (cos, sin), or complex numbers."""
    import torch

    if torch.is_tensor(out) and torch.is_complex(out):
        one = out.reshape(-1, out.shape[-2], out.shape[-1])[0]
        seen.append((torch.angle(one[1]).double().numpy(), float(one.abs().max())))
    elif isinstance(out, tuple) and len(out) == 2 and all(torch.is_tensor(x) for x in out):
        cos, sin = (x.detach().double() for x in out)
        while cos.dim() > 2:
            cos, sin = cos[0], sin[0]
        if len(cos) > 1:
            seen.append((torch.atan2(sin[1], cos[1]).numpy(), float((cos**2 + sin**2).sqrt().max())))


def gain_of(seen: list[tuple[Array, float]], inv_freq: list[float]) -> float | None:
    """Return the gain of the module whose angles are these frequencies."""
    n, found = len(inv_freq), []
    for angles, gain in seen:
        views = (angles[:n], angles[::2][:n])
        found += [(float(np.abs(view - inv_freq).max()), gain) for view in views if len(view) == n]
    off, gain = min(found, default=(1.0, 1.0))
    return gain if off < 1e-4 else None


class Table:
    """Layers, of which those that are alike share one description."""

    def __init__(self) -> None:
        self.tables: dict[str, Found] = {}
        self.layers: list[int] = []

    def add(self, layer: Found) -> None:
        """Add a layer."""
        exact = {k: [float(f"{x:.9g}") for x in v] if k == "inv_freq" else v for k, v in layer.items()}
        key = json.dumps({k: _rounded(v) for k, v in exact.items()}, default=str)
        self.tables.setdefault(key, exact)
        self.layers.append(list(self.tables).index(key))

    def answer(self) -> Found:
        """Return the layers as an answer."""
        return {"tables": list(self.tables.values()), "layers": self.layers}


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(x) for x in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value
