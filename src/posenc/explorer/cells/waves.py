"""Which wave a lane holds, found by asking it."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from posenc import measure
from posenc.encoding import Encoding

FITS = 1e-9  # of the amplitude
_PROBES = np.array([0.0, 1.0, 2.0, 3.0, 5.0, 7.0, 11.0, 12.0])  # whole, and early enough for any table


@dataclass(frozen=True)
class Wave:
    """A lane as amplitude · sin(position · frequency + phase).

    Args:
        index: Of the frequency.
        frequency: Radians per position on axis 0, along which positions run.
        amplitude: Above zero.
        phase: Radians, from -π to π.
    """

    index: int
    frequency: float
    amplitude: float
    phase: float


def find_wave(encoding: Encoding, ask: Any, head: int = 0) -> Wave | None:
    """Find the frequency of which a lane holds a sine or cosine; None if it holds neither.

    The lane is asked at a few positions, and held against each frequency that the encoding has.
    """
    try:
        frequencies = measure.frequencies_of(encoding)
    except ValueError:
        return None
    own = frequencies.reshape(-1, *frequencies.shape[-2:])
    flat = own[min(head, len(own) - 1)].reshape(-1)  # axes one after another
    probes = _PROBES
    if (end := getattr(encoding, "max_len", None)) is not None:
        probes = probes[probes < end]
    try:
        seen = ask(probes.astype(int))
    except (TypeError, ValueError):
        return None
    best: Wave | None = None
    for index, frequency in enumerate(flat):
        angle = probes * frequency
        basis = np.stack((np.sin(angle), np.cos(angle)), -1)
        (a, b), *_ = np.linalg.lstsq(basis, seen, rcond=None)
        amplitude = math.hypot(a, b)
        if np.abs(basis @ (a, b) - seen).max() <= FITS * max(amplitude, 1e-300) and amplitude > 0:
            found = Wave(index, float(frequency), amplitude, math.atan2(b, a))
            if best is None or abs(found.amplitude - 1) < abs(best.amplitude - 1):
                best = found
    return best
