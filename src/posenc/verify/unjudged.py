"""What a judgement of a configuration does not cover, in a few lines that stand next to its result."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from posenc import config
from posenc.config import kinds, reads, unrotated, values
from posenc.config.axes import has_axes
from posenc.config.model import Model
from posenc.config.models import TYPES

PAIRING = "the pairing of the weights: a configuration does not say it"
_ABOUT_POSITIONS = re.compile(r"rope|rotary|position|theta|alibi|relative_att")
_JUDGED = {
    *(*reads.BASES, *reads.LOCAL_BASES, *reads.SHARES, *reads.WIDTHS, *reads.SCALINGS, *reads.LENGTHS, *reads.INSIDE),
    *reads.ELSEWHERE,
}
_MOST = 6  # names in one line


def of_model(model: Model, rotations: list[config.Rotary]) -> tuple[str, ...]:
    """Return what was not judged of a model.

    Args:
        model: The model as it was opened.
        rotations: What was read of each kind of layer that rotates.
    """
    first = PAIRING if unrotated.kind(model) is None else "the weights: a configuration does not hold them"
    return (first, *_lines(model, rotations))


def _lines(model: Model, rotations: list[config.Rotary]) -> Iterator[str]:
    if parts := sorted(set(_other_parts(model))):
        yield f"other parts of the file: {_names(parts)}"
    if unknown := sorted(set(_unknown(model))):
        yield f"keys that posenc does not know: {_names(unknown)}"
    if rotations and _unlisted(model):
        yield "how many layers there are of each kind: the file does not say it"
    if any(one.rope_type == "dynamic" for one in rotations):
        yield "frequencies of texts beyond max_position_embeddings: dynamic NTK forms them while the model runs"
    if any(one.rope_type == "longrope" for one in rotations):
        yield "which of its two lists a program takes at which length"
    if any(one.rope_type == "yarn" and has_axes(model, {"mrope_section": one.sections}) for one in rotations):
        yield "factor against max_position_embeddings: with M-RoPE positions do not count tokens"
    if not rotations and unrotated.kind(model) is None:
        yield "the rotation: no layer was read that rotates"
    if model.name and model.name not in TYPES and unrotated.kind(model) is None:
        yield "which keys the model type reads: it is not known"


def _unlisted(model: Model) -> bool:
    """Return whether a file leaves out which layers are of which kind, and the type's rule is not repeated here."""
    try:
        kinds.layers(model)
    except ValueError as error:
        return values.about(error).code == "missing"
    return False


def _other_parts(model: Model) -> Iterator[str]:
    """Yield the keys of parts that are models of their own, with positions of their own."""
    inside = {key for key, _ in model.outer}
    for fields in (*(fields for _, fields in model.outer), model.fields):
        for key, part in fields.items():
            if not isinstance(part, dict) or key in inside:
                continue
            if part.get("model_type") or (key.endswith("_config") and any(map(_ABOUT_POSITIONS.search, part))):
                yield key


def _unknown(model: Model) -> Iterator[str]:
    """Yield keys whose names speak of positions and that are neither judged nor read."""
    if unrotated.kind(model) is not None:
        return
    for fields in (*(fields for _, fields in model.outer), model.fields):
        yield from (key for key, value in fields.items() if value is not None and _speaks(key))
    for own in _parameters(model.fields):
        yield from (key for key, value in own.items() if value is not None and _in_parameters(key, value))


def _speaks(key: str) -> bool:
    return key not in _JUDGED and _ABOUT_POSITIONS.search(key) is not None and not key.endswith("_config")


def _in_parameters(key: str, value: Any) -> bool:
    known = _JUDGED | reads.OF_SCALING | {"type", "finetuned", "attn_factor", "original_max_len"}
    return key not in known and not isinstance(value, dict)


def _parameters(fields: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of parameters of a file, and their entries for kinds of layers."""
    for key in reads.SCALINGS:
        if isinstance(own := fields.get(key), dict):
            yield own
            yield from (entry for entry in own.values() if isinstance(entry, dict))


def _names(keys: list[str]) -> str:
    shown = ", ".join(values.short(key)[1:-1] for key in keys[:_MOST])
    return shown + (f" and {len(keys) - _MOST} more" if len(keys) > _MOST else "")
