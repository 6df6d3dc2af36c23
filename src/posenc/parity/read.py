"""One interpreter of all rules: how one version of a stack reads a configuration."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from posenc.config import reads
from posenc.config.model import Model, open_model
from posenc.config.reading import Checked
from posenc.config.rotation import Rotary
from posenc.parity import measured
from posenc.parity import sheet as sheets
from posenc.parity.evaluate import Rotation, score_factor
from posenc.parity.loading import known
from posenc.parity.rules import LATENT, NAMES, Lookup, Rules, Seen, TypeRule
from posenc.parity.sheet import Entry, Found, Sheet

_TOP = {*reads.BASES, *reads.LOCAL_BASES, *reads.SHARES, *reads.LENGTHS}
_PLAIN = {"default", "proportional"}


@dataclass(frozen=True)
class Key:
    """How a stack uses a key of a file: read, ignored, differs, error or unknown; with an explanation."""

    key: str
    use: str
    source: str
    said: str = ""


@dataclass(frozen=True)
class Reading:
    """How a stack reads one kind of layer; `rotation` and `score` are None for an error or an unknown result."""

    rules: Rules
    kind: str
    rotation: Rotation | None
    score: float | None
    max_len: int | None
    keys: tuple[Key, ...]

    @property
    def state(self) -> str:
        """Return error or unknown if the rotation is not known or a length is refused, else read."""
        uses = {key.use for key in self.keys}
        return next((use for use in ("error", "unknown") if use in uses), "read")


@dataclass
class _Reader:
    """Record how each key is used while the rules are applied."""

    rules: Rules
    sheet: Sheet
    meant: Mapping[str, Any]
    uses: dict[str, Key] = field(default_factory=dict)
    found: dict[str, Found] = field(default_factory=dict)

    def note(self, path: str, use: str, note: Seen, said: str = "") -> None:
        """Record how a key is used; the first record of a key stays."""
        self.uses.setdefault(path, Key(path, use, self.rules.source(note), said))

    def find(self, name: str, rule: Lookup, original: Found | None = None) -> Found:
        """Look up a parameter, and record its key."""
        found = self.found[name] = sheets.look_up(self.sheet, rule, original)
        path = found.path or NAMES.get(name, name)
        if found.state in ("error", "unknown"):
            self.note(path, found.state, rule.note, rule.said)
        elif name in self.meant and _differs(found.value, self.meant[name]):
            if found.path is not None or not self._stands(rule):
                self.note(path, "differs", rule.note, f"{_short(found.value)} instead of {_short(self.meant[name])}")
        elif found.path is not None:
            self.note(path, "read", rule.note)
        return found

    def _stands(self, rule: Lookup) -> bool:
        """Return whether the file has the key in a place that the stack does not read."""
        return any(key in entries for entries in self.sheet.places.values() for key in rule.keys)


def read(source: Checked, override: sheets.Fields, rules: Rules, meant: Rotary, *, main: bool, length: int | None,
         flags: Mapping[str, Any] | None = None, found: Mapping[str, Any] | None = None) -> Reading:  # fmt: skip
    """Return how a stack reads one kind of layer.

    Args:
        source: The configuration, without the override.
        override: Fields from the command line.
        rules: The stack's rules.
        meant: The configuration's meaning for the kind, including the override.
        main: Whether the kind stands for all kinds in a stack that supports only one.
        length: The number of positions that the stack must serve; None for its own choice.
        flags: The stack's own flags, as `flags.Given` holds them; other kinds use only the length.
        found: What was measured of the stack; None for the table of its version.
    """
    kind, model = meant.layer_type, open_model(source)
    inner = next((override[key] for key, _ in model.outer if isinstance(override.get(key), dict)), None)
    how = rules.override.join if inner is None else rules.override.inside
    given = override if inner is None else inner
    if rules.override.when == "file" and given:
        fields = merged(model.fields, given) if how == "merge" else {**model.fields, **given}
        model = replace(model, fields=fields)
    sheet = sheets.lay_out(model, kind, main, rules)
    lacking: list[Found] = []
    if rules.loads is not None:
        loader = known()[rules.loads.by]
        sheet, lacking = sheets.fill_in(sheet, rules.loads, loader, _name(loader, sheet, None)[0] or "default")
    if rules.override.when == "loaded" and given:
        sheet = sheets.join(sheet, given, how, kind)
    if flags:
        reached = dict(flags) if main else {key: flags[key] for key in reads.LENGTHS[:1] if key in flags}
        sheet = sheets.set_flags(sheet, reached, rules.override.keeps)
    found = measured.table(rules.stack, rules.version) if found is None else found
    sheet, notes = measured.apply(sheet, meant, found) if found else (sheet, [])
    reader = _Reader(rules, sheet, _meant(meant))
    for path, use, said in notes:
        reader.note(path, use, measured.note(found), said)
    for one in lacking:
        reader.note(one.rule.keys[0], "error", one.rule.note, one.rule.said)
    if given and how == "unknown":
        reader.note("override", "unknown", rules.override.note, "how parameters join those of the file")
    if sheet.unknown:
        reader.note(_object(model), "unknown", rules.objects.note, sheet.unknown)
    return _read(reader, meant, length)


def _object(model: Model) -> str:
    """Return the key of the file's object of parameters."""
    return next((key for key in reads.SCALINGS if model.fields.get(key)), "layer_types")


def _read(reader: _Reader, meant: Rotary, length: int | None) -> Reading:
    rules, sheet = reader.rules, reader.sheet
    latent = meant.scales_scores
    name, entry = _name(rules, sheet, latent)
    rule = _type(reader, name, entry, meant)
    rotation, parameters = None, dict[str, Any]()
    if rule is not None:
        parameters = _parameters(reader, rule)
        if not _failed(reader):
            rotation = _computable(reader, rule, entry, lambda: _rotation(rule, parameters, sheet, meant, length))
    score = None if rotation is None else _score(reader, parameters.get("factor"), latent, name)
    max_len = _admitted(reader, name, length)
    _note_rest(reader, rule)
    return Reading(rules, meant.layer_type, rotation, score, max_len, tuple(reader.uses.values()))


def _name(rules: Rules, sheet: Sheet, latent: bool | None) -> tuple[str | None, Entry | None]:
    """Return the type of rotation in the stack's words, and the entry that names it; no type if two disagree."""
    words, own = rules.words, sheet.places["own"]
    order = words.order
    if sheet.name in words.first_by_model:
        order = ("type", *(word for word in order if word != "type"))
    entry = next((own[word] for word in order if word in own and own[word].value is not None), None)
    if words.conflict and {"rope_type", "type"} <= own.keys():
        new, old = str(own["rope_type"].value), str(own["type"].value)
        if new != old and (old, new) not in words.agree:
            return None, own["rope_type"]
    name = str(entry.value) if entry is not None else words.otherwise if own else "default"
    name = words.aliases.get(name, name)
    for change in words.becomes:
        if name in change.types and _is_of(change.models, sheet.name, latent):
            return change.name, entry
    return name, entry


def _type(reader: _Reader, name: str | None, entry: Entry | None, meant: Rotary) -> TypeRule | None:
    """Return the rule of a type; record the word that names it."""
    words, path = reader.rules.words, "rope_type" if entry is None or entry.path is None else entry.path
    if name is None or name == "error":
        said = "type and rope_type disagree" if name is None else "no type is named"
        reader.note(path, "error", words.note, said)
        return None
    rule = reader.rules.types.get(name)
    if rule is None or rule.formula in ("error", "unknown"):
        state = reader.rules.other_type if rule is None else rule.formula
        reader.note(path, state, words.note if rule is None else rule.note, rule.said if rule else f"no type {name!r}")
        return None
    if entry is not None and entry.path is not None:
        alike = rule.formula == FORMULA_OF.get(meant.rope_type, meant.rope_type)
        reader.note(path, "read" if alike else "differs", words.note, "" if alike else f"{rule.formula} is computed")
    return rule


def _parameters(reader: _Reader, rule: TypeRule) -> dict[str, Any]:
    """Resolve a type's parameters, the trained length first, since the factor may depend on it."""
    original = None
    if "original" in rule.parameters:
        original = reader.find("original", rule.parameters["original"])
    found = {key: reader.find(key, one, original).value for key, one in rule.parameters.items() if key != "original"}
    if original is not None:
        found["original"] = original.value
    if found.get("extrapolation_factor") not in (None, 1, 1.0, -1):
        reader.note("extrapolation_factor", "unknown", rule.note, "posenc has no formula with it")
    return found


def _failed(reader: _Reader) -> bool:
    return any(key.use in ("error", "unknown") for key in reader.uses.values())


def _computable(reader: _Reader, rule: TypeRule, entry: Entry | None, make: Callable[[], Rotation]) -> Rotation | None:
    """Make a rotation of values that the meaning may not have checked; None if no formula accepts them."""
    said = "a frequency is not finite"
    try:
        rotation = make()
        if np.isfinite([*rotation.inv_freq(1), rotation.gains(1)]).all():
            return rotation
    except (ArithmeticError, TypeError, ValueError) as error:
        said = f"{type(error).__name__}: {error}"[:120]
    path = "rope_type" if entry is None or entry.path is None else entry.path
    reader.uses[path] = Key(path, "error", reader.rules.source(rule.note), said)
    return None


def _rotation(rule: TypeRule, found: dict[str, Any], sheet: Sheet, meant: Rotary, length: int | None) -> Rotation:
    width, share, base = meant.rotary_dim, found.get("partial"), float(found["theta"])
    if not base > 0:
        raise ValueError(f"the base {base:g} gives no frequencies")
    declared = sheet.places["top"].get("original_max_position_embeddings", Entry(None, None)).value
    stated = any(key in entries for entries in sheet.places.values() for key in reads.SHARES)
    if meant.rotary_side == "first" and rule.formula != "proportional" and stated:
        width = int(meant.head_dim * (1.0 if share is None else share))
    return Rotation(
        formula=rule.formula,
        width=width,
        base=base,
        max_len=sheet.max_len,
        parameters={**found, "share": 1.0 if share is None else share},
        gain=rule.gain,
        times=rule.times,
        lists=rule.lists,
        length=rule.length,
        trained=rule.trained,
        served=length or (declared if rule.served == "original" and declared else sheet.max_len),
    )


def _score(reader: _Reader, factor: Any, latent: bool, name: str | None) -> float | None:
    """Return the factor of all scores, by the first rule for the model; None if it is unknown."""
    own = reader.sheet.places["own"]
    rule = next((one for one in reader.rules.scores if _is_of(one.models, reader.sheet.name, latent)), None)
    if rule is None or name == "default":
        return 1.0
    if any(key in own and own[key].value == value for key, value in rule.unless.items()):
        return 1.0
    entry = own.get(str(rule.weight), Entry(None, None))
    weight = entry.value if isinstance(rule.weight, str) else rule.weight
    if not weight:
        return 1.0
    path = entry.path or str(rule.weight)
    if rule.unknown:
        reader.uses[path] = Key(path, "unknown", reader.rules.source(rule.note), "whether it multiplies all scores")
    elif entry.path is not None:
        reader.note(path, "read", rule.note)
    return None if rule.unknown else score_factor(factor, weight)


def _is_of(models: str | frozenset[str], name: str, latent: bool | None) -> bool:
    return bool(latent) if models == LATENT else name in models


def _admitted(reader: _Reader, name: str | None, length: int | None) -> int | None:
    """Return the longest text that the stack admits; record a length that it refuses."""
    rule, max_len = reader.rules.length, reader.sheet.max_len
    if rule.take != "max_len" or max_len is None:
        return None
    own = reader.sheet.places["own"]
    factor = own["factor"].value if "factor" in own else None
    grows = name in rule.times_factor and rule.unless_given not in own and reader.sheet.name not in rule.not_in
    if grows and isinstance(factor, int | float):
        max_len = int(max_len * factor)
    if length is not None and length > max_len and rule.gate == "refuses":
        entry = reader.sheet.places["top"].get("max_position_embeddings")
        path = entry.path if entry is not None and entry.path else "max_position_embeddings"
        reader.note(path, "error", rule.note, f"{length} positions are refused, at most {max_len} are admitted")
    return max_len


def _note_rest(reader: _Reader, rule: TypeRule | None) -> None:
    """Record every other key of the file about positions as unread."""
    places, note = reader.sheet.places, reader.rules.objects.note
    for entries in (places["own"], places["around"], places["top"]):
        for key, entry in entries.items():
            if entry.path is None or entry.value is None or (entries is places["top"] and key not in _TOP):
                continue
            name = next((name for name in reader.found if key in reader.found[name].rule.keys), None)
            if key == "max_position_embeddings":
                reader.note(entry.path, "read", reader.rules.length.note)
            elif name is None:
                reader.note(entry.path, "ignored", note if rule is None else rule.note)
            else:
                found = reader.found[name]
                reader.note(entry.path, "ignored", found.rule.note, f"{_short(found.value)} is used")
    for path in reader.sheet.unread:
        reader.note(path, "unknown" if reader.sheet.unknown else "ignored", note)


FORMULA_OF = {"default": "plain", "ntk_alpha": "ntk"}


def _meant(meant: Rotary) -> dict[str, Any]:
    """Return the parameters of the configuration's meaning, by the names of the rules."""
    own = {"theta": meant.base, **meant.parameters}
    if meant.rope_type not in _PLAIN:
        own["factor"] = meant.factor
    if meant.rope_type in ("yarn", "llama3", "longrope"):
        own["original"] = meant.original_max_len
    own.pop("mscale", None), own.pop("mscale_all_dim", None)
    return own


def _differs(value: Any, meant: Any) -> bool:
    if isinstance(value, list | tuple) and isinstance(meant, list | tuple):
        return list(value) != list(meant)
    return bool(value != meant)


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else f"{value}"[:40]


def merged(fields: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields with an override joined key by key, also in nested objects."""
    out = dict(fields)
    for key, value in override.items():
        mine = out.get(key)
        out[key] = merged(mine, value) if isinstance(mine, dict) and isinstance(value, dict) else value
    return out
