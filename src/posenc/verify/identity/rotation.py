"""Identification of a rotation: its lanes, its direction and gain, its frequencies and what they depend on."""

from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from posenc.verify.guard import SubjectError, call
from posenc.verify.identity import lengths, precision
from posenc.verify.identity.angles import Turns
from posenc.verify.identity.fit import fit as fitted
from posenc.verify.identity.fit import proportional
from posenc.verify.identity.growth import bounded, decaying, growth
from posenc.verify.identity.identify import Identification
from posenc.verify.identity.matrix import Structure
from posenc.verify.identity.reading import Reader, reader, width_of
from posenc.verify.identity.rounded import Rounded
from posenc.verify.identity.steady import unsteady
from posenc.verify.identity.turner import TURNERS, Turner
from posenc.verify.identity.turns import (
    CLOSE,
    Angles,
    angles_of,
    exact,
    ignored,
    rounded,
    untold,
    with_alias,
    with_direction,
    with_first,
    with_gain,
)


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


def rotation(turner: Turner, convention: str, head_dim: int | None) -> Identification:
    """Identify a rotation.

    Raises:
        SubjectError: No call works, heads are mixed up, or what comes back is random or not linear in x.
    """
    size, free = width_of(turner, head_dim)
    if (cause := unsteady(turner, size)) is not None:
        raise SubjectError(cause)
    read, q, k, undone = reader(turner, size)
    found = Identification(convention, "rotation", head_dim=size, measured={"positions_read": read.top})
    if free:
        found = untold(found, f"head_dim, since others than {size} are taken as well; pass head_dim to read another")
    if undone:
        found = replace(found, measured=found.measured | {"undone": undone})
    if (why := _no_pairs(q, k)) is not None:
        return untold(replace(found, rotary_dim=q.width or None), why)
    found, width = _lanes(found, q, read)
    near = read.text(min(16, read.top))
    if (why := _no_turn(*near)) is not None:
        return untold(found, why)
    return _turned(found, read, near, width)


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
        found = untold(found, "half from interleaved: with one pair they are the same")
    return found, width


def _angles(
    found: Identification, read: Reader, end: int, whole: bool | None
) -> tuple[Identification, Angles | None, Rounded | None]:
    """Return angles that grow with the position, or what is behind those that are rounded; None if nothing is."""
    if (angles := angles_of(read, end, whole)) is not None:
        return found, angles, None
    if ignored(read):
        return untold(found, "frequencies: positions that are given are not used, tokens are counted"), None, None
    if (seen := rounded(read)) is not None:
        return found, *seen
    beyond = "angles beyond position 255: they are not proportional to the position there"
    if (angles := exact(read, end)) is not None:
        return untold(found, beyond), angles, None
    if (angles := angles_of(read, min(end, 256), whole)) is not None:
        return untold(found, beyond), angles, None
    return untold(found, "frequencies: angles are not proportional to the position"), None, None


def _turned(found: Identification, read: Reader, near: tuple[Turns, Turns], width: int) -> Identification:
    """Fill in all that angles and lengths say."""
    grows = growth(*near)
    switch, whole = (None, None) if grows is not None else lengths.switch(read)
    end = read.top if switch is None else switch
    if grows is not None:
        end = bounded(read)
    found, angles, half = _angles(found, read, end, whole)
    if angles is None:
        return found
    found, noise = with_gain(found, angles, grows is not None)
    found, freq = with_direction(found, angles)
    turning = 2 * len(freq)
    off = noise / angles.top if half is None else half.spread
    fit = fitted(freq, off, width, turning if width > turning else read.head_dim)
    fit = fit if half is None else half.roundest(fit, freq)
    if fit.parameters.get("exponent_width", width) > turning:
        fit = proportional(fit, freq, width)
    if switch is not None:
        fit, more = lengths.scaled(read, fit, switch, width, whole=whole, gain=found.gain)
        found = replace(found, measured=found.measured | more)
    if grows is not None:
        fit = decaying(fit, grows)
    found = replace(found, base=fit.base, scaling=fit.kind, parameters=fit.parameters)
    found = untold(with_alias(found, freq), *fit.unknown)
    found = with_first(found, angles)
    found = replace(found, measured=found.measured | {"frequencies": freq.tolist()})
    return precision.filled(found, read, angles.freq, fit, (end, angles.top + 1))
