"""Find the precision of positions, frequencies, products and tables: compare the angles with guesses."""

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

FINE = 1.5e-6  # error of cos and sin in float32: closer guesses are equally good
PARTS = ("positions", "frequencies", "products", "cosines and sines")
FINEST_FIRST = (None, "float32", "float16", "bfloat16")
Guess = tuple[tuple[str | None, ...], Complex]


def precisions(
    read: Reader, freq: Array, rule: Rule, first: float, gain: float | None, end: int
) -> tuple[dict[str, dict[str, str]], list[str]]:
    """Return the precision of each part, by dtype of the input, and what cannot be determined."""
    found, unknown, pos = {}, [], steps(end)
    read = replace(read, alone=REACH[read.convention] == "run")  # otherwise an offset may be rounded before it is added
    for fed in ("float32", "bfloat16"):
        try:
            z = read.at(pos, dtype=fed)[0]
        except SubjectError as error:
            unknown.append(f"the result for {fed}: {error.cause.message}")
            continue
        guesses = list(_guesses(pos + first, np.sign(freq[-1]) * rule.inv_freq, freq, fed))
        off, names = _best(z / (gain or np.abs(z)), guesses, fed)
        if not names:
            unknown.append(f"the precision of angles: the best guess is off by {off:.3g} (input {fed})")
            continue
        wide = "float64" if fed == "float32" else "float32 or finer"
        is_hidden = names[2] <= set(SHORT) and names[1] <= {None, "float32"}
        wides = ("float32 or finer", "float32 or finer" if is_hidden else wide, wide, "")
        named = {part: _name(n, w) for part, n, w in zip(PARTS, names, wides, strict=True)}
        found[fed] = {part: name for part, name in named.items() if name}
        if is_hidden and fed == "float32":
            unknown.append(f"whether frequencies are finer: the rounding of products to {named['products']} hides it")
    return found, unknown


def _guesses(where: Array, exact: Array, measured: Array, fed: str) -> Iterator[Guess]:
    """Yield the dtypes of the parts, None for the finest possible, and the resulting rotations."""
    fine = (None, "float32") if fed == "float32" else (None,)
    freqs = [(t, rounded(exact, t)) for t in (*fine, *SHORT)]
    if fed == "float32":
        freqs.append(("float32", rounded(measured, "float32")))  # they can be computed in several orders
    tables = (None, *SHORT) if fed == "float32" else (None,)
    for place, (frequency, freq), dtype, table in product((None, *SHORT), freqs, (*fine, *SHORT), tables):
        with np.errstate(invalid="ignore", over="ignore"):
            z = np.exp(1j * rounded(np.outer(rounded(where, place), freq), dtype))
            yield (place, frequency, dtype, table), rounded(z.real, table) + 1j * rounded(z.imag, table)


def _best(z: Complex, guesses: list[Guess], fed: str) -> tuple[float, list[set[str | None]]]:
    """Return the error of the best guess, and the dtypes of each part in equally good guesses."""
    share = 0.998 if fed == "float32" else 1.0  # float32 may round ties of a half type either way
    off = np.array([np.quantile(np.nan_to_num(np.abs(z - g), nan=np.inf), share, method="lower") for _, g in guesses])
    best, limit = float(off.min()), 20 * FINE if fed == "float32" else 4 * 2.0**-7
    if best > limit:
        return best, []
    close = max(3 * best, FINE) if fed == "float32" else limit
    good = [names for (names, _), o in zip(guesses, off, strict=True) if o <= close]
    found = [set(names) for names in zip(*good, strict=True)]
    if None not in found[1] and found[1] & set(SHORT):
        found[1].discard("float32")  # it was measured and is rounded as well
    return best, found


def _name(names: set[str | None], wide: str) -> str:
    """Return one name for equally good dtypes: the coarsest, or finer."""
    coarsest = max(names, key=FINEST_FIRST.index)
    return wide if coarsest is None else coarsest if len(names) == 1 or not wide else f"{coarsest} or finer"
