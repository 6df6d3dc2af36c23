"""In which precision positions, frequencies and their products are formed: the guess that predicts angles best."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from posenc.verify.guard import SubjectError
from posenc.verify.identity.angles import Turns
from posenc.verify.identity.identify import Identification
from posenc.verify.identity.lines import Fit
from posenc.verify.identity.matrix import Array
from posenc.verify.identity.reading import ODD, Reader, positions

FINE = 1.5e-6  # of cos and sin in float32: what is closer than this is not told apart
PARTS = ("positions", "frequencies", "products")


class Guess(NamedTuple):
    """In which precisions positions, frequencies and products are formed, and the angles that follow."""

    names: tuple[str, str, str]
    angles: Array


def filled(found: Identification, read: Reader, freq: Array, fit: Fit, ends: tuple[int, int]) -> Identification:
    """Fill in precisions, by feeding float32 and bfloat16.

    Args:
        found: What is known.
        read: The subject.
        freq: Signed frequencies as measured.
        fit: The rule that gives them.
        ends: Positions below them are tried, the farther ones first: beyond the second the rule may not hold.
    """
    if found.first_position is None:
        why = "precisions: position 0 is turned by angles of no position, so that none can be predicted"
        return replace(found, unknown=(*found.unknown, why))
    precision, unknown = {}, list(found.unknown)
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype)[6:]
        told: dict[str, str] = {}
        why = ""
        for end in dict.fromkeys(ends):
            try:
                turns = _read(read, end, dtype)
            except SubjectError as error:
                why = f"what it does with {name}: {error.cause.message}"
                continue
            told, why = _told(turns, freq, fit, found.first_position, dtype)
            if told:
                break
        if told:
            precision[name] = told
        if why:
            unknown.append(f"{why} (fed {name})")
    return replace(found, precision=precision, unknown=tuple(unknown))


def _read(read: Reader, end: int, dtype: torch.dtype) -> Turns:
    where = torch.tensor(sorted({*positions(end).tolist(), *(p for p in (259, 511, 1023, 2049, *ODD) if p < end)}))
    if read.turner.reach == "start":
        where = torch.arange(end)
    return read.at(where, dtype)[0]


def _told(turns: Turns, freq: Array, fit: Fit, first: float, dtype: torch.dtype) -> tuple[dict[str, str], str]:
    size = np.abs(turns.first)
    if not np.isfinite(size).all() or not size.all():
        return {}, "precisions: lengths overflow or vanish"
    z, where = turns.first / size, turns.pos + first
    half = dtype != torch.float32
    right = _right(freq, fit)
    guesses = list(_guesses(where, _float32(freq, fit), right, half=half))
    off = np.array([np.abs(z - np.exp(1j * g.angles)).max() for g in guesses])
    best, table = float(off.min()), ""
    limit = 4 * torch.finfo(dtype).eps if half else 20 * FINE
    if best > limit and not half:
        best, table, off = _tabled(turns.first, guesses)
    if best <= limit:
        alive = [g for g, o in zip(guesses, off, strict=True) if o <= (limit if half else max(3 * best, FINE))]
        names = [{g.names[i] for g in alive} for i in range(len(PARTS))]
        if names[1] - {"float64", "float32"} and "float64" not in names[1]:
            names[1] -= {"float32"}  # which is measured; that rounding the rule gives the same is no chance
        told = {part: _name(n) for part, n in zip(PARTS, names, strict=True)}
        return told | ({"cosines and sines": table} if table else {}), _open(names, half=half)
    if (table := _table(turns, where, right) or "") and len(fit.inv_freq) == len(freq):
        return {**_fine(where), "cosines and sines": table}, ""
    if not half:
        allowed = 1e-5 + 4 * 2.0**-24 * np.abs(np.outer(where, freq))
        if any(bool((np.abs(z - np.exp(1j * g.angles)) <= allowed).all()) for g in guesses):
            return _fine(where), "the order in which float32 angles are rounded"
    why = f"in which precision angles are formed: the best guess is off by {best:.3g}"
    return {}, why


def _tabled(first: NDArray[np.complex128], guesses: list[Guess]) -> tuple[float, str, Array]:
    """Return how far the best guess is off where cosines and sines are rounded too, to what, and how far all are."""
    gain = float(np.median(np.abs(first)))
    gain = 1.0 if abs(gain - 1) < 0.02 else gain
    found = []
    for dtype in (torch.bfloat16, torch.float16):
        for size in dict.fromkeys((1.0, gain)):  # the gain may be in the table, or come after it
            tables = [size * np.exp(1j * g.angles) for g in guesses]
            rounded = (_near(t.real, dtype) + 1j * _near(t.imag, dtype) for t in tables)
            off = np.array([np.abs(first * size / gain - t).max() for t in rounded])
            found.append((float(off.min()), str(dtype)[6:], off))
    return min(found, key=lambda one: one[0])


def _fine(where: Array) -> dict[str, str]:
    """Return what is known where angles are right; positions that all types hold tell nothing of their own."""
    most = np.abs(where).max()
    positions = next((name for name, end in (("bfloat16", 257), ("float16", 2049)) if most < end), "float32")
    return dict.fromkeys(PARTS, "float32 or finer") | {"positions": f"{positions} or finer"}


def _open(names: list[set[str]], *, half: bool) -> str:
    """Return why frequencies cannot be told more sharply, empty where they can or where vectors are short."""
    both, short = {"float64", "float32"} <= names[1], names[2] <= {"bfloat16", "float16"}
    if half or not both or not short:
        return ""
    return f"whether frequencies are float32 or finer: rounding of products to {_name(names[2])} hides the difference"


def _float32(freq: Array, fit: Fit) -> list[Array]:
    """Return frequencies as honest code forms them in float32: those measured, and the rule in several orders."""
    right = _right(freq, fit)
    found = [_near(freq, torch.float32), _near(right, torch.float32)]
    if fit.kind == "none" and fit.base is not None and fit.inv_freq[0] == 1 and len(right) > 1:
        x = torch.from_numpy(-np.log(fit.inv_freq) / math.log(fit.base)).float()
        base, log = torch.tensor(fit.base), math.log(fit.base)
        sign = np.sign(right)
        ways = (base**-x, 1 / base**x, torch.exp(-x * log), 1 / torch.exp(x * log))
        found += [sign * way.double().numpy() for way in ways]
    return found


def _right(freq: Array, fit: Fit) -> Array:
    """Return signed frequencies in float64, by the rule where there is one."""
    ruled = fit.kind not in ("lists", "longrope", "other") and len(fit.inv_freq) == len(freq)
    sign = -1.0 if np.median(np.sign(freq)) < 0 else 1.0
    return sign * fit.inv_freq if ruled else freq


def _guesses(where: Array, float32: list[Array], right: Array, *, half: bool) -> Iterator[Guess]:
    """Yield what angles would be, the finest precision first."""
    wide = "float32 or finer" if half else "float64"
    freqs = [(wide, right)]
    if not half:
        freqs += [("float32", way) for way in float32]
    short = [(name, dtype) for name, dtype in (("bfloat16", torch.bfloat16), ("float16", torch.float16))]
    freqs += [(name, _near(right, dtype)) for name, dtype in short]
    places = [(wide if half else "float32 or finer", where)]
    places += [(name, _near(where, dtype)) for name, dtype in short if np.abs(where).max() < 65504 or name[0] == "b"]
    rounds: list[tuple[str, Callable[[Array], Array]]] = [(wide, lambda t: t)]
    if not half:
        rounds.append(("float32", lambda t: _near(t, torch.float32)))
    rounds += [(name, lambda t, dtype=dtype: _near(t, dtype)) for name, dtype in short]  # type: ignore[misc]
    for p_name, p in places:
        for f_name, f in freqs:
            for r_name, r in rounds:
                with np.errstate(over="ignore", invalid="ignore"):
                    angles = r(np.outer(p, f))
                if np.isfinite(angles).all():
                    yield Guess((p_name, f_name, r_name), angles)


def _near(t: Array, dtype: torch.dtype) -> Array:
    found: Array = torch.from_numpy(np.ascontiguousarray(t)).to(dtype).double().numpy()
    return found


def _name(names: set[str]) -> str:
    """Return one name for what guesses that are all good enough say: the coarsest of them, or finer."""
    told = sorted(names, key=_COARSE.index)
    if len(told) == 1:
        return told[0]
    return told[-1] if told[-1] == "float32 or finer" else f"{told[-1]} or finer"


_COARSE = ("float64", "float32 or finer", "float32", "float16", "bfloat16")


def _table(turns: Turns, where: Array, freq: Array) -> str | None:
    """Tell cosines and sines that are rounded though vectors are not."""
    right = np.exp(1j * np.outer(where, freq)) * np.median(np.abs(turns.first))
    for dtype in (torch.bfloat16, torch.float16):
        rounded = _near(right.real, dtype) + 1j * _near(right.imag, dtype)
        near = np.outer(where, np.abs(freq)) < 1e4 * torch.finfo(dtype).eps  # where float32 angles round alike
        off = np.abs(turns.first - rounded)
        fine = np.abs(turns.first - right).max() < 4 * torch.finfo(dtype).eps * max(1.0, float(np.abs(right).max()))
        if near.any() and fine and (off[near] < 1e-5).mean() > 0.9:
            return str(dtype)[6:]
    return None
