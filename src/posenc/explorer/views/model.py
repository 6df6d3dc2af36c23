"""The view of a real model: what each layer does, and the wavelengths of its pairs compared with the trained length."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from posenc import frequencies, inspection, measure
from posenc.explorer import models
from posenc.explorer.frames import Frame
from posenc.explorer.views.controls import Control
from posenc.explorer.views.extending import FATES, as_numbers
from posenc.explorer.views.view import Series, Values, View, axis, code, of_lines
from posenc.languages import tr
from posenc.measure import METHODS

_FACTS = (
    *("encoding", "pairing", "head_dim", "rotary_dim", "base", "rope_type", "factor", "attention_factor"),
    *("score_factor", "original_max_len", "max_len", "window", "critical_dim", "first_negative", "phase_error"),
)


def _model(asked: Values) -> Frame:
    shown = models.open_shown(asked["model"])
    if asked["layer"] >= len(shown.layers):
        last = len(shown.layers) - 1
        raise ValueError(
            tr(
                "explore: layer must be from 0 to {last:d}, the layers of {name:s}; got {got:d}.",
                last=last,
                name=shown.name,
                got=asked["layer"],
            )
        )
    layer = shown.found["layers"][shown.layers[asked["layer"]]]
    head: dict[str, Any] = {
        "kind": "lines",
        "title": tr(
            "{name:s}, layer {layer:d}: {summary:s}", name=shown.name, layer=asked["layer"], summary=_summary(layer)
        ),
        "subject": shown.name,
        "view": "model",
        "of": "A",
        "x": axis(tr("pair")),
        "y": axis(tr("wavelength"), tr("positions"), log=True),
        "layers": [
            {"index": i, "group": place, **_brief(shown.found["layers"][place])} for i, place in enumerate(shown.layers)
        ],
        "counted": shown.counted,
        "facts": {name: layer[name] for name in _FACTS},
        "lines": [],
        "fates": list(FATES),
        "notes": [*(w["message"] for w in shown.found["warnings"])],
    }
    if not shown.counted:
        head["notes"].append(
            tr("The configuration does not give the number of layers; each kind of layer is shown once.")
        )
    if layer["encoding"] != "rope":
        head["notes"].append(
            tr("Layers of kind {kind:s} have no rotation: they use no position.", kind=layer["kind"])
            if layer["encoding"] == "nope"
            else tr("Layers of kind {kind:s} have no rotation: they mix positions in another way.", kind=layer["kind"])
        )
        lines = [f"values = inspection.inspect({_source(shown)!r})['layers'][{shown.layers[asked['layer']]}]"]
        return of_lines(head | {"pairs": None, "code": _code(shown, lines)}, [])
    return _pairs(head, shown, layer, asked)


def _pairs(head: dict[str, Any], shown: models.Shown, layer: Mapping[str, Any], asked: Values) -> Frame:
    """Add the wavelengths before and after the model's own scaling, or after another method that is tried on it."""
    width, trained = layer["rotary_dim"], layer["original_max_len"]
    plain = frequencies.geometric(width // 2, base=layer["base"], width=width)
    place = shown.layers[asked["layer"]]
    lines = [f"layer = inspection.inspect({_source(shown)!r})['layers'][{place}]"]
    if asked["method"] == "own":
        after = np.array(layer["inv_freq"])
        fates, gain = inspection.fates(plain, after, layer["factor"]), layer["attention_factor"]
        lines.append("values = 2 * np.pi / np.array(layer['inv_freq'])")
        reach = layer["max_len"]
    else:
        if not trained:
            raise ValueError(
                tr(
                    "explore: the configuration of {name:s} does not give its trained length, which every method "
                    "needs. Choose method=own.",
                    name=shown.name,
                )
            )
        reach = asked["target"] or max(4 * trained, layer["max_len"] or 0)
        tried = measure.extend(width, float(layer["base"]), trained, reach, asked["method"])
        after, fates, gain = tried.after, tried.pairs, tried.gain
        call = f"{width}, {float(layer['base'])!r}, {trained}, {reach}, {asked['method']!r}"
        lines = [f"values = measure.extend({call}).wavelength"]
    pair = np.arange(float(len(after)))
    with np.errstate(divide="ignore"):
        waves = [np.where(f > 0, 2 * math.pi / f, np.nan) for f in (plain, np.abs(after))]
    never = None if not trained else int((waves[0] > trained).sum())
    head |= {
        "lines": [
            *([{"label": tr("trained {n:,}", n=trained), "y": trained}] if trained else []),
            *([{"label": tr("reaches {n:,}", n=reach), "y": reach}] if reach else []),
        ],
        "pairs": {fate: fates.count(fate) for fate in FATES} | {"never_full_turn": never},
        "gain": gain,
        "code": _code(shown, lines),
    }
    series = [
        Series(tr("before"), pair, waves[0], group="wavelength"),
        Series(tr("after"), pair, waves[1], group="wavelength"),
        Series("fate", pair, as_numbers(fates), group="fate"),
    ]
    if trained:
        series.append(Series(tr("in training"), pair, trained / waves[0], group="turns"))
    if reach:
        series.append(Series(tr("at the longest length"), pair, reach / waves[1], group="turns"))
    return of_lines(head, series)


def _source(shown: models.Shown) -> str:
    return shown.name if shown.bundled else "config.json"


def _code(shown: models.Shown, lines: list[str]) -> dict[str, str]:
    found = code(None, lines, f"posenc inspect {_source(shown)}")
    imports = "import numpy as np\nfrom posenc import inspection, measure\n"
    return {**found, "python": imports + found["python"].split("\n", 1)[1]}


def _brief(layer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts about one layer that the row of layers shows."""
    return {
        "kind": layer["kind"] or "full_attention",
        "does": _summary(layer),
        "encoding": layer["encoding"],
        "window": layer["window"],
        "base": layer["base"],
        "rope_type": layer["rope_type"],
    }


def _summary(layer: Mapping[str, Any]) -> str:
    if layer["encoding"] == "nope":
        return "NoPE"
    if layer["encoding"] != "rope":
        return str(layer["kind"]).replace("_", " ")
    sees, base = _reach(layer["kind"], layer["window"]), layer["base"]
    if layer["rope_type"] == "default":
        return tr("{sees:s}, RoPE base {base:,.10g}", sees=sees, base=base)
    return tr("{sees:s}, RoPE base {base:,.10g}, {scaling:s}", sees=sees, base=base, scaling=layer["rope_type"])


def _reach(kind: str | None, window: int | None) -> str:
    if kind == "full_attention" or kind is None:
        return tr("full")
    if kind == "chunked_attention":
        return tr("chunks of {window:,}", window=window) if window else tr("chunks")
    return tr("sliding of {window:,}", window=window) if window else tr("sliding")


MODEL = View(
    "model",
    "Model",
    "A real model: layers with full attention, with a window, or without position; and the wavelengths of their pairs.",
    (
        Control("model", "text", "llama-3.1-8b", "A bundled model, or the id of an uploaded one.", max=64),
        Control("layer", "int", 0, "The layer.", min=0, max=9999),
        Control(
            "method", "choice", "own", "The model's own scaling, or another method to try on it.", ("own", *METHODS)
        ),
        Control(
            "target",
            "int",
            0,
            "The target length of the method; 0: four times the trained.",
            min=0,
            max=10_000_000,
        ),
    ),
    _model,
    None,
)
