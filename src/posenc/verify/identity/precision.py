"""In which precision positions, frequencies, their products and tables are formed: the guesses that predict angles."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np

from posenc.verify.engine.precision import SHORT, rounded
from posenc.verify.engine.records import Array
from posenc.verify.families.rotation_calls import REACH
from posenc.verify.guard import SubjectError
from posenc.verify.identity.reading import Complex, Reader, steps
from posenc.verify.identity.rules import Rule

FINE = 1.5e-6  # of cos and sin in float32: closer guesses are all as good
PARTS = ("positions", "frequencies", "products", "cosines and sines")
FINEST_FIRST = (None, "float32", "float16", "bfloat16")
Guess = tuple[tuple[str | None, ...], Complex]


def precisions(
    read: Reader, freq: Array, rule: Rule, first: float, gain: float | None, end: int
) -> tuple[dict[str, dict[str, str]], list[str]]:
    """Return in which precision each part is formed, by the dtype that is fed, and what cannot be read."""
    found, unknown, pos = {}, [], steps(end)
    read = replace(read, alone=REACH[read.convention] == "run")  # else an offset may be rounded before it is added
    for fed in ("float32", "bfloat16"):
        try:
            z = read.at(pos, dtype=fed)[0]
        except SubjectError as error:
            unknown.append(f"what it does with {fed}: {error.cause.message}")
            continue
        guesses = list(_guesses(pos + first, np.sign(freq[-1]) * rule.inv_freq, freq, fed))
        off, names = _best(z / (gain or np.abs(z)), guesses, fed)
        if not names:
            unknown.append(f"in which precision angles are formed: the best guess is off by {off:.3g} (fed {fed})")
            continue
        wide = "float64" if fed == "float32" else "float32 or finer"
        is_hidden = names[2] <= set(SHORT) and names[1] <= {None, "float32"}
        wides = ("float32 or finer", "float32 or finer" if is_hidden else wide, wide, "")
        named = {part: _name(n, w) for part, n, w in zip(PARTS, names, wides, strict=True)}
        found[fed] = {part: name for part, name in named.items() if name}
        if is_hidden and fed == "float32":
            unknown.append(f"whether frequencies are finer: rounding of products to {named['products']} hides it")
    return found, unknown


def _guesses(where: Array, exact: Array, measured: Array, fed: str) -> Iterator[Guess]:
    """Yield the dtypes of the parts, None for those that are as fine as can be, and the rotations that follow."""
    fine = (None, "float32") if fed == "float32" else (None,)
    freqs = [(t, rounded(exact, t)) for t in (*fine, *SHORT)]
    if fed == "float32":
        freqs.append(("float32", rounded(measured, "float32")))  # there are several orders of forming them
    tables = (None, *SHORT) if fed == "float32" else (None,)
    for place, (frequency, freq), dtype, table in product((None, *SHORT), freqs, (*fine, *SHORT), tables):
        with np.errstate(invalid="ignore", over="ignore"):
            z = np.exp(1j * rounded(np.outer(rounded(where, place), freq), dtype))
            yield (place, frequency, dtype, table), rounded(z.real, table) + 1j * rounded(z.imag, table)


def _best(z: Complex, guesses: list[Guess], fed: str) -> tuple[float, list[set[str | None]]]:
    """Return how far the best guess is off, and the dtypes of each part in the guesses that are as good."""
    share = 0.998 if fed == "float32" else 1.0  # where two numbers of a half type are as near, float32 may decide
    off = np.array([np.quantile(np.nan_to_num(np.abs(z - g), nan=np.inf), share, method="lower") for _, g in guesses])
    best, limit = float(off.min()), 20 * FINE if fed == "float32" else 4 * 2.0**-7
    if best > limit:
        return best, []
    close = max(3 * best, FINE) if fed == "float32" else limit
    good = [names for (names, _), o in zip(guesses, off, strict=True) if o <= close]
    found = [set(names) for names in zip(*good, strict=True)]
    if None not in found[1] and found[1] & set(SHORT):
        found[1].discard("float32")  # which is measured, and rounded as well
    return best, found


def _name(names: set[str | None], wide: str) -> str:
    """Return one name for dtypes that are all good enough: the coarsest, or finer."""
    coarsest = max(names, key=FINEST_FIRST.index)
    return wide if coarsest is None else coarsest if len(names) == 1 or not wide else f"{coarsest} or finer"
