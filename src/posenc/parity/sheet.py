"""A configuration arranged for the rules: the values in each place, and those that a library fills in first."""

from dataclasses import dataclass, replace
from typing import Any

from posenc.config import kinds, patterns
from posenc.config.model import Model
from posenc.config.models import LABELS, LOCAL_BASE, SCALES_FULL_ONLY, TYPES
from posenc.parity.rules import Loads, Lookup, Rules

Fields = dict[str, Any]
_OBJECTS = ("rope_scaling", "rope_parameters")


@dataclass(frozen=True)
class Entry:
    """A value of a file and its path; no path if a library has filled it in."""

    value: Any
    path: str | None


@dataclass(frozen=True)
class Sheet:
    """The fields of one kind of layer, by place: own, around, top, parameters and flags.

    Args:
        places: The entries of each place of the rules.
        name: The model's type.
        default_base: The type's base if a file has none; None for an unknown type.
        unread: Keys of objects that the stack does not read.
        unknown: Why the stack's reading is unknown, "" if it is known.
    """

    places: dict[str, dict[str, Entry]]
    name: str
    default_base: float | None
    max_len: int | None
    unread: tuple[str, ...]
    unknown: str = ""


@dataclass(frozen=True)
class Found:
    """The result of a lookup: its value, its path, and whether it is known and no error."""

    value: Any
    path: str | None
    state: str
    rule: Lookup


def lay_out(model: Model, kind: str, main: bool, rules: Rules) -> Sheet:
    """Return the fields of one kind of layer as a stack sees them.

    Args:
        model: The model.
        kind: The kind of layer.
        main: Whether it is the kind that a stack with only one kind reads.
        rules: The stack's rules.
    """
    fields, unknown = model.fields, ""
    present = [key for key in _OBJECTS if isinstance(fields.get(key), dict) and fields[key]]
    readable = [key for key in rules.objects.order if key in present]
    key = readable[0] if readable else None
    around: dict[str, Any] = fields[key] if key else {}
    nested = any(isinstance(value, dict) for value in around.values())
    label = LABELS.get(model.name, {}).get(kind, kind)
    own = (around.get(label) or {}) if nested else around
    if not main and (rules.kinds == "main" or (nested and label not in around)):
        unknown = unknown or f"how {rules.project} rotates layers of {kind}"
    path = f"{key}.{label}" if nested else str(key)
    local = not nested and not main and kind == kinds.SLIDING
    if not nested and ((local and model.name in SCALES_FULL_ONLY) or kind == patterns.UNSCALED):
        own = {}
    top = {name: Entry(value, name) for name, value in fields.items() if not isinstance(value, dict)}
    base = TYPES[model.name].base if model.name in TYPES else None
    if local and model.name in LOCAL_BASE:
        name, base = LOCAL_BASE[model.name]
        top["rope_theta"] = top.pop(name, Entry(None, None))
    entries = {name: Entry(value, f"{path}.{name}") for name, value in own.items()}
    neighbours = {name: Entry(value, f"{key}.{name}") for name, value in around.items() if not isinstance(value, dict)}
    return Sheet(
        places={
            "own": entries,
            "around": neighbours,
            "top": top,
            "parameters": entries if key == "rope_parameters" else {},
            "flags": {},
        },
        name=model.name,
        default_base=base,
        max_len=model.size("max_len"),
        unread=tuple(f"{name}.{inner}" for name in present if name != key for inner in fields[name]),
        unknown=unknown,
    )


def look_up(sheet: Sheet, rule: Lookup, original: Found | None = None) -> Found:
    """Return the result of a rule; `original` is the trained length, on which the factor may depend."""
    for place in rule.at:
        if place == "ratio":
            if original is not None and original.path is not None:
                return _by_word(sheet, rule, "max_len/original", None, original)
            continue
        for key in rule.keys:
            if key not in sheet.places[place]:
                continue
            entry = sheet.places[place][key]
            if (rule.skip == "null" and entry.value is None) or (rule.skip == "falsy" and not entry.value):
                continue
            if entry.value is None and rule.null is not None:
                return _by_word(sheet, rule, rule.null, entry.path, original)
            if rule.whole_fails and isinstance(entry.value, int):
                return Found(None, entry.path, "error", rule)
            return Found(entry.value, entry.path, "read", rule)
    return _by_word(sheet, rule, rule.otherwise, None, original)


def _by_word(sheet: Sheet, rule: Lookup, word: Any, path: str | None, original: Found | None) -> Found:
    """Return the meaning of a word, or the value itself."""
    if word in ("error", "unknown"):
        return Found(None, path, word, rule)
    if word == "class":
        return Found(sheet.default_base, path, "unknown" if sheet.default_base is None else "read", rule)
    if word == "max_len":
        return Found(sheet.max_len, path, "error" if sheet.max_len is None else "read", rule)
    if word == "max_len/original":
        if sheet.max_len is None or original is None or not original.value:
            return Found(None, path, "error", rule)
        return Found(sheet.max_len / original.value, path, "read", rule)
    return Found(word, path, "read", rule)


def fill_in(sheet: Sheet, loads: Loads, loader: Rules, name: str) -> tuple[Sheet, list[Found]]:
    """Return the sheet after a library has loaded the file, and the missing values, for which the file is refused.

    Type, base and trained length are then among the parameters.

    Args:
        sheet: The fields of the file.
        loads: The lookups in which the library's version differs from its rules.
        loader: The library's rules.
        name: The type of rotation in the library's reading.
    """
    own = dict(sheet.places["own"])
    own.setdefault("rope_type", own.get("type", Entry(name, None)))
    rule, lacking = loader.types.get(name), []
    for key, lookup in ({**rule.parameters, **loads.parameters} if rule else {}).items():
        if key not in rule.parameters:  # type: ignore[union-attr]
            continue
        found = look_up(sheet, lookup)
        if found.state == "error" and lookup.otherwise == "error" and found.path is None:
            lacking.append(found)
        if key in ("theta", "original", "partial") and found.state == "read" and found.value is not None:
            own[lookup.keys[0]] = Entry(found.value, found.path)
    return replace(sheet, places={**sheet.places, "own": own, "parameters": own}), lacking


def join(sheet: Sheet, override: Fields, how: str, kind: str) -> Sheet:
    """Return the sheet after parameters are set on an already loaded configuration."""
    own, top, unread = dict(sheet.places["own"]), dict(sheet.places["top"]), list(sheet.unread)
    for name, value in override.items():
        if name not in _OBJECTS:
            top[name] = Entry(value, f"override.{name}")
            continue
        given: Fields = value or {}
        if any(isinstance(inner, dict) for inner in given.values()):
            given = given.get(kind) or {}
        entries = {key: Entry(inner, f"override.{name}.{key}") for key, inner in given.items()}
        if how == "replace":
            unread += [entry.path for entry in own.values() if entry.path and entry.path not in unread]
            own = entries
        else:
            own |= entries
    length = top.get("max_position_embeddings")
    return replace(
        sheet,
        places={**sheet.places, "own": own, "parameters": own, "top": top},
        max_len=length.value if length is not None else sheet.max_len,
        unread=tuple(unread),
    )


def set_flags(sheet: Sheet, flags: Fields, keeps: frozenset[str]) -> Sheet:
    """Return the sheet after a stack's own flags, which override the file.

    Args:
        sheet: The fields of the file.
        flags: Parameters in the words of rope_parameters, and the longest text.
        keeps: Types whose factors stay as in the file, whatever the flags.
    """
    given = {key: Entry(value, f"flags.{key}") for key, value in flags.items()}
    length = given.pop("max_position_embeddings", None)
    top = sheet.places["top"] | ({} if length is None else {"max_position_embeddings": length})
    own = sheet.places["own"]
    shipped = {str(own[word].value) for word in ("rope_type", "type") if word in own}
    kept = bool(shipped & keeps) and bool(given.keys() & {"rope_type", "factor"})
    return replace(
        sheet,
        places={**sheet.places, "own": own | given, "top": top, "flags": given},
        max_len=sheet.max_len if length is None else length.value,
        unknown="how flags join factors that the file stores as a tensor" if kept else sheet.unknown,
    )
