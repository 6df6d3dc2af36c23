"""Why a lane of a position has its number: waves, digits and tables."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from posenc import measure
from posenc.encoding import Encoding
from posenc.encodings import CPVT, Hierarchical
from posenc.explorer.cells.explanation import Explanation, Floats, braced, number, rounded
from posenc.explorer.cells.mixtures import Cell, explain_mixture, explain_series
from posenc.explorer.cells.numbers import SPECIAL
from posenc.explorer.cells.waves import FITS, Wave, find_wave
from posenc.measure.asking import pairs_of

_MOST_AROUND = 4096  # positions that are looked at together
_WHO = "explore"


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


def explain_lane(encoding: Encoding, formula: str, at: Cell, value: float) -> Explanation:
    """Explain a lane of the heat map at one position."""
    why, pos, lane, head = Explanation(formula, value), at.pos, at.lane, at.head
    why.say(f"Row: position p = {number(pos)}. Column: lane {lane}.")
    named = type(encoding).__name__
    if named in SPECIAL:
        SPECIAL[named](why, encoding, pos, lane)
        return why
    if _explain_members(why, encoding, at) or explain_mixture(why, encoding, at):
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
    if _explain_mixed_pair(why, encoding, pos, pair, part, head):
        return why
    wave = wave or _own_wave(encoding, pair, at, pos, head)
    if wave is not None and abs(wave.phase) > math.pi / 2:  # half a turn: a learned factor below zero
        wave = replace(wave, amplitude=-wave.amplitude)
    if wave is None:
        still = bool((measure.by_pair(encoding, [0, 1, 2], head=head)[:, pair] == at).all())
        where = " at all positions: it does not see axis 0" if still else ""
        why.say(f"The pair's numbers are {number(at.real)} (cosine) and {number(at.imag)} (sine){where}.")
        told = {"cos": at.real, "sin": at.imag, "angle": float(np.angle(at))}[part]
        why.end(told, f"Shown is its {'cosine' if part == 'cos' else part}: {number(told)}.")
        return why
    angle = _say_angle(why, encoding, wave, pos)
    why.say(*([f"Its numbers are multiplied by {number(wave.amplitude)}."] if abs(wave.amplitude - 1) > FITS else []))
    if wave.amplitude < 0 and part == "angle":
        why.say(f"A factor below zero adds half a turn: {number(angle)} + π = {number(angle + math.pi)}.")
        angle += math.pi
    told = {
        "cos": wave.amplitude * math.cos(angle),
        "sin": wave.amplitude * math.sin(angle),
        "angle": math.remainder(angle, 2 * math.pi),
    }[part]
    if part == "angle":
        turns = round((angle - told) / (2 * math.pi))
        why.end(told, f"Without whole turns it is {number(angle)} - {braced(turns)} · 2π = {number(told)}.")
    else:
        times = "" if abs(wave.amplitude - 1) < FITS else f"{number(wave.amplitude)} · "
        why.end(told, f"{times}{part}({number(angle)}) = {number(told)}.")
        why.say(rounded(told), *_in_half(wave, pos, part))
    return why


def _explain_mixed_pair(why: Explanation, encoding: Encoding, pos: float, pair: int, part: str, head: int) -> bool:
    """Explain a pair whose cosine and sine are mixtures; say whether it is one."""
    asked = ("cos", "sin") if part == "angle" else (part,)
    found = [explain_series(why, encoding, pos, pair, one, head) for one in asked]
    told = [one for one in found if one is not None]
    if not told:
        return False
    if part != "angle":
        why.end(told[0], f"Shown is its {'cosine' if part == 'cos' else part}: {number(told[0])}.")
        return True
    angle = math.atan2(told[1], told[0])
    why.end(angle, f"Its angle is atan2({number(told[1])}; {number(told[0])}) = {number(angle)}.")
    return True


def _explain_members(why: Explanation, encoding: Encoding, at: Cell) -> bool:
    """Explain a lane that several encodings make, each of its own axis; say whether it is one."""
    if not isinstance(encoding, Hierarchical):
        return False
    told, names, share = [], [], encoding.d_model // len(encoding.members)
    chosen: list[Any] = list(enumerate(encoding.members))
    lane = at.lane
    if encoding.combine == "concat":
        chosen, lane = [chosen[at.lane // share]], at.lane % share
    for axis, member in chosen:
        pos = at.pos if axis == 0 else 0.0
        value = float(measure.heat_map(member, [int(pos)])[0, lane])
        own = explain_lane(member, why.formula, replace(at, pos=pos, lane=lane, head=0), value)
        why.say(f"Axis {axis} has {member.name}, at position {number(pos)}.", *own.steps[1:])
        told.append(value if own.told is None else own.told)
        names.append(braced(value))
    if len(told) > 1:
        why.end(sum(told), f"All axes together: {' + '.join(names)} = {number(sum(told))}.")
        why.say(rounded(sum(told)))
    else:
        why.told = told[0]
    return True


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
    times = "" if abs(wave.amplitude - 1) <= 1e-12 else f"{number(wave.amplitude)} · {braced(plain)} = "
    why.end(told, f"The value is {times}{number(told)}.")
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
    if abs(wave.phase) < FITS:
        part, plain = "sin", math.sin(angle)
    elif abs(wave.phase - math.pi / 2) < FITS:
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
    times = "" if abs(wave.amplitude - 1) < FITS else f"{number(wave.amplitude)} · {number(plain)} = "
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


def _own_wave(encoding: Encoding, pair: int, at: complex, pos: float, head: int) -> Wave | None:
    """Return the wave of a pair whose size changes with the position; None if it is none."""
    try:
        frequencies = measure.frequencies_of(encoding)
    except ValueError:
        return None
    own = frequencies.reshape(-1, *frequencies.shape[-2:])
    frequency = float(own[min(head, len(own) - 1), 0, pair]) if pair < own.shape[-1] else 0.0
    turned = abs(at) * np.exp(1j * pos * frequency)
    return Wave(pair, frequency, abs(at), 0.0) if frequency and abs(at - turned) <= 1e-6 * abs(at) else None


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
