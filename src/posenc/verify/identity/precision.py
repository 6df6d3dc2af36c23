"""In which precision positions, frequencies, their products and tables are formed: the guesses that predict angles."""

from collections.abc import Iterator
from itertools import product

import numpy as np

from posenc.verify.engine.precision import SHORT, rounded
from posenc.verify.engine.records import Array
from posenc.verify.guard import SubjectError
from posenc.verify.identity.reading import Complex, Reader, steps
from posenc.verify.identity.rules import Rule

FINE = 1.5e-6  # of cos and sin in float32: closer guesses are all as good
PARTS = ("positions", "frequencies", "products")
FINEST_FIRST = ("float64", "float32 or finer", "float32", "float16", "bfloat16")
RULED = ("none", "linear", "ntk", "proportional", "yarn", "llama3", "dynamic", "xpos")  # whose numbers are exact
Guess = tuple[tuple[str, str, str, str], Complex]


def precisions(
    read: Reader, freq: Array, rule: Rule, first: float, gain: float | None, end: int
) -> tuple[dict[str, dict[str, str]], list[str]]:
    """Return in which precision each part is formed, by the dtype that is fed, and what cannot be read."""
    found, unknown, pos = {}, [], steps(end)
    exact = np.sign(freq[-1]) * rule.inv_freq if rule.kind in RULED else freq
    for dtype in ("float32", "bfloat16"):
        try:
            z = read.at(pos, dtype=dtype)[0]
        except SubjectError as error:
            unknown.append(f"what it does with {dtype}: {error.cause.message}")
            continue
        is_half = dtype == "bfloat16"
        best, names = _best(z / (gain or np.abs(z)), list(_guesses(pos + first, exact, freq, is_half)), is_half)
        if not names:
            unknown.append(f"in which precision angles are formed: the best guess is off by {best:.3g} (fed {dtype})")
            continue
        found[dtype] = {part: _name(n) for part, n in zip(PARTS, names, strict=False)}
        if names[3] < set(SHORT):
            found[dtype]["cosines and sines"] = _name(names[3])
        if {"float64", "float32"} <= names[1] and names[2] <= set(SHORT):
            unknown.append(
                f"whether frequencies are float32 or finer: rounding of products to {min(names[2])} hides it"
            )
    return found, unknown


def _guesses(where: Array, exact: Array, measured: Array, is_half: bool) -> Iterator[Guess]:
    """Yield the dtypes of the parts, and the rotations that follow."""
    wide = "float32 or finer" if is_half else "float64"
    places = [("float32 or finer", where), *((t, rounded(where, t)) for t in SHORT)]
    freqs = [(wide, exact), *((t, rounded(exact, t)) for t in SHORT)]
    products, tables = [wide, *SHORT], [wide]
    if not is_half:
        freqs += [("float32", rounded(f, "float32")) for f in (measured, exact)]
        products, tables = [*products, "float32"], [wide, *SHORT]
    for (place, pos), (frequency, freq), dtype in product(places, freqs, products):
        with np.errstate(invalid="ignore", over="ignore"):
            angles = np.outer(pos, freq)
            z = np.exp(1j * (angles if dtype == wide else rounded(angles, dtype)))
            for table in tables:
                yield (place, frequency, dtype, table), z if table == wide else _rounded(z, table)


def _rounded(z: Complex, dtype: str) -> Complex:
    return rounded(z.real, dtype) + 1j * rounded(z.imag, dtype)


def _best(z: Complex, guesses: list[Guess], is_half: bool) -> tuple[float, list[set[str]]]:
    """Return how far the best guess is off, and the dtypes of each part in the guesses that are as good."""
    share = 1.0 if is_half else 0.998  # where two numbers of a half type are as near, float32 may decide otherwise
    off = np.array([np.quantile(np.nan_to_num(np.abs(z - g), nan=np.inf), share, method="lower") for _, g in guesses])
    limit, best = 4 * 2.0**-7 if is_half else 20 * FINE, float(off.min())
    good = [
        names for (names, _), o in zip(guesses, off, strict=True) if o <= (limit if is_half else max(3 * best, FINE))
    ]
    if best > limit:
        return best, []
    found = [{names[part] for names in good} for part in range(4)]
    if found[1] & set(SHORT) and "float64" not in found[1]:
        found[1] -= {"float32"}  # which is measured; that rounding the rule gives the same is no chance
    return best, found


def _name(names: set[str]) -> str:
    """Return one name for dtypes that are all good enough: the coarsest, or finer."""
    coarsest = max(names, key=FINEST_FIRST.index)
    return coarsest if len(names) == 1 or coarsest == "float32 or finer" else f"{coarsest} or finer"
