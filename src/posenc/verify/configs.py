"""Judge a configuration: find what is wrong or unusual in it, what each spelling would mean, and how to fix it.

This module does not import torch, so `posenc verify-config` answers at once.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from posenc import config
from posenc.config import kinds, places, unrotated, values
from posenc.config.known import known_models
from posenc.config.model import Model, open_model, stacks
from posenc.config.models import TYPES
from posenc.config.notes import two_files
from posenc.config.reading import MAX_BYTES, MAX_DEPTH, Checked, checked
from posenc.verify import unjudged

SCHEMA = 1
Level = Literal["error", "warning", "notice"]
Status = Literal["pass", "fail", "cannot_tell"]
_LEVELS = ("error", "warning", "notice")
_LIMITS = (
    f"a JSON object in UTF-8 of at most {MAX_BYTES:,} bytes and {MAX_DEPTH} levels, with finite numbers and without "
    f"repeated keys"
)
# findings about a model type or a program; the file needs no change
_NOTICES = {"assumed", "clockwise", "dynamic_cache", "learned", "long_unread", "publisher"}
_FIRST = {"misspelt", "unread", "kind_unread"}
# findings about defaults that belong to a model type; without a type nothing is known of them
_OF_TYPE = {"assumed", "theta_missing", "share_unread", "missing", "refused", "unread", "kind_unread", "two_widths"}
_ROPE_KEYS = ("rope_parameters", "rope_scaling", "rope_theta", "rotary_emb_base")
_LONG = 2000  # a finding shows values up to this number of characters whole


@dataclass(frozen=True)
class Finding:
    """A fault or an oddity in a configuration.

    Args:
        code: Its name in `posenc rule`, and in `posenc inspect` if the model still runs.
        level: "error": posenc refuses the file; "warning"; "notice": about the model type, the file needs no change.
        key: The key in question, "(file)" for the whole file.
        value: Its value, None if the key is missing; a long value as a short line.
        allowed: The allowed values, in words.
        meanings: Each way to write the key, and what it would mean.
        fix: What to do.
        message: One sentence that describes the fault.
        layers: The kinds of layers in question; empty for the whole model.
    """

    code: str
    level: Level
    key: str
    value: Any
    allowed: str
    meanings: values.Meanings
    fix: str
    message: str
    layers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Judgement:
    """The findings of a configuration.

    Args:
        status: "pass"; "fail" with findings; "cannot_tell": the model type is unknown, and nothing was found.
        target: The configuration that was judged.
        model_type: Its type, None if it has none.
        layers: How many layers of each kind it has, as far as the file contains it.
        findings: Errors first, then keys that are not read, which may cause others.
        because: Why the status is "cannot_tell".
        not_judged: The parts that were not judged, or that a configuration cannot show.
    """

    status: Status
    target: str
    model_type: str | None
    layers: Mapping[str, int | None] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    because: str = ""
    not_judged: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, strings, lists and dicts, ready for JSON."""
        findings = [asdict(finding) for finding in self.findings]
        for finding in findings:
            finding["meanings"] = [{"spelling": said, "meaning": meant} for said, meant in finding["meanings"]]
            finding["layers"] = list(finding["layers"])
        plain = {"schema": SCHEMA, **vars(self), "layers": dict(self.layers), "findings": findings}
        return {**plain, "not_judged": list(self.not_judged)}


def judge(target: config.Source, *, pairing: config.Pairing | None = None) -> Judgement:
    """Find faults and oddities in a configuration, with the codes of `posenc.inspection`'s warnings.

    Args:
        target: A config.json, a directory that contains one, a mapping, or the name of a model that ships with posenc.
        pairing: Which head dimensions rotate together, for an unknown model type.

    Raises:
        FileNotFoundError: The file does not exist.

    >>> llama = {"model_type": "llama", "head_dim": 64, "num_hidden_layers": 2, "max_position_embeddings": 4096}
    >>> judge(llama | {"rope_theta": 10000.0}).status
    'pass'
    >>> [(f.code, f.key, f.allowed) for f in judge(llama | {"rope_theta": 0.5}).findings]
    [('out_of_range', 'rope_theta', 'above 1 and at most 1e+12')]
    """
    name = "configuration" if not isinstance(target, str | Path) else str(target)
    if isinstance(target, str) and not Path(target).exists() and (known := known_models().get(target)):
        target, pairing = known["config"], pairing or known["pairing"]
    model_type = None
    try:
        source = checked(target)
        if len(parts := stacks(source)) > 1:
            each = {stack: judge(part, pairing=pairing) for stack, part in parts.items()}
            outside = [_odd(one) for one in places.of_stacks(source, parts)]
            return _joined(name, source.get("model_type"), each, outside)
        model_type = source.get("model_type")
        model = open_model(source)
        model_type = model.model_type
        ways = unrotated.ways(model)
        odd = [_odd(one) for one in two_files(source)]
        odd += [_odd(one) for one in places.of_unrotated(model)] if ways is not None else []
    except FileNotFoundError:
        raise
    except (ValueError, TypeError) as error:
        # transformers has its own default for this key, or posenc has no reader for these positions
        if values.about(error).code in ("missing", "elsewhere"):
            return Judgement("cannot_tell", name, model_type, because=str(error))
        return Judgement("fail", name, None, findings=(_refused(error, target),))
    counts: dict[str, int | None] = {}
    found, why, rotations = odd, "", list[config.Rotary]()
    if ways is not None:
        counts = {f"{way.part}: {way.encoding}": way.count for way in ways}
    elif pairing is not None or model.name in TYPES:
        counts, seen, rotations = _look(source, model, pairing)
        found = odd + seen
    else:
        _, seen, rotations = _look(source, model, "half")
        has_rope, why = any(map(model.fields.get, _ROPE_KEYS)), _unknown(model)
        found = odd + [one for one in seen if has_rope and one.code not in _OF_TYPE]
    found.sort(key=lambda one: (_LEVELS.index(one.level), one.code not in _FIRST))
    status: Status = "fail" if found else "cannot_tell" if why else "pass"
    left = unjudged.of_model(model, rotations)
    return Judgement(status, name, model.model_type, counts, tuple(found), why, left)


def _joined(name: str, model_type: str | None, each: Mapping[str, Judgement], found: list[Finding]) -> Judgement:
    """Return one judgement of an encoder and a decoder; `found` has the findings outside of both."""
    layers = {f"{stack} {kind}": count for stack, one in each.items() for kind, count in one.layers.items()}
    for stack, judged in each.items():
        for one in judged.findings:
            own = tuple(f"{stack} {kind}" for kind in one.layers)
            found.append(replace(one, key=f"{stack}.{one.key}", layers=own, message=f"{stack}: {one.message}"))
    because = " ".join(f"{stack}: {one.because}" for stack, one in each.items() if one.because)
    is_open = any(one.status == "cannot_tell" for one in each.values())
    status: Status = "fail" if found else "cannot_tell" if is_open else "pass"
    not_judged = tuple(dict.fromkeys(line for one in each.values() for line in one.not_judged))
    return Judgement(status, name, model_type, layers, tuple(found), because, not_judged)


def _look(
    source: Checked, model: Model, pairing: config.Pairing | None
) -> tuple[dict[str, int | None], list[Finding], list[config.Rotary]]:
    """Read each kind of layer, and return how many there are, the findings, and the rotations."""
    found: list[Finding] = []
    counts: dict[str, int | None] = {}
    try:
        try:
            counts = dict(config.layer_types(source))
        except ValueError as error:
            if values.about(error).code != "missing":
                raise
            counts = dict.fromkeys(kinds.layers(model, unknown=24))  # the file does not contain their number or order
    except (ValueError, TypeError) as error:
        return {}, [_refused(error, source)], []
    rotations = []
    for kind in filter(kinds.rotates, counts):
        try:
            rotations.append(config.rotary(source, kind, pairing=pairing))
            seen = [_odd(one) for one in rotations[-1].warnings]
        except (ValueError, TypeError) as error:
            seen = [_refused(error, source)]
        found += [replace(one, layers=(kind,)) for one in seen]
    return counts, [*_merged(found, set(filter(kinds.rotates, counts)))], rotations


def _merged(found: Iterable[Finding], all_kinds: set[str]) -> Iterator[Finding]:
    """Yield each finding once, with all its kinds of layers, which the message names unless all kinds have it."""
    several: dict[str, list[Finding]] = {}
    for one in found:
        several.setdefault(repr((one.code, one.key, one.value, one.allowed)), []).append(one)
    for same in several.values():
        layers, message = tuple(kind for one in same for kind in one.layers), same[0].message
        unsaid = [kind for kind in layers if kind not in message]
        if unsaid and not set(layers) >= all_kinds:
            message = f"{', '.join(unsaid)}: {message}"
        yield replace(same[0], layers=layers, message=message)


def _odd(one: config.ConfigWarning) -> Finding:
    level: Level = "notice" if one.code in _NOTICES else "warning"
    return Finding(one.code, level, one.key, _shown(one.value), one.allowed, one.meanings, one.fix, one.message)


def _refused(error: Exception, source: object) -> Finding:
    """Return the finding of a reading error, with its parts taken from the error or from the file."""
    said = values.about(error)
    if said.code == "refused" and str(error).startswith("config.read:"):
        key, value = _not_finite(source)
        allowed, fix = _LIMITS, "Correct the file until a strict JSON parser accepts it."
        if value is not None:
            allowed, fix = "a finite number", f"Write the intended number, or remove {key}."
        said = values.About("unreadable", key, value, allowed, fix=fix)
    fix = said.fix or (f"Write {said.key}: {said.allowed}." if said.key else str(error).rsplit("; ", 1)[-1])
    meanings = said.meanings or (
        ("left out", "programs share no default")
        if said.value is None
        else (values.short(said.value), "posenc refuses it; another program may accept it and compute something else"),
    )
    allowed, key = said.allowed or "see the message", said.key or "(file)"
    return Finding(said.code, "error", key, _shown(said.value), allowed, meanings, fix, str(error))


def _not_finite(source: object) -> tuple[str, Any]:
    """Return the key and the text of the first number that is not finite in a file that can be parsed."""
    try:
        path = Path(str(source))
        text = (path / "config.json" if path.is_dir() else path).read_text("utf-8")
        stack = [("", json.loads(text) if len(text) <= MAX_BYTES else None)]
    except (OSError, ValueError, RecursionError):
        return "", None
    while stack:
        key, value = stack.pop()
        if isinstance(value, float) and not math.isfinite(value):
            return key, str(value)
        inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        stack += [(f"{key}.{name}"[:512].lstrip("."), one) for name, one in inner]
    return "", None


def _unknown(model: Model) -> str:
    if model.native:
        return (
            f"{model.native} is the format of Mistral's and Meta's own code, and the pairing belongs to the weights. "
            f"Pass --pairing interleaved for the weights next to it (consolidated), or half for converted ones."
        )
    name = values.short(model.model_type)
    near = ", ".join(get_close_matches(model.model_type[:64], TYPES, n=3)) if model.model_type else ""
    return (
        f"model_type {name} is unknown{f' (similar: {near})' if near else ''}: no file defines its pairing and its "
        f"defaults. Pass --pairing half or --pairing interleaved."
    )


def _shown(value: Any) -> Any:
    """Return a value ready for JSON, or as one short line if it is long."""
    if isinstance(value, int | float) and not values.finite(value):
        return values.short(value)
    return value if len(repr(value)) <= _LONG else values.short(value)
