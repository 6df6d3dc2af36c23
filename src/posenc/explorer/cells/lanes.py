"""Why a lane of a position has its number: waves, digits and tables."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from posenc import measure
from posenc.encoding import Encoding
from posenc.encodings import CPVT
from posenc.explorer.cells.explanation import Explanation, Floats, number, rounded
from posenc.explorer.cells.numbers import SPECIAL
from posenc.measure.asking import pairs_of

_PROBES = np.array([0.0, 1.0, 2.0, 3.0, 5.0, 7.0, 11.0, 12.0])  # whole, and early enough for any table
_FITS = 1e-9  # of the amplitude
_MOST_AROUND = 4096  # positions that are looked at together
_WHO = "explore"


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


def lanes_at(encoding: Encoding, pos: NDArray[np.int64], end: int, head: int) -> Floats:
    """Return rows of the heat map; of all positions where what stands beside one counts.

    Raises:
        ValueError: It counts, and there are too many.
    """
    if not looks_around(encoding):
        return measure.heat_map(encoding, pos, head=head)
    if end > _MOST_AROUND:
        raise ValueError(f"{_WHO}: length must be at most {_MOST_AROUND:,} for {encoding.name}, which looks around.")
    found: Floats = measure.heat_map(encoding, np.arange(end), head=head)[pos]
    return found


def looks_around(encoding: Encoding) -> bool:
    """Say whether what an encoding makes of a position depends on those beside it."""
    return any(isinstance(m, CPVT) for m in encoding.modules())


def explain_lane(encoding: Encoding, formula: str, pos: float, lane: int, head: int, value: float) -> Explanation:
    """Explain a lane of the heat map at one position."""
    why = Explanation(formula, value)
    why.say(f"Row: position p = {number(pos)}. Column: lane {lane}.")
    named = type(encoding).__name__
    if named in SPECIAL:
        SPECIAL[named](why, encoding, pos, lane)
        return why
    if _explain_turn(why, encoding, pos, lane, head):
        return why
    if _explain_rest(why, encoding, lane):
        return why
    wave = find_wave(encoding, lambda p: measure.heat_map(encoding, p, head=head)[:, lane], head)
    if wave is None:
        _by_code(why, encoding)
        return why
    _explain_wave(why, encoding, wave, pos)
    return why


def explain_pair(
    encoding: Encoding, formula: str, pos: float, pair: int, part: str, head: int, value: float
) -> Explanation:
    """Explain the cosine, the sine or the angle of one pair."""
    why = Explanation(formula, value)
    why.say(f"Row: position p = {number(pos)}. Column: pair {pair}.")
    wave = find_wave(encoding, lambda p: measure.by_pair(encoding, p, head=head)[:, pair].imag, head)
    at = measure.by_pair(encoding, [int(pos)], head=head)[0, pair]
    if wave is not None and _varies(encoding):
        wave = Wave(wave.index, wave.frequency, abs(at), wave.phase)
    if wave is None:
        why.say(f"The pair's numbers are {number(at.real)} (cosine) and {number(at.imag)} (sine).")
        told = {"cos": at.real, "sin": at.imag, "angle": float(np.angle(at))}[part]
        why.end(told, f"Shown is its {'cosine' if part == 'cos' else part}: {number(told)}.")
        return why
    angle = _say_angle(why, encoding, wave, pos)
    why.say(*([f"Its numbers are multiplied by {number(wave.amplitude)}."] if abs(wave.amplitude - 1) > _FITS else []))
    told = {
        "cos": wave.amplitude * math.cos(angle),
        "sin": wave.amplitude * math.sin(angle),
        "angle": math.remainder(angle, 2 * math.pi),
    }[part]
    if part == "angle":
        why.end(told, f"Without whole turns the angle is {number(told)}.")
    else:
        times = "" if abs(wave.amplitude - 1) < _FITS else f"{number(wave.amplitude)} · "
        why.end(told, f"{times}{part}({number(angle)}) = {number(told)}.")
        why.say(rounded(told), *_in_half(wave, pos, part))
    return why


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
        if np.abs(basis @ (a, b) - seen).max() <= _FITS * max(amplitude, 1e-300) and amplitude > 0:
            found = Wave(index, float(frequency), amplitude, math.atan2(b, a))
            if best is None or abs(found.amplitude - 1) < abs(best.amplitude - 1):
                best = found
    return best


def _explain_turn(why: Explanation, encoding: Any, pos: float, lane: int, head: int) -> bool:
    """Explain a lane of a query that is turned by tables of cosines and sines; say whether it is one."""
    if not hasattr(encoding, "pairing") or not hasattr(encoding, "rotary_dim"):
        return False
    try:
        frequencies = measure.frequencies_of(encoding)
        turned = measure.by_pair(encoding, [int(pos)], head=head)[0]
    except ValueError:
        return False
    first, second = (lanes.tolist() for lanes in pairs_of(encoding))
    if lane not in first and lane not in second:
        why.say(f"Lane {lane} does not turn: {encoding.rotary_dim} of {encoding.head_dim} lanes do.")
        why.end(0.0, "The query that is shown has 0 there, and keeps it.")
        return True
    pair = (first if lane in first else second).index(lane)
    part = "cos" if lane in first else "sin"
    own = frequencies.reshape(-1, *frequencies.shape[-2:])
    wave = Wave(pair, float(own[min(head, len(own) - 1), 0, pair]), abs(turned[pair]), 0.0)
    if abs(turned[pair] - wave.amplitude * np.exp(1j * pos * wave.frequency)) > 1e-6 * max(wave.amplitude, 1e-300):
        return False  # it turns by more than this
    why.say(
        f"Lane {lane} is the {'first' if part == 'cos' else 'second'} of pair {pair}, which turns (1, 0) into "
        "(cos, sin)."
    )
    angle = _say_angle(why, encoding, wave, pos)
    plain = math.cos(angle) if part == "cos" else math.sin(angle)
    why.say(f"{part}({number(angle)}) = {number(plain)}.")
    if abs(wave.amplitude - 1) > 1e-12:
        why.say(f"Turned lanes are multiplied by {number(wave.amplitude)} (gain and amplitude at this position).")
    told = wave.amplitude * plain
    why.end(told, f"The value is {number(told)}.")
    why.say(rounded(told), *_in_half(wave, pos, part))
    return True


def _explain_rest(why: Explanation, encoding: Encoding, lane: int) -> bool:
    """Explain a lane that holds one number at all positions; say whether it does."""
    try:
        seen = measure.heat_map(encoding, [0, 1, 2, 3])[:, lane]
    except (TypeError, ValueError):
        return False
    if np.ptp(seen) != 0 or seen[0] != why.value:
        return False
    if encoding.n_axes > 1:
        why.say(f"A position has {encoding.n_axes} axes; it runs along axis 0 here, and the others stay at 0.")
        why.end(float(seen[0]), f"Lane {lane} does not see axis 0: it has {number(seen[0])} at all positions.")
    else:
        why.end(float(seen[0]), f"Lane {lane} has {number(seen[0])} at all positions.")
    return True


def _explain_wave(why: Explanation, encoding: Encoding, wave: Wave, pos: float) -> None:
    """Explain a lane that holds a sine or cosine."""
    angle = _say_angle(why, encoding, wave, pos)
    if abs(wave.phase) < _FITS:
        part, plain = "sin", math.sin(angle)
    elif abs(wave.phase - math.pi / 2) < _FITS:
        part, plain = "cos", math.cos(angle)
    else:
        part, plain = "", math.sin(angle + wave.phase)
    if part:
        why.say(
            f"The lane holds its {'sine' if part == 'sin' else 'cosine'}: {part}({number(angle)}) = {number(plain)}."
        )
    else:
        why.say(
            f"The lane holds its sine with a phase of {number(wave.phase)}: "
            f"sin({number(angle)} + {number(wave.phase)}) = {number(plain)}."
        )
    told = wave.amplitude * plain
    times = "" if abs(wave.amplitude - 1) < _FITS else f"{number(wave.amplitude)} · {number(plain)} = "
    why.end(told, f"The value is {times}{number(told)}.")
    why.say(rounded(told), *(_in_half(wave, pos, part) if part else []))


def _say_angle(why: Explanation, encoding: Any, wave: Wave, pos: float) -> float:
    """Say frequency and angle, and return the angle."""
    why.say(f"Frequency {wave.index}: {say_frequency(encoding, wave.index, wave.frequency)} radians per position.")
    angle = pos * wave.frequency
    turns = math.floor(abs(angle) / (2 * math.pi))
    said = f"{turns:,} whole turn{'s' * (turns > 1)} and {number(abs(angle) - 2 * math.pi * turns)} radians"
    rest = f", which is {said}" if turns else ""
    why.say(f"Angle = {number(pos)} · {number(wave.frequency)} = {number(angle)} radians{rest}.")
    return angle


def say_frequency(encoding: Any, index: int, frequency: float) -> str:
    """Write base^(-2i/d) with the numbers put in where the frequency is that."""
    base = getattr(encoding, "base", None)
    for name in ("rotary_dim", "d_model", "head_dim"):
        width = getattr(encoding, name, None)
        if isinstance(base, float) and isinstance(width, int):
            plain = base ** (-2 * index / width)
            if math.isclose(plain, frequency, rel_tol=1e-12):
                power = f"-2·{index}/{width}"
                return f"base^(-2i/d) = {number(base)}^({power}) = {number(frequency)}"
    return number(frequency)


def _in_half(wave: Wave, pos: float, part: str) -> list[str]:
    """Say what code gets that forms the angle itself in bfloat16 or float16."""
    told = []
    for name in ("bfloat16", "float16"):
        dtype = getattr(torch, name)
        angle = torch.tensor(pos, dtype=torch.float64).to(dtype) * torch.tensor(wave.frequency).double().to(dtype)
        got = float((angle.cos() if part == "cos" else angle.sin()) * wave.amplitude)
        told.append(f"{number(got)} in {name} (angle {number(float(angle))})")
    return [f"Code that forms the angle in half precision gets {' and '.join(told)}."]


def _varies(encoding: Any) -> bool:
    return hasattr(encoding, "amplitude") and type(encoding).__name__ in ("XPos", "RetNet")


def _by_code(why: Explanation, encoding: Encoding) -> None:
    """Say what there is to say of numbers that come out of a network."""
    learned = sum(p.numel() for p in encoding.parameters())
    if learned:
        why.say(
            f"{encoding.name} computes it from the position with {learned:,} learned numbers, by the formula above."
        )
    else:
        why.say(f"{encoding.name} computes it from the position by the formula above.")
    why.say(f"Its own code gives {number(why.value)}.", rounded(why.value))
