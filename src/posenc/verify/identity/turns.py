"""What the angles of a text say of a rotation: gain, direction, first position, and what they cannot say."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from posenc.verify.identity.angles import Turns, slopes
from posenc.verify.identity.identify import Identification
from posenc.verify.identity.lines import snap
from posenc.verify.identity.matrix import Array
from posenc.verify.identity.reading import Reader, positions
from posenc.verify.identity.rounded import NEAR, Rounded, behind

CLOSE = 1e-3  # of a gain or a turned lane
BENT = 0.05  # radians beside a straight line, beyond what float32 does at the farthest position


@dataclass(frozen=True)
class Angles:
    """Both sides read in a text of a length, and what follows for one direction.

    Args:
        q: Queries.
        k: Keys.
        freq: Signed radians a position of queries.
        k_freq: Those of keys.
        top: The farthest position.
    """

    q: Turns
    k: Turns
    freq: Array
    k_freq: Array
    top: int


def untold(found: Identification, *why: str) -> Identification:
    """Add what cannot be told, and why."""
    return replace(found, unknown=(*found.unknown, *why))


def angles_of(read: Reader, end: int, whole: bool | None) -> Angles | None:
    """Return angles in a text; None if they do not grow with the position as they should."""
    q, k = read.text(end, whole=True) if whole else read.at(positions(end))
    freq, _, bent = slopes(q)
    k_freq, _, other = slopes(k)
    return None if max(bent, other) > BENT else Angles(q, k, freq, k_freq, int(q.pos[-1]))


def exact(read: Reader, end: int) -> Angles | None:
    """Return angles at powers of two, which no rounding of positions changes; None if those are not proportional."""
    if read.turner.reach != "any":
        return None
    for top in (end, min(end, 2**15)):  # float16 has no larger ones
        powers = torch.tensor([0, *(2**i for i in range(30) if 2**i < top)])
        q, k = read.at(powers)
        if not (np.isfinite(q.first).all() and np.isfinite(k.first).all()):
            continue
        (freq, _, bent), (k_freq, _, other) = slopes(q), slopes(k)
        if max(bent, other) <= BENT:
            return Angles(q, k, freq, k_freq, int(powers[-1]))
    return None


def rounded(read: Reader) -> tuple[Angles, Rounded] | None:
    """Return angles near 0 and the frequencies behind them, where products of both are rounded; None if not."""
    found = behind(read)
    if found is None:
        return None
    q, k = read.at(torch.arange(min(NEAR, read.top)))
    return Angles(q, k, found[0].freq, found[1].freq, int(q.pos[-1])), found[0]


def ignored(read: Reader) -> bool:
    """Say whether tokens are turned alike whatever positions they are given."""
    if read.turner.reach != "any":
        return False
    given = positions(read.top)
    (q, _), (counted, _) = read.at(given), read.at(torch.arange(len(given)))
    return bool(np.abs(q.first - counted.first).max() < CLOSE)


def with_gain(found: Identification, angles: Angles, grows: bool) -> tuple[Identification, float]:
    """Fill in the gain; return what angles may be off."""
    if grows:
        return found, 5e-7  # no one gain, as the scaling says
    sizes = [float(np.median(np.abs(side.first))) for side in (angles.q, angles.k)]
    spread = max(float(np.ptp(np.abs(side.first))) for side in (angles.q, angles.k))
    if spread > 0.02 * max(sizes):
        return untold(
            found, f"one gain: turned lanes change their length by factors that differ by {spread:.3g}"
        ), spread
    noise = max(5e-7, spread)
    if abs(sizes[0] - sizes[1]) > CLOSE * max(sizes):
        found = replace(found, measured=found.measured | {"gain_q": sizes[0], "gain_k": sizes[1]})
        why = f"one gain: queries are multiplied by {sizes[0]:.6g} and keys by {sizes[1]:.6g}"
        return untold(found, why), noise
    gain = round(snap(sizes[0], max(2e-6, spread)), 6)  # more digits float32 does not hold
    found = replace(found, gain=gain)
    if abs(gain - 1) > CLOSE and found.rotary_dim == found.head_dim:
        why = f"the gain {gain:.6g} from a softmax scale {gain**2:.6g} times as large: scores are the same"
        found = untold(found, why)
    still = float(np.abs(angles.q.still - 1).max(initial=0.0))
    if still > CLOSE:
        found = replace(found, measured=found.measured | {"still_lanes_off": still})
    return found, noise


def with_direction(found: Identification, angles: Angles) -> tuple[Identification, Array]:
    """Fill in the direction; return frequencies as they are if it is counterclockwise."""
    freq = angles.freq
    clear = freq[np.abs(freq) < 3] if bool((np.abs(freq) < 3).any()) else freq
    clockwise = bool(np.median(np.sign(clear)) < 0)
    other = angles.k_freq
    if np.abs(np.angle(np.exp(1j * (freq + other)))).max() < CLOSE * np.abs(freq).max():
        direction = "opposite"
    elif np.abs(np.angle(np.exp(1j * (freq - other)))).max() < CLOSE * np.abs(freq).max():
        direction = "clockwise" if clockwise else "counterclockwise"
    else:
        direction = None
        found = untold(found, "one set of frequencies: those of queries and keys differ; told are those of queries")
    return replace(found, direction=direction), -freq if clockwise else freq


def with_alias(found: Identification, freq: Array) -> Identification:
    """Say so where pairs turn so fast that whole turns may be hidden."""
    fast = int((np.abs(freq) > 0.9 * np.pi).sum())
    if not fast:
        return found
    why = f"frequencies but modulo 2 pi: {fast} of {len(freq)} pairs turn about half a turn a position, or more"
    return untold(found, why)


def with_first(found: Identification, angles: Angles) -> Identification:
    """Fill in as what position 0 is turned."""
    starts = [np.angle(side.first[0]) for side in (angles.q, angles.k)]
    places = []
    for start, sign in zip(starts, (1.0, -1.0 if found.direction == "opposite" else 1.0), strict=True):
        slow = start[-1] / angles.freq[-1] * sign
        tried = [0.0, *(s * n / 2 for n in range(1, 65) for s in (1.0, -1.0)), float(round(slow)), float(slow)]
        off = [float(np.abs(np.angle(np.exp(1j * (start - sign * p * angles.freq)))).max()) for p in tried]
        fine = [p for p, o in zip(tried, off, strict=True) if o < 2e-4 + 1e-6 * abs(p)]
        places.append(fine[0] if fine else None)
    if None in places:
        return untold(found, "the first position: position 0 is turned by angles that are not those of one position")
    if places[0] != places[1]:
        measured = found.measured | {"first_position_q": places[0], "first_position_k": places[1]}
        found = replace(found, measured=measured)
        return untold(found, f"one first position: queries begin as {places[0]:g} and keys as {places[1]:g}")
    return replace(found, first_position=places[0])
