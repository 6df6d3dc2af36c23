"""What was measured of each stack's own code: for each model type, where it departs from the stack's shared rules.

`measured/<stack>-<version>.json` is written by `benchmarks/stacks`, which builds a small model of each type with the
stack's own classes, changes one key at a time (a probe, "yarn.old" for YaRN in rope_scaling), and measures the rotation
of each layer. A probe that is not listed gave what the rules say. A model type that is not listed was not measured.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

from posenc.config import reads
from posenc.config.rotation import Rotary
from posenc.parity.rules import Seen
from posenc.parity.sheet import Entry, Sheet

# "ignored", "meant" (as in transformers 5), "unknown", the stack's error, or the base or share that is used instead
Outcome = str | float
IGNORED, MEANT, UNKNOWN = "ignored", "meant", "unknown"
_TYPE = ("rope_type", "type")
SAME = {"su": "longrope", "mrope": "default", "deepseek_yarn": "yarn"}
_YARN = ("attention_factor", "mscale", "mscale_all_dim", "truncate", "beta_fast", "beta_slow")
_BETA = "llama_4_scaling_beta"  # of the query temperature
_ORIGINAL = reads.LENGTHS[1]


@cache
def table(stack: str, version: str) -> Mapping[str, Any]:
    """Return the measurements of one version of a stack: date, and outcomes by model type; empty if there are none."""
    file = files("posenc.parity").joinpath("measured", f"{stack}-{version}.json")
    found: Mapping[str, Any] = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    return found


def apply(sheet: Sheet, meant: Rotary, found: Mapping[str, Any]) -> tuple[Sheet, list[tuple[str, str, str]]]:
    """Return the sheet as the stack's code for this model type reads it, and notes on keys (path, use, explanation).

    Args:
        sheet: The fields of one kind of layer.
        meant: The meaning of the configuration for this kind.
        found: A table.
    """
    models = found.get("models", {})
    if sheet.name not in models:
        return sheet, [("model_type", UNKNOWN, f"{sheet.name or 'this model type'} was not measured")]
    notes, done = [], set()
    while asked := next((one for one in probes(sheet) if one[0] not in done), None):  # a dropped key changes the rest
        probe, keys = asked
        done.add(probe)
        outcome = models[sheet.name].get(probe)
        if isinstance(outcome, dict):
            outcome = outcome.get(meant.layer_type)
        if outcome is None:
            continue
        paths = [entry.path for key in keys for entry in _entries(sheet, key) if entry.path] or [keys[0]]
        if outcome == UNKNOWN:
            said = f"{sheet.name} rotates neither by the rules nor as without this key"
            notes.append((paths[0], UNKNOWN, said))
        elif outcome == IGNORED:
            sheet = _without(sheet, keys)
            notes += [(path, IGNORED, "") for path in paths]
        elif outcome == MEANT:
            value = {reads.BASES: meant.base, reads.SHARES: meant.rotary_dim / meant.head_dim}.get(keys)
            sheet = _as_meant(sheet, meant) if value is None else _with(sheet, keys, value)
            notes += [(path, "read", "") for path in paths if path != keys[0]]
        elif isinstance(outcome, str):
            notes.append((paths[0], "error", outcome))
        else:
            sheet = _with(sheet, keys, outcome)
            notes += [(path, IGNORED, f"{outcome:g} is used") for path in paths if path != keys[0]]
    return sheet, notes


def probes(sheet: Sheet) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Return the probes that measured the features of a sheet, each with the keys that it is about."""
    own = {key: entry for key, entry in sheet.places["own"].items() if entry.path and entry.value is not None}
    if any(str(entry.path).count(".") == 2 for entry in own.values()):  # an object for each kind of layer
        yield "kinds.new", tuple(own)
        return
    spellings = {_spelling(entry) for entry in own.values()}
    spellings |= {
        "old" for key in reads.BASES for entry in _entries(sheet, key) if entry.path and "." not in entry.path
    }
    if "new" in spellings:
        yield "new", tuple(own)
    if len(spellings) == 1:
        yield f"{spellings.pop()}.only", tuple(own) or ("rope_theta",)
    word = next((own[key] for key in _TYPE if key in own), Entry("default", None))
    name, spelling = SAME.get(str(word.value), str(word.value)), _spelling(word)
    yield f"{name}.{spelling}", _TYPE
    if name != "default":
        stated = any(entry.path for entry in _entries(sheet, _ORIGINAL))
        if _ORIGINAL not in own and (stated or name == "yarn"):
            yield f"{name}.{'top' if stated else 'none'}.{spelling}", (_ORIGINAL,)
        if name == "yarn":
            yield from ((f"yarn.{key}.{spelling}", (key,)) for key in _YARN if key in own)
    if _BETA in own:
        yield "temperature.new", (_BETA,)
    for feature, keys in (("theta", reads.BASES), ("share", reads.SHARES)):
        if feature == "share" and name == "proportional":  # whose own probe has a share
            continue
        places = sorted({_spelling(entry) for key in keys for entry in _entries(sheet, key) if entry.path})
        yield from ((f"{feature}.{place}", keys) for place in (places[-1:] if feature == "theta" else places))
        if not places:
            yield f"{feature}.none", keys


def _spelling(entry: Entry) -> str:
    """Return where a key stands: "new" in rope_parameters, "old" elsewhere."""
    return "new" if "rope_parameters." in (entry.path or "") else "old"


def _entries(sheet: Sheet, key: str) -> list[Entry]:
    return [entries[key] for entries in sheet.places.values() if key in entries]


def _without(sheet: Sheet, keys: tuple[str, ...]) -> Sheet:
    """Return the sheet without what a file says under some keys."""
    places = {
        place: {key: entry for key, entry in entries.items() if key not in keys or entry.path is None}
        for place, entries in sheet.places.items()
    }
    return replace(sheet, places=places)


def _with(sheet: Sheet, keys: tuple[str, ...], value: float) -> Sheet:
    """Return the sheet with the value that a stack uses, under the first of several names of a key."""
    bare = _without(sheet, keys)
    places = {place: entries | {keys[0]: Entry(value, None)} for place, entries in bare.places.items()}
    return replace(bare, places=places, default_base=value if keys is reads.BASES else sheet.default_base)


def _as_meant(sheet: Sheet, meant: Rotary) -> Sheet:
    """Return the sheet with the parameters that the configuration means."""
    lengths = {} if meant.original_max_len is None else {_ORIGINAL: meant.original_max_len}
    values = {"rope_type": meant.rope_type, "factor": meant.factor, "rope_theta": meant.base, **lengths}
    own = {key: Entry(value, None) for key, value in (values | dict(meant.parameters)).items()}
    bare = _without(sheet, (*reads.BASES, *reads.SHARES, *_TYPE))
    return replace(bare, places={**bare.places, "own": own, "parameters": own}, default_base=meant.base)


def note(found: Mapping[str, Any]) -> Seen:
    """Return the source of a measurement."""
    return (
        Seen(f"measured on {found['date']} by benchmarks/stacks", "run") if found else Seen("not measured", "unknown")
    )
