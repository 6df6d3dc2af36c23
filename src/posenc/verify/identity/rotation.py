"""Identification of a rotation: its lanes, its direction and gain, its frequencies and what they depend on."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posenc.verify import identify_fit, identify_lengths, identify_precision
from posenc.verify.guard import call
from posenc.verify.identify import Identification
from posenc.verify.identify_lines import Fit, snap
from posenc.verify.identify_reading import Reader, positions, reader, width_of
from posenc.verify.rotary.angles import Turns, slopes
from posenc.verify.rotary.matrix import Array, Structure
from posenc.verify.rotary.turner import TURNERS, Turner

CLOSE = 1e-3  # of a gain or a turned lane
BENT = 0.05  # radians beside a straight line, beyond what float32 does at the farthest position


class Encoded(Turner):
    """A posenc Encoding that turns queries and keys."""

    def _turn(self, q: Tensor, k: Tensor, pos: Tensor, said: str, grad: bool) -> tuple[Any, Any]:
        def rotate(q: Tensor, k: Tensor, pos: Tensor) -> Any:
            return self.subject.rotate(q, k, self.subject.place(pos))

        found: tuple[Any, Any] = call(rotate, q, k, pos, what=f"rotate {said}", grad=grad)
        return found


def turner_of(subject: Any, convention: str) -> Turner | None:
    """Return a rotation behind one call; None if the convention is no rotation's."""
    if convention in TURNERS:
        return TURNERS[convention](subject)
    if convention == "encoding" and getattr(subject, "family", None) == "rotary" and not isinstance(subject, type):
        return Encoded(subject)
    return None


@dataclass(frozen=True)
class Angles:
    """Both sides read in a text of a length, and what follows for one direction.

    Args:
        q: Queries.
        k: Keys.
        freq: Signed radians a position of queries.
        top: The farthest position.
    """

    q: Turns
    k: Turns
    freq: Array
    top: int


def rotation(turner: Turner, convention: str, head_dim: int | None) -> Identification:
    """Identify a rotation.

    Raises:
        SubjectError: No call works, or heads are mixed up.
    """
    size, free = width_of(turner, head_dim)
    read, q, k, undone = reader(turner, size)
    found = Identification(convention, "rotation", head_dim=size, measured={"positions_read": read.top})
    if free:
        found = _more(found, f"head_dim, since others than {size} are taken as well; pass head_dim to read another")
    if undone:
        found = replace(found, measured=found.measured | {"undone": undone})
    if (why := _no_pairs(q, k)) is not None:
        return _more(replace(found, rotary_dim=q.width or None), why)
    found, width = _lanes(found, q, read)
    near = read.text(min(16, read.top))
    if (why := _no_turn(*near)) is not None:
        return _more(found, why)
    return _turned(found, read, near, width)


def _more(found: Identification, *why: str) -> Identification:
    return replace(found, unknown=(*found.unknown, *why))


def _no_pairs(q: Structure, k: Structure) -> str | None:
    """Return why lanes are not in pairs; None if they are."""
    for name, side in (("queries", q), ("keys", k)):
        if side.tangled:
            return f"pairing and all that follows: lane {side.tangled[0]} of {name} mixes with more than one other"
    if not q.pairs and not k.pairs:
        return "what is turned: no lane changes with the position"
    if q.pairs != k.pairs:
        return f"one pairing: of queries {q.words()} turn, of keys {k.words()}"
    return None


def _no_turn(q: Turns, k: Turns) -> str | None:
    for name, side in (("queries", q), ("keys", k)):
        if side.unequal > CLOSE * max(1.0, float(np.abs(side.first).max())):
            pair = int(np.abs(side.first - side.second).max(0).argmax())
            return f"frequencies: pair {pair} of {name} is no rotation, its two lanes say different angles or signs"
    return None


def _lanes(found: Identification, side: Structure, read: Reader) -> tuple[Identification, int]:
    """Fill in pairing, width and first lane; return the width over which exponents may count."""
    count, (a, b), first = len(side.pairs), side.pairs[0], side.pairs[0][0]
    named = side.layout()
    width = 2 * count
    pairing = named[0] if named else "other"
    if count == 1:
        pairing = "half" if b - a > 1 else "interleaved"
    if named is None and side.pairs == tuple((first + i, first + i + b - a) for i in range(count)) and b - a > count:
        pairing, width = "half", 2 * (b - a)  # the slow pairs stand still
    found = replace(found, pairing=pairing, rotary_dim=2 * count, first_lane=first)
    if pairing == "other":
        listed = [list(p) for p in side.pairs]
        found = replace(found, measured=found.measured | {"pairs": listed})
    if width == read.head_dim and count == 1 and width == 2:
        found = _more(found, "half from interleaved: with one pair they are the same")
    return found, width


def _turned(found: Identification, read: Reader, near: tuple[Turns, Turns], width: int) -> Identification:
    """Fill in all that angles and lengths say."""
    grows = _growth(*near)
    switch, whole = (None, None) if grows is not None else identify_lengths.switch(read)
    end = read.top if switch is None else switch
    if grows is not None:
        end = _bounded(read)
    if (angles := _angles(read, end, whole)) is None:
        if _ignored(read):
            return _more(found, "frequencies: positions that are given are not used, tokens are counted")
        if (angles := _angles(read, min(end, 256), whole)) is None:
            return _more(found, "frequencies: angles are not proportional to the position")
        found = _more(found, "angles beyond position 255: they are not proportional to the position there")
    found, noise = _gain(found, angles, grows is not None)
    found, freq = _direction(found, angles)
    turning = 2 * len(freq)
    fit = identify_fit.fit(freq, noise / angles.top, width, turning if width > turning else read.head_dim)
    if fit.parameters.get("exponent_width", width) > turning:
        fit = _proportional(fit, freq, width)
    if switch is not None:
        fit, more = identify_lengths.scaled(read, fit, switch, width, whole=whole, gain=found.gain)
        found = replace(found, measured=found.measured | more)
    if grows is not None:
        fit = _decaying(fit, grows)
    found = replace(found, base=fit.base, scaling=fit.kind, parameters=fit.parameters)
    found = _more(_alias(found, freq), *fit.unknown)
    found = _first(found, angles)
    found = replace(found, measured=found.measured | {"frequencies": freq.tolist()})
    return identify_precision.filled(found, read, angles.freq, fit, (end, angles.top + 1))


def _angles(read: Reader, end: int, whole: bool | None) -> Angles | None:
    """Return angles in a text; None if they do not grow with the position as they should."""
    q, k = read.text(end, whole=True) if whole else read.at(positions(end))
    freq, _, bent = slopes(q)
    _, _, other = slopes(k)
    return None if max(bent, other) > BENT else Angles(q, k, freq, int(q.pos[-1]))


def _ignored(read: Reader) -> bool:
    """Say whether tokens are turned alike whatever positions they are given."""
    if read.turner.reach != "any":
        return False
    given = positions(read.top)
    (q, _), (counted, _) = read.at(given), read.at(torch.arange(len(given)))
    return bool(np.abs(q.first - counted.first).max() < CLOSE)


def _growth(q: Turns, k: Turns) -> tuple[Array, Array] | None:
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


def _bounded(read: Reader) -> int:
    """Return a length in which nothing overflows or vanishes."""
    end = min(read.top, 1024)
    while end > 16:
        sizes = np.concatenate([np.abs(side.first) for side in read.text(end)])
        if np.isfinite(sizes).all() and sizes.min() > 1e-2 and sizes.max() < 1e2:
            break
        end //= 2
    return end


def _gain(found: Identification, angles: Angles, grows: bool) -> tuple[Identification, float]:
    """Fill in the gain; return what angles may be off."""
    if grows:
        return found, 5e-7  # no one gain, as the scaling says
    sizes = [float(np.median(np.abs(side.first))) for side in (angles.q, angles.k)]
    spread = max(float(np.ptp(np.abs(side.first))) for side in (angles.q, angles.k))
    if spread > 0.02 * max(sizes):
        return _more(
            found, f"one gain: turned lanes change their length by factors that differ by {spread:.3g}"
        ), spread
    noise = max(5e-7, spread)
    if abs(sizes[0] - sizes[1]) > CLOSE * max(sizes):
        found = replace(found, measured=found.measured | {"gain_q": sizes[0], "gain_k": sizes[1]})
        why = f"one gain: queries are multiplied by {sizes[0]:.6g} and keys by {sizes[1]:.6g}"
        return _more(found, why), noise
    gain = round(snap(sizes[0], max(2e-6, spread)), 6)  # more digits float32 does not hold
    found = replace(found, gain=gain)
    if abs(gain - 1) > CLOSE and found.rotary_dim == found.head_dim:
        why = f"the gain {gain:.6g} from a softmax scale {gain**2:.6g} times as large: scores are the same"
        found = _more(found, why)
    still = float(np.abs(angles.q.still - 1).max(initial=0.0))
    if still > CLOSE:
        found = replace(found, measured=found.measured | {"still_lanes_off": still})
    return found, noise


def _direction(found: Identification, angles: Angles) -> tuple[Identification, Array]:
    """Fill in the direction; return frequencies as they are if it is counterclockwise."""
    freq = angles.freq
    clear = freq[np.abs(freq) < 3] if bool((np.abs(freq) < 3).any()) else freq
    clockwise = bool(np.median(np.sign(clear)) < 0)
    other, _, _ = slopes(angles.k)
    if np.abs(np.angle(np.exp(1j * (freq + other)))).max() < CLOSE * np.abs(freq).max():
        direction = "opposite"
    elif np.abs(np.angle(np.exp(1j * (freq - other)))).max() < CLOSE * np.abs(freq).max():
        direction = "clockwise" if clockwise else "counterclockwise"
    else:
        direction = None
        found = _more(found, "one set of frequencies: those of queries and keys differ; told are those of queries")
    return replace(found, direction=direction), -freq if clockwise else freq


def _alias(found: Identification, freq: Array) -> Identification:
    fast = int((np.abs(freq) > 0.9 * np.pi).sum())
    if not fast:
        return found
    why = f"frequencies but modulo 2 pi: {fast} of {len(freq)} pairs turn about half a turn a position, or more"
    return _more(found, why)


def _first(found: Identification, angles: Angles) -> Identification:
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
        return _more(found, "the first position: position 0 is turned by angles that are not those of one position")
    if places[0] != places[1]:
        measured = found.measured | {"first_position_q": places[0], "first_position_k": places[1]}
        found = replace(found, measured=measured)
        return _more(found, f"one first position: queries begin as {places[0]:g} and keys as {places[1]:g}")
    return replace(found, first_position=places[0])


def _proportional(fit: Fit, freq: Array, width: int) -> Fit:
    """Say that slow pairs stand still, where exponents count over more lanes than turn."""
    counted = int(fit.parameters.get("exponent_width", width))
    share = 2 * len(freq) / counted
    parameters = {"share": share} | {key: v for key, v in fit.parameters.items() if key != "exponent_width"}
    why = (
        f"whether a share of {share:.6g} of {counted // 2} pairs turns, or a narrower width with exponents that count "
        f"over {counted} lanes: the turns are the same"
    )
    kind = "proportional" if fit.kind in ("none", "linear", "ntk") else fit.kind
    return replace(fit, kind=kind, parameters=parameters, unknown=(*fit.unknown, why))


def _decaying(fit: Fit, grows: tuple[Array, Array]) -> Fit:
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
    inverse = bool(np.abs(q + k).max() < CLOSE * np.abs(q).max())
    parameters = fit.parameters | {
        "gamma": best[1],
        "scale_base": scale,
        "decays": best[2] > 0,
        "keys_inverse": inverse,
    }
    return replace(fit, kind="xpos", parameters=parameters)
