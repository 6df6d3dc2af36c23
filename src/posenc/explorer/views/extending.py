"""The extension view: what each method of context extension does to every pair of dimensions."""

import numpy as np

from posenc import measure
from posenc.config.values import short
from posenc.explorer.frames import Frame
from posenc.explorer.views.controls import WIDEST, Control, read_list
from posenc.explorer.views.view import Series, Values, View, axis, code, of_lines
from posenc.languages import tr
from posenc.measure import Extension

FATES = ("kept", "blended", "divided")  # as numbers: 0, 1, 2
_FASTEST = 7  # positions: more than one rotation of the fastest pair
_ROTATIONS = {"beta_slow": 1.0, "beta_fast": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_HELP = {
    "beta_slow": "by_parts, yarn: pairs with fewer rotations in training are divided by the factor.",
    "beta_fast": "by_parts, yarn: pairs with more rotations in training are kept.",
    "low_freq_factor": "llama3: pairs with fewer rotations in training are divided by the factor.",
    "high_freq_factor": "llama3: pairs with more rotations in training are kept.",
}


def _extension(asked: Values) -> Frame:
    chosen = _methods(asked["methods"])
    lengths = asked["original"], asked["target"]
    ramps = {name: asked[name] for name in _ROTATIONS}
    found = [measure.extend(asked["head_dim"], asked["base"], *lengths, method, **ramps) for method in chosen]
    pair = np.arange(asked["head_dim"] / 2)
    others = "".join(f", {name}={value!r}" for name, value in ramps.items() if value != _ROTATIONS[name])
    call = f"measure.extend({asked['head_dim']}, {asked['base']!r}, {lengths[0]}, {lengths[1]}, method{others})"
    lines = [f"found = [{call} for method in {tuple(chosen)}]", "values = [one.divided_by for one in found]"]
    head = {
        "title": tr(
            "Extending {trained:,} positions to {target:,}: the change of each pair",
            trained=lengths[0],
            target=lengths[1],
        ),
        "x": axis(tr("pair")),
        "y": axis(tr("frequency divided by"), log=True),
        "y2": axis(tr("wavelength"), tr("positions"), log=True),
        "lines": [
            {"label": tr("trained {n:,}", n=lengths[0]), "y": lengths[0], "group": "wavelength"},
            {"label": tr("target {n:,}", n=lengths[1]), "y": lengths[1], "group": "wavelength"},
        ],
        "methods": [_row(one, lengths[0]) for one in found],
        "fates": list(FATES),
        "notes": [
            tr("The factor is {factor:.6g}.", factor=lengths[1] / lengths[0]),
            tr(
                "Self-Extend, ReRoPE and dual chunk attention change no pair: they map distances; see the view "
                "Distances."
            ),
        ],
        "code": code(None, lines, "posenc explore"),
    }
    series = [Series(one.method, pair, one.divided_by, group="factor") for one in found]
    series += [Series(one.method, pair, one.wavelength, group="wavelength") for one in found]
    series += [Series(one.method, pair, as_numbers(one.pairs), group="fate") for one in found]
    return of_lines(head, series)


def as_numbers(pairs: tuple[str, ...]) -> np.ndarray:
    """Return the fate of each pair as an index into `FATES`."""
    return np.array([float(FATES.index(fate)) for fate in pairs])


def _row(one: Extension, trained: int) -> dict[str, object]:
    beyond = 2 * np.pi / one.before > trained  # pairs without a full rotation in training
    return {
        "method": one.method,
        "says": measure.METHODS[one.method],
        "factor": one.factor,
        "base": one.base,
        "gain": one.gain,
        "score_gain": one.gain**2,
        **{fate: one.pairs.count(fate) for fate in FATES},
        "slow": int(beyond.sum()),
        "slow_kept": int((beyond & (as_numbers(one.pairs) == 0)).sum()),
    }


def _methods(text: str) -> list[str]:
    if text == "all":
        return list(measure.METHODS)
    named = list(dict.fromkeys(read_list("methods", text, len(measure.METHODS))))
    for name in named:
        if name not in measure.METHODS:
            known = ", ".join(measure.METHODS)
            raise ValueError(
                tr("explore: methods must be all or some of {known:s}; got {got:s}.", known=known, got=short(name))
            )
    return named


EXTENSION = View(
    "extension",
    "Extension",
    "What each method of context extension does to every pair: how much it is slowed, and its new wavelength.",
    (
        Control("head_dim", "int", 128, "Dimensions that are rotated.", min=2, max=WIDEST),
        Control("base", "float", 10_000.0, "The base of the trained frequencies.", min=1.001, max=1e12, log=True),
        Control("original", "int", 4096, "The trained length.", min=_FASTEST, max=10_000_000, log=True),
        Control("target", "int", 32_768, "The target length.", min=_FASTEST, max=10_000_000, log=True),
        *(Control(name, "float", _ROTATIONS[name], _HELP[name], min=0.01, max=1024.0, log=True) for name in _ROTATIONS),
        Control("methods", "text", "all", f"all, or some of {', '.join(measure.METHODS)}.", max=256),
    ),
    _extension,
    None,
)
