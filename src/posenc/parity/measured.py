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

# An outcome is "ignored", "meant" (as transformers 5 reads it), "unknown", the error that the stack raises, or, for a
# base or a share, the number that is used instead; or one of these for each kind of layer.
Outcome = str | float
IGNORED, MEANT, UNKNOWN = "ignored", "meant", "unknown"
BY = "benchmarks/stacks"  # in the source of a note
Note = tuple[str, str, str]  # the path of a key, its use, and an explanation
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


def apply(sheet: Sheet, meant: Rotary, found: Mapping[str, Any]) -> tuple[Sheet, list[Note]]:
    """Return the sheet as the stack's code for this model type reads it, and notes on keys.

    Args:
        sheet: The fields of one kind of layer.
        meant: The meaning of the configuration for this kind.
        found: A table.
    """
    models = found.get("models", {})
    if sheet.name not in models:
        why = found.get("unbuilt", {}).get(sheet.name)
        said = f"{sheet.name or 'this model type'} was not measured" + (f": {why}" if why else "")
        return sheet, [("model_type", UNKNOWN, said)]
    notes, done = list[Note](), set[str]()
    while asked := next((one for one in probes(sheet) if one[0] not in done), None):  # a dropped key changes the rest
        probe, keys = asked
        feature, _, place = probe.partition(".")
        replaced = place == "none" and any(one.startswith(f"{feature}.") for one in done)
        done.add(probe)
        if replaced:  # by the outcome for the key that stood in the file
            continue
        outcome = models[sheet.name].get(probe)
        outcome = outcome.get(meant.layer_type) if isinstance(outcome, dict) else outcome
        if outcome == UNKNOWN and any(f"{feature}.top." in other for other, _ in probes(sheet)):
            continue  # the probe with the same place of the original length decides
        if outcome is not None:
            sheet, more = _changed(sheet, probe, keys, outcome, meant)
            notes += more
    return sheet, notes


def _changed(sheet: Sheet, probe: str, keys: tuple[str, ...], outcome: Any, meant: Rotary) -> tuple[Sheet, list[Note]]:
    """Return the sheet after the outcome of one probe, and notes on the keys that it is about."""
    spelling = probe if probe == "new" else probe.rpartition(".")[2] if probe.startswith(("theta", "share")) else ""
    spelling = spelling.replace("none", "")
    stated = [entry for key in keys for entry in _entries(sheet, key) if entry.path]
    paths = list(dict.fromkeys(str(entry.path) for entry in stated if spelling in ("", _spelling(entry))))
    first = (paths or [keys[0]])[0]
    if outcome == UNKNOWN:
        return sheet, [(first, UNKNOWN, f"{sheet.name} rotates neither by the rules nor as without this key")]
    if outcome == MEANT:
        value = {reads.BASES: meant.base, reads.SHARES: meant.rotary_dim / meant.head_dim}.get(keys)
        read = _as_meant(sheet, meant) if value is None else _with(sheet, keys, value, spelling)
        return read, [(path, "read", "") for path in paths]
    if outcome == IGNORED:
        without = _plain(sheet) if keys is _TYPE else _without(sheet, keys, spelling)
        return without, [(path, IGNORED, "") for path in paths]
    if isinstance(outcome, str):
        return sheet, [(first, "error", outcome)]
    return _with(sheet, keys, outcome, spelling), [(path, IGNORED, f"{outcome:g} is used") for path in paths]


def probes(sheet: Sheet) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Return the probes that measured the features of a sheet, each with the keys that it is about."""
    own = {key: entry for key, entry in sheet.places["own"].items() if entry.path and entry.value is not None}
    if any(str(entry.path).count(".") == 2 for entry in own.values()):  # an object for each kind of layer
        yield "kinds.new", tuple(own)
        return
    bases = [entry for key in reads.BASES for entry in _entries(sheet, key) if entry.path]
    spellings = {_spelling(entry) for entry in (*own.values(), *bases)}
    if own and "new" in spellings:
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
        yield from ((f"{feature}.{place}", keys) for place in places)
        if not places:
            yield f"{feature}.none", keys


def _spelling(entry: Entry) -> str:
    """Return where a key stands: "new" in rope_parameters, "old" elsewhere."""
    return "new" if "rope_parameters." in (entry.path or "") else "old"


def _entries(sheet: Sheet, key: str) -> list[Entry]:
    return [entries[key] for entries in sheet.places.values() if key in entries]


def _without(sheet: Sheet, keys: tuple[str, ...], spelling: str = "") -> Sheet:
    """Return the sheet without what a file says under some keys, in one spelling or in both."""
    places = {
        place: {
            key: entry
            for key, entry in entries.items()
            if key not in keys or entry.path is None or spelling not in ("", _spelling(entry))
        }
        for place, entries in sheet.places.items()
    }
    return replace(sheet, places=places)


def _plain(sheet: Sheet) -> Sheet:
    """Return the sheet without a scaling; some stacks refuse parameters that name no type."""
    own = {key: entry for key, entry in sheet.places["own"].items() if key not in _TYPE}
    own["rope_type"] = Entry("default", None)
    return replace(sheet, places={**sheet.places, "own": own})


def _with(sheet: Sheet, keys: tuple[str, ...], value: float, spelling: str) -> Sheet:
    """Return the sheet with the value that a stack uses where it does not read a key in one spelling."""
    bare = _without(sheet, keys, spelling)
    if any(entry.path for key in keys for entry in _entries(bare, key)):
        return bare
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
    return Seen(f"{BY} of {found['date']}", "run")
