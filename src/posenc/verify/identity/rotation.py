"""Identify a rotation: its dimensions, direction and gain, its frequencies and how they depend on the text."""

from bisect import bisect_left
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from posenc.definitions import frequencies
from posenc.verify.engine.read import BASES, phasors, speeds, structure
from posenc.verify.engine.records import Array
from posenc.verify.families.rotation_calls import REACH
from posenc.verify.guard import SubjectError
from posenc.verify.identity.identify import Identification
from posenc.verify.identity.precision import precisions
from posenc.verify.identity.reading import DENSE, Complex, Reader, reader, steps
from posenc.verify.identity.rules import Rule, fit, snap

CLOSE = 1e-3  # tolerance of a gain, a rotated dimension, a frequency
BENT = 0.05  # radians; larger deviations from a straight line are not rounding
GAMMA = 0.4  # of xPos in its authors' code


def identified(subject: Any, convention: str, name: str, head_dim: int | None) -> Identification:
    """Identify a rotation that is called by one convention and reported as another."""
    read, unknown = reader(subject, convention, head_dim)
    facts: dict[str, Any] = {"head_dim": read.head_dim, "measured": {"positions_read": read.top}}
    near = steps(min(read.top, 64))
    matrices = read.feed(torch.eye(read.head_dim), near).transpose(0, 2, 3, 1)
    for faint in (1e-9, 1e-5):  # slow pairs show in elements that most code leaves at exactly 0
        q, k = (structure(side, faint) for side in matrices)
        if not (q.tangled or k.tangled):
            break
    if q.tangled or k.tangled:
        unknown.append(f"pairing and everything after it: dimension {(q.tangled or k.tangled)[0]} mixes with several")
    elif not q.pairs and not k.pairs:
        unknown.append("the rotation: no dimension rotates with the position")
    elif q.pairs != k.pairs:
        unknown.append(f"one pairing: queries rotate {q.words()}, keys {k.words()}")
    else:
        z = np.stack([phasors(side, q.pairs) for side in matrices])
        second = np.stack([phasors(side, [(b, a) for a, b in q.pairs]).conj() for side in matrices])
        if np.abs(z).min() < 1e-6 or np.abs(z - second).max() > CLOSE * np.abs(z).max():
            unknown.append("frequencies: pairs are not only rotated, or some vanish")
        else:
            _fill(replace(read, pairs=q.pairs), _growth(near, z), facts, unknown)
    return Identification(name, "rotation", **facts, unknown=tuple(unknown))


def _fill(read: Reader, rates: Array | None, facts: dict[str, Any], unknown: list[str]) -> None:
    """Add everything that angles and lengths of rotated pairs show."""
    (first, partner), count = read.pairs[0], len(read.pairs)
    is_half = read.pairs == tuple((first + i, partner + i) for i in range(count)) and partner - first >= count
    is_interleaved = read.pairs == tuple((first + 2 * i, first + 2 * i + 1) for i in range(count))
    pairing = "half" if is_half else "interleaved" if is_interleaved else "other"
    facts |= {"pairing": pairing, "rotary_dim": 2 * count, "first_lane": first}
    facts["measured"]["partner"] = partner - first
    short, read = (None, read) if rates is not None else _switch(read)
    end = short or read.top
    pos = steps(end, odd=False)  # powers of two, which no dtype rounds
    z = read.at(pos)
    freqs, _, bent = (np.stack(part) for part in zip(*(speeds(pos, side) for side in z), strict=True))
    if bent.max() > BENT:
        is_counted = np.abs(z - read.at(np.arange(float(len(pos))))).max() < CLOSE
        why = "given positions are ignored, and tokens are counted"
        unknown.append(f"frequencies: {why if is_counted else 'angles are not proportional to the position'}")
        return
    facts["gain"], noise = (None, 0.0) if rates is not None else _gain(z, facts, unknown)
    facts["direction"], sign = _direction(freqs, unknown)
    freq = sign * freqs[0]
    own = 2 * (partner - first) if is_half else 2 * count  # half may have slow pairs that do not move
    rules = [fit(freq, (noise + 5e-7) / pos[-1], width) for width in (own, read.head_dim)]
    rule = next((rule for rule in rules if rule.base is not None and rule.base >= 50), rules[0])
    if short is not None:
        rule = _scaled(read, rule, short)
    if rates is not None:
        rule = _decaying(rule, rates)
    facts |= {"base": rule.base, "scaling": rule.kind, "parameters": rule.parameters}
    facts["measured"]["frequencies"] = freq.tolist()
    unknown += rule.unknown
    facts["first_position"] = place = _first(z[:, 0], freqs, unknown)
    if place is not None:
        facts["precision"], more = precisions(read, freqs[0], rule, place, facts["gain"], end)
        unknown += more


def _gain(z: Complex, facts: dict[str, Any], unknown: list[str]) -> tuple[float | None, float]:
    """Return the factor of both sides, and how far lengths deviate from it."""
    (q, k), spread = np.median(np.abs(z), (1, 2)), float(np.ptp(np.abs(z), (1, 2)).max())
    if spread > 0.02 * q or abs(q - k) > CLOSE * q:
        unknown.append(f"one gain: that of queries is about {q:.6g} and that of keys {k:.6g}, within {spread:.3g}")
        return None, spread
    gain = round(snap(float(q), max(2e-6, spread)), 6)  # float32 has no more digits
    if abs(gain - 1) > CLOSE and facts["rotary_dim"] == facts["head_dim"]:
        unknown.append(f"whether this is a gain of {gain:.6g} or a softmax scale {gain**2:.6g} times as large")
    return gain, spread


def _direction(freqs: Array, unknown: list[str]) -> tuple[str | None, float]:
    """Return the direction, and the sign that makes the frequencies of queries positive."""
    q, k = freqs
    if fast := int((np.abs(q) > 0.9 * np.pi).sum()):
        unknown.append(f"whole rotations: {fast} of {len(q)} pairs make about half a rotation or more per position")
    sign = float(np.sign(q[-1]))  # of the slowest pair
    apart, together = (np.abs(np.exp(1j * t) - 1).max() < CLOSE * np.abs(q).max() for t in (q + k, q - k))
    if apart or together:
        return "opposite" if apart else "clockwise" if sign < 0 else "counterclockwise", sign
    unknown.append("one set of frequencies: those of keys differ; those of queries are reported")
    return None, sign


def _first(start: Complex, freqs: Array, unknown: list[str]) -> float | None:
    """Return the position of position 0's angle, by the fastest pair that shows it up to 64 positions away."""
    clear = int(np.argmax(np.abs(freqs[0]) < np.pi / 64))
    place = float(np.angle(start[0, clear]) / freqs[0, clear])
    place = next((p for p in (round(2 * place) / 2,) if abs(p - place) < CLOSE), place)
    if np.abs(np.exp(1j * place * freqs) - start / np.abs(start)).max() < 2e-4 + 1e-6 * abs(place):
        return place
    unknown.append("the first position: the angles at position 0 belong to no position, or queries and keys differ")
    return None


def _switch(read: Reader) -> tuple[int | None, Reader]:
    """Return the longest text that is rotated like the shortest one, None if all are, and how to call longer ones.

    Some code uses the last position, some counts tokens: if calls can pass positions, both are tried.
    """
    counted = replace(read, whole=True, top=min(read.top, DENSE))
    for each in (read, counted) if REACH[read.convention] == "any" else (counted,):
        n = 4
        with suppress(SubjectError):
            while 2 * n <= each.top:
                if _differ(each, n, 2 * n):
                    return bisect_left(range(2 * n), True, n, key=lambda m: _differ(each, n, m)) - 1, each
                n *= 2
    return None, read


def _differ(read: Reader, short: int, long: int) -> bool:
    """Return whether a longer text rotates the positions of a shorter one by other angles."""
    _, i, j = np.intersect1d(steps(short), steps(long), return_indices=True)
    return bool(np.abs(read.at(steps(short))[:, i] - read.at(steps(long))[:, j]).max() > 1e-5)


def _scaled(read: Reader, rule: Rule, end: int) -> Rule:
    """Return the rule of frequencies that change beyond some length of text."""
    lengths = sorted({min(n, read.top) for n in (end + 1, 3 * end // 2, 2 * end, 4 * end)})
    found = [np.abs(speeds(steps(n), read.at(steps(n))[0])[0]) for n in lengths]
    width, even = rule.width, -2 * np.arange(len(found[0])) / rule.width
    if np.abs(found[-1] / found[0] - 1).max() <= CLOSE:  # two sets of frequencies
        plain = (rule.base or BASES[0]) ** even
        names = {"short_factor": rule.inv_freq, "long_factor": found[-1]}
        factors = {name: [snap(float(f)) for f in plain / freq] for name, freq in names.items()}
        return replace(rule, kind="longrope", parameters={"original_max_len": end, **factors})
    grown, n = fit(found[-1], 5e-7 / lengths[-1], width).base, lengths[-1]
    if rule.base is not None and grown is not None and width > 2:
        factor = snap(((grown / rule.base) ** ((width - 2) / width) - 1) * end / (n - end), 1e-3)
        options: dict[str, Any] = {"width": width, "factor": factor, "original_max_len": end}
        want = np.array([frequencies.dynamic_base(rule.base, seq_len=m, **options) ** even for m in lengths])
        if np.abs(want / found - 1).max() < CLOSE:
            return replace(rule, kind="dynamic", parameters={"original_max_len": end, "factor": factor})
    unknown = (*rule.unknown, f"how frequencies change with the length beyond {end} tokens")
    return replace(rule, kind="dynamic", parameters={"original_max_len": end}, unknown=unknown)


def _growth(pos: Array, z: Complex) -> Array | None:
    """Return the growth of the logarithms of lengths per position, (2, pairs); None if they do not grow."""
    logs = np.log(np.abs(z))
    rates = (logs[:, -1] - logs[:, 0]) / pos[-1]
    off = np.abs(logs - logs[:, :1] - rates[:, None] * pos[:, None]).max()
    return rates if np.ptp(logs, 1).max() > max(1e-4, 10 * off) else None


def _decaying(rule: Rule, rates: Array) -> Rule:
    """Return xPos with the scale_base that predicts the growth of lengths."""
    (q, k), n = rates, rates.shape[1]
    zeta = np.log((np.arange(n) / n + GAMMA) / (1 + GAMMA))
    scale = float((zeta * zeta).sum() / (zeta * q).sum())
    if np.abs(zeta / scale - q).max() > CLOSE * np.abs(q).max():
        return replace(rule, kind="other", unknown=(*rule.unknown, "how rotated pairs change their length"))
    is_inverse = bool(np.abs(q + k).max() < CLOSE * np.abs(q).max())
    found = {"gamma": GAMMA, "scale_base": snap(abs(scale), 1e-3), "decays": scale > 0, "keys_inverse": is_inverse}
    return replace(rule, kind="xpos", parameters=rule.parameters | found)
