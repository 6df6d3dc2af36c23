"""The parts that the judgement of a configuration does not cover, in a few lines that are printed with it."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from posenc import config
from posenc.config import kinds, reads, unrotated, values
from posenc.config.axes import has_axes
from posenc.config.model import Model
from posenc.config.models import TYPES

_ABOUT_POSITIONS = re.compile(r"rope|rotary|position|theta|alibi|relative_att|yarn|ntk|llama_4_scaling")
_PARTS = {"vision_encoder", "multimodal"}  # of params.json
_MOST = 6  # names in one line


def of_model(model: Model, rotations: list[config.Rotary]) -> tuple[str, ...]:
    """Return the parts of a model that were not judged.

    Args:
        model: The opened model.
        rotations: The rotation of each kind of layer that rotates.
    """
    is_rotated, types = unrotated.kind(model) is None, {one.rope_type for one in rotations}
    parts, unknown = _names(_other_parts(model)), _names(_unknown(model) if is_rotated else ())
    yarns = (one for one in rotations if one.rope_type == "yarn")
    lines = {
        "the pairing of the weights: a configuration does not contain it": is_rotated,
        "the weights: a configuration does not contain them": not is_rotated,
        f"other parts of the file: {parts}": parts,
        f"keys that posenc does not know: {unknown}": unknown,
        f"whether a program reads yarn and llama_4_scaling of {model.native}: they are read here as transformers' "
        "converter reads them": model.native and any(one.rope_type == "yarn" for one in rotations),
        "how many layers there are of each kind: the file does not contain it": rotations and _is_unlisted(model),
        "frequencies of texts beyond max_position_embeddings: dynamic NTK computes them while the model runs": "dynamic"
        in types,
        "which of its two lists a program uses at which length": "longrope" in types,
        "whether factor fits max_position_embeddings: with M-RoPE positions do not count tokens": any(
            has_axes(model, {"mrope_section": one.sections}) for one in yarns
        ),
        "the rotation: no rotating layer was found": is_rotated and not rotations,
        "which keys the model type reads: the type is unknown": is_rotated and model.name and model.name not in TYPES,
    }
    return tuple(line for line, is_so in lines.items() if is_so)


def _is_unlisted(model: Model) -> bool:
    """Return whether a file does not contain which layers are of which kind, and posenc has no rule for the type."""
    try:
        kinds.layers(model)
    except ValueError as error:
        return values.about(error).code == "missing"
    return False


def _levels(model: Model) -> Iterator[Mapping[str, Any]]:
    yield from (fields for _, fields in model.outer)
    yield model.fields


def _other_parts(model: Model) -> Iterator[str]:
    """Yield the keys of parts that are models with their own positions."""
    inside = {key for key, _ in model.outer}
    for fields in _levels(model):
        for key, part in fields.items():
            if not isinstance(part, dict) or key in inside:
                continue
            if (
                key in _PARTS
                or part.get("model_type")
                or (key.endswith("_config") and any(map(_ABOUT_POSITIONS.search, part)))
            ):
                yield key


def _unknown(model: Model) -> Iterator[str]:
    """Yield keys about positions, or among the parameters of a scaling, that are not read."""
    for fields in _levels(model):
        for key, value in fields.items():
            speaks = key not in reads.JUDGED and _ABOUT_POSITIONS.search(key) and not key.endswith("_config")
            if speaks and value is not None:
                yield key
    of_scalings = [own for key in reads.SCALINGS if isinstance(own := model.fields.get(key), dict)]
    of_kinds = [entry for own in of_scalings for entry in own.values() if isinstance(entry, dict)]
    for own in (*of_scalings, *of_kinds):
        for key, value in own.items():
            if key not in reads.PARTS and value is not None and not isinstance(value, dict):
                yield key


def _names(found: Iterable[str]) -> str:
    keys = sorted(set(found))
    shown = ", ".join(values.short(key)[1:-1] for key in keys[:_MOST])
    return shown + (f" and {len(keys) - _MOST} more" if len(keys) > _MOST else "")
