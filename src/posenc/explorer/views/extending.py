"""The extension bench: what each way of reading longer texts does to every pair of lanes."""

import numpy as np

from posenc import measure
from posenc.config.values import short
from posenc.explorer.frames import Frame
from posenc.explorer.views.controls import WHO, WIDEST, Control, read_list
from posenc.explorer.views.view import Series, Values, View, axis, code, of_lines
from posenc.measure import Extension

FATES = ("kept", "blended", "divided")  # as numbers: 0, 1, 2
_FASTEST = 7  # positions: more than a turn of the fastest pair
_TURNS = {"beta_slow": 1.0, "beta_fast": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_SAID = {
    "beta_slow": "by_parts, yarn: pairs of fewer turns in training are divided.",
    "beta_fast": "by_parts, yarn: pairs of more turns in training are kept.",
    "low_freq_factor": "llama3: pairs of fewer turns in training are divided.",
    "high_freq_factor": "llama3: pairs of more turns in training are kept.",
}


def _extension(asked: Values) -> Frame:
    chosen = _methods(asked["methods"])
    lengths = asked["original"], asked["target"]
    turns = {name: asked[name] for name in _TURNS}
    found = [measure.extend(asked["head_dim"], asked["base"], *lengths, method, **turns) for method in chosen]
    pair = np.arange(asked["head_dim"] / 2)
    others = "".join(f", {name}={value!r}" for name, value in turns.items() if value != _TURNS[name])
    call = f"measure.extend({asked['head_dim']}, {asked['base']!r}, {lengths[0]}, {lengths[1]}, method{others})"
    lines = [f"found = [{call} for method in {tuple(chosen)}]", "values = [one.divided_by for one in found]"]
    head = {
        "title": f"{lengths[0]:,} positions read as {lengths[1]:,}: what becomes of each pair",
        "x": axis("pair"),
        "y": axis("frequency divided by", log=True),
        "y2": axis("wavelength", "positions per turn", log=True),
        "lines": [
            {"label": f"trained {lengths[0]:,}", "y": lengths[0], "group": "wavelength"},
            {"label": f"target {lengths[1]:,}", "y": lengths[1], "group": "wavelength"},
        ],
        "methods": [_tell(one, lengths[0]) for one in found],
        "fates": list(FATES),
        "notes": [
            f"The factor is {lengths[1] / lengths[0]:.6g}.",
            "Self-Extend, ReRoPE and dual chunk attention change no pair: they map distances, a view of its own.",
        ],
        "code": code(None, lines, "posenc explore"),
    }
    series = [Series(one.method, pair, one.divided_by, group="factor") for one in found]
    series += [Series(one.method, pair, one.wavelength, group="wavelength") for one in found]
    series += [Series(one.method, pair, as_numbers(one.pairs), group="fate") for one in found]
    return of_lines(head, series)


def as_numbers(pairs: tuple[str, ...]) -> np.ndarray:
    """Return what becomes of pairs as places in `FATES`."""
    return np.array([float(FATES.index(fate)) for fate in pairs])


def _tell(one: Extension, trained: int) -> dict[str, object]:
    beyond = 2 * np.pi / one.before > trained  # which never saw a full turn
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
            raise ValueError(f"{WHO}: methods must be all or some of {', '.join(measure.METHODS)}; got {short(name)}.")
    return named


EXTENSION = View(
    "extension",
    "Extension",
    "What every way of reading longer texts does to each pair: by how much it is slowed, and its wavelength then.",
    (
        Control("head_dim", "int", 128, "Lanes that turn.", min=2, max=WIDEST),
        Control("base", "float", 10_000.0, "Of the trained frequencies.", min=1.001, max=1e12, log=True),
        Control("original", "int", 4096, "The trained length.", min=_FASTEST, max=10_000_000, log=True),
        Control("target", "int", 32_768, "The length to reach.", min=_FASTEST, max=10_000_000, log=True),
        *(Control(name, "float", _TURNS[name], _SAID[name], min=0.01, max=1024.0, log=True) for name in _TURNS),
        Control("methods", "text", "all", f"all, or some of {', '.join(measure.METHODS)}.", max=256),
    ),
    _extension,
    None,
)
