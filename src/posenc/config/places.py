"""Check keys about positions at every level of a file, and warn about those that are not read and contradict others."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from posenc.config import kinds, reads, unrotated, values
from posenc.config.misplaced import Level, Read, label, report, warn
from posenc.config.model import ConfigWarning, Model
from posenc.config.models import LABELS, ROTATES_IF, TYPES
from posenc.config.scaling import LENGTH
from posenc.config.spelling import Spelled, summary

# entries that many types write even without such layers
_USUAL = {kinds.FULL, kinds.SLIDING, "hybrid", "hybrid_sliding"}
_NEUTRAL = (None, 1, True)
# types that rotate by rows and columns of an image, and types that write keys of a rotation without need
_ROTATES_BY_IMAGE = {"pixtral", "dinov3_vit"}
_WRITES_ANYWAY = {"falcon", "kimi_linear", "nemotron_h"}
# values in a default configuration of transformers that its code does not read
_WRITTEN = {("minimax_m3_vl_text", "rotary_dim"): 64}
_STRETCHED = ("yarn", "llama3", "longrope")
# names of a scaling in files of other formats, whose parameters no model type reads
_ELSEWHERE = re.compile(
    r"^yarn|_yarn|ntk|(rope|rotary)\w*(factor|ratio|scale)$|scaled_rope|llama_4_scaling|original_seq_len|"
    r"initial_context|logn|long_context|interpolated_rotary|(rope|rotary)\w*interleaved$|^nope_|_nope_layer"
)
# in files for other code: whatever else is about a rotation, and is no length
_UNKNOWN = re.compile(rf"{_ELSEWHERE.pattern}|^(?!.*(len|max_)).*(^|_)(rope|rotary(?!$)|rotate|xpos|position_enc)")
_OTHER_RULE = re.compile("yarn|ntk|linear|dynamic|llama3|longrope|xpos|alibi|2d|3d|interleav")  # in their values
# parts of a file about attention, as MPT's attn_config
_PART = re.compile(r"attn|attention|position")
# names of the publishers' own code for parameters that stand next to those of transformers, as in gpt-oss
_SAME = {
    "initial_context_length": LENGTH,
    "original_seq_len": LENGTH,
    "rope_scaling_factor": "factor",
    "rope_ntk_beta": "beta_fast",
    "rope_ntk_alpha": "beta_slow",
}
# keys by which files of other code state that positions enter by something else than a rotation, or not in all layers:
# those that name an encoding, those that are set, and those that are false or an object
_NAMED = (
    *("position_embedding_type", "position_embeddings_type", "position_encoding_type", "positional_embedding"),
    *("position_embedding", "position_encoding", "positional_encoding", "pos_emb_type", "pos_embedding_type"),
)
_SET = (
    *("alibi", "use_alibi", "alibi_starting_size", "alibi_bias_max", "relative_attention", "attn_type_list"),
    "mla_use_nope",
)
_OFF = ("use_rope", "use_rotary", "use_rotary_embeddings", "use_rotary_pos_emb", "rotary", "rope")
_NOTED = {*_NAMED, *_SET, *_OFF, *reads.ELSEWHERE, *reads.SCALINGS, "original_rope", "rope_full_precision"}
_MPT = {"alibi": True, "alibi_bias_max": 8, "rope": False}  # as assumed by transformers' class
# types whose outer part has its own rotation
_ROTATES_OUTSIDE = {"blt", "musicflamingo"}


def note(model: Model, found: Spelled, read: Read) -> None:
    """Add warnings about keys that are not read and contradict the values that are.

    Args:
        model: The model, which collects them.
        found: The parameters of the kind of layer.
        read: The values that are read for it.
    """
    who = f"{model.name} in transformers does not read it" if model.is_known else "model_type is unknown"
    for key, value in _others(model, ("rope", "rotary", "absolute" if found.around or model.is_known else "rope")):
        text = f"{key} {values.short(value)} is not read: {who}, and layers are read as rotating."
        _warn_other(model, key, text, value)
    _note_objects(model, found)
    _note_entries(model, found, read)
    for level in _levels(model, found, read):
        for key, value in level.fields.items():
            if value is not None and (instead := _instead(model, found, read, level, key, value)):
                report(model, found, read, level, key, value, instead)


def of_unrotated(model: Model) -> list[ConfigWarning]:
    """Return warnings about keys of a rotation in a model whose layers do not rotate."""
    how = unrotated.kind(model)
    if how is not None and how.read is not None and model.model_type not in _ROTATES_BY_IMAGE | _WRITES_ANYWAY:
        for key in (*reads.SCALINGS, *reads.BASES, *reads.SHARES, *sorted(reads.INSIDE)):
            if _scales(value := model.fields.get(key)):
                text = (
                    f"{key} is not read by {model.model_type}, which does not rotate: positions enter by {how.means}."
                )
                warn(model, key, text, value, "left out", f"Remove {key}, or correct model_type.")
    if how is not None and how.means == unrotated.LEARNED:
        for key, value in _others(model, ("absolute", "learned")):
            text = f"{key} {values.short(value)} is not read by {model.model_type} in transformers: it has {how.means}."
            _warn_other(model, key, text, value)
    for prefix, part in _parts(model) if model.model_type == "mpt" else ():
        for key, usual in _MPT.items():
            if (value := part.get(key, usual)) not in (usual, None):
                text = (
                    f"{prefix}{key} {values.short(value)} is not read by mpt in transformers: it has ALiBi, up to 2^-8."
                )
                _warn_other(model, f"{prefix}{key}", text, value)
    return model.warnings


def _parts(model: Model) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the fields of a model and of its parts about attention, with the prefix of their keys."""
    yield "", model.fields
    for key, part in model.fields.items():
        if isinstance(part, dict) and _PART.search(key) and not part.get("model_type"):
            yield f"{values.short(key)[1:-1]}.", part


def _others(model: Model, usual: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Yield keys that state another encoding than the usual ones, and their values."""
    read = (ROTATES_IF.get(model.name, ("",))[0], *(("attn_type_list", "mla_use_nope") if model.is_known else ()))
    for prefix, fields in _parts(model):
        slopes = fields.get("alibi", fields.get("use_alibi")) is not False
        for key, value in fields.items():
            named = key in _NAMED and isinstance(value, str) and not any(word in value.lower() for word in usual)
            is_set = key in _SET and value and not (isinstance(value, list) and all(value))
            is_set = is_set and (slopes or not key.startswith("alibi"))
            if key not in read and (named or is_set or (key in _OFF and (value is False or isinstance(value, dict)))):
                yield f"{prefix}{key}", value


def _warn_other(model: Model, key: str, text: str, value: Any) -> None:
    fix = f"Read how the model's own code uses {key}, and construct that encoding; or remove it if nothing reads it."
    warn(model, key, text, value, "left out", fix)


def of_stacks(fields: Mapping[str, Any], stacks: Mapping[str, Mapping[str, Any]]) -> list[ConfigWarning]:
    """Return warnings about keys of a rotation outside of the encoder and the decoder of a file."""
    model, inside = Model(dict(fields), fields.get("model_type")), " and ".join(stacks)
    for key in (*reads.SCALINGS, *reads.BASES, *reads.LOCAL_BASES, *reads.SHARES, *sorted(reads.INSIDE)):
        value = fields.get(key)
        parts = (part.get("text_config", part) for part in stacks.values())
        if _scales(value) and any(part.get(key) != value for part in parts):
            text = f"{key} is outside {inside}, where {model.model_type} does not read it."
            warn(model, key, text, value, "left out", f"Move {key} into {inside} if it is right, or remove it.")
    return model.warnings


def _levels(model: Model, found: Spelled, read: Read) -> Iterator[Level]:
    if model.outer and str(model.outer[0][1].get("model_type")) not in _ROTATES_OUTSIDE:
        for inner, fields in model.outer:
            yield Level("outer", f"outside {inner}", "", fields)
    for prefix, fields in _parts(model):
        top = f"in {model.outer[-1][0]}" if model.outer else "at the top level"
        yield Level("part" if prefix else "top", f"in {prefix[:-1]}" if prefix else top, prefix, fields)
    if found.nested:
        yield Level("around", f"in {found.key} next to the kinds of layers", f"{found.key}.", found.around)
        own = f"{found.key}.{label(model, read.kind)}"
        yield Level("own", f"in {own}", f"{own}.", found.own)
    elif found.key != "top level":
        yield Level("own", f"in {found.key}", f"{found.key}.", found.own)


# ---- objects of parameters, and their entries for kinds of layers


def _note_objects(model: Model, found: Spelled) -> None:
    """Add warnings about parameters that the type does not read, or reads in another form: flat or by kind of layer."""
    for key in reads.SCALINGS:
        if key not in reads.objects(model.name) and _scales(model.fields.get(key)):
            _warn_object(model, key, "nothing in it is read", f"Remove {key}.")
    if found.key == "top level" or model.name not in TYPES:
        return
    if found.nested and model.name not in reads.BY_KIND:
        because = "it expects one object for all layers, and uses its default rotation or fails"
        _warn_object(model, found.key, because, f"Write one set of parameters into {found.key}.")
    if not found.nested and not reads.spreads(model.name, found.key) and found.around:
        because = "it expects one entry for each kind of layer, and uses its defaults or fails"
        fix = f'Nest them: "{found.key}": {{"full_attention": {{...}}, "sliding_attention": {{...}}}}.'
        _warn_object(model, found.key, because, fix)


def _warn_object(model: Model, key: str, because: str, fix: str) -> None:
    text = f"{key} is not read by {model.name} in transformers in this form: {because}."
    warn(model, key, text, model.fields[key], "the form that the model type reads, or the key left out", fix)


def _note_entries(model: Model, found: Spelled, read: Read) -> None:
    """Add warnings about entries for kinds of layers that the model does not have, and kinds without an entry."""
    if not found.nested or (model.name in TYPES and model.name not in reads.BY_KIND):
        return
    labels = [label(model, kind) for kind in dict.fromkeys(read.listed)]
    usual, listed = {*labels, *_USUAL, *LABELS.get(model.name, {}).values()}, ", ".join(labels)[:200]
    for key, own in found.around.items():
        if isinstance(own, dict) and key not in usual:
            name = values.short(key)[1:-1]
            model.warn(
                "kind_unread",
                f"{found.key}.{name}",
                f"{found.key} has an entry for {name}, but this model has no such layers: {summary(own)} is ignored.",
                value=own,
                allowed=f"an entry for {listed}",
                meanings=((name, "not read"), *((kind, "read for its layers") for kind in labels[:4])),
                fix=f"Rename the entry to the right kind ({listed}), or remove it.",
            )
    if found.left_out:
        missing, plain = label(model, read.kind), f"the default rotation with base {read.base:g}, which scales nothing"
        model.warn(
            "kind_missing",
            f"{found.key}.{missing}",
            f"{found.key} has no entry for {missing}, so it has {plain}.",
            value=None,
            allowed="an object",
            meanings=(("left out", plain), (missing, "the parameters of these layers")),
            fix=f'Write an entry for it: "{missing}": {{"rope_type": ..., "rope_theta": ...}}.',
        )


# ---- single keys


def _instead(model: Model, found: Spelled, read: Read, level: Level, key: str, value: Any) -> str | None:
    """Describe the value that is read in place of a key; None if the key is read, or agrees."""
    if key in reads.BASES + reads.LOCAL_BASES:
        return _base(model, read, level, key, value)
    if key in reads.SHARES:
        return _share(model, read, level, key, value)
    if key in reads.WIDTHS:
        same = value in (read.width.rotary_dim, _WRITTEN.get((model.name, key)))
        return None if same else _rotated(read)
    if key == LENGTH:
        stretched = read.rope_type in _STRETCHED and value != read.original_max_len
        return f"the trained length is {read.original_max_len}" if stretched else None
    if key == "max_position_embeddings" and level.rank in ("outer", "own"):
        return None if value == read.max_len else f"the maximum length is {read.max_len or 'not in the file'}"
    if level.rank in ("outer", "part") and key in reads.SCALINGS:
        inner = found.around or {"rope_type": "default"}
        same = _plain(value, read).items() <= _plain(inner, read).items() if isinstance(value, dict) else not value
        here = "nothing scales" if found.key == "top level" else f"{found.key} with {summary(inner)} is read"
        return None if same else here
    return _parameter(model, found, read, level, key, value)


def _base(model: Model, read: Read, level: Level, key: str, value: Any) -> str | None:
    """Compare a base with that of the layers that it is for: those with a window, or the others."""
    sliding, others = ([k for k in read.listed if kinds.rotates(k) and ("sliding" in k) is w] for w in (True, False))
    own = "sliding" in read.kind
    if isinstance(value, dict) and level.rank != "own":
        return "the base of each kind of layer is in its parameters"
    if level.rank != "own":
        if key in reads.LOCAL_BASES and not own and (sliding or model.name in reads.BY_KIND):
            return None
        far = others or model.name in reads.BY_KIND  # a type with a base for each kind uses this one for the others
        if key in reads.BASES and ((own and far) or label(model, read.kind) == "compress"):
            return None
    if isinstance(value, list) and len(value) >= len(read.listed):
        return None  # one for each layer: Step 3.5
    same = isinstance(value, int | float) and value == read.base
    return None if same else f"the base is {read.base:g}"


def _share(model: Model, read: Read, level: Level, key: str, value: Any) -> str | None:
    known = TYPES.get(model.name)
    if known is not None and not known.reads_share and key == read.width.key:
        return None  # `widths` warns as share_unread
    if known is not None and not known.reads_share and key == "partial_rotary_factor" and level.rank == "own":
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _rotated(read)
    if read.rope_type == "proportional":
        return None if value == read.width.share else f"a share of {read.width.share:g} rotates"
    whole = read.width.side == "last" and value == 1
    stated = model.fields.get("head_dim")  # in Dots 3 the share refers to this width, not to the latent head
    heads = {read.width.head_dim, stated if isinstance(stated, int) else 0}
    same = whole or any(int(head * value) == read.width.rotary_dim for head in heads)
    return None if same else _rotated(read)


def _rotated(read: Read) -> str:
    return f"{read.width.rotary_dim} of the {read.width.head_dim} dimensions of a head rotate"


def _parameter(model: Model, found: Spelled, read: Read, level: Level, key: str, value: Any) -> str | None:
    """Check a parameter of the rotation: outside of its object, next to entries, or of another rope_type."""
    scales = f"rope_type {read.rope_type}" + ("" if read.rope_type != "default" else ", which scales nothing,")
    if level.rank == "own":
        if key in reads.MSCALES and read.rope_type == "longrope" and not reads.reads_mscales(model.name):
            return "the gain follows from the lengths"
        if read.rope_type == "default" and key not in reads.PARTS and _is_set(value) and not isinstance(value, dict):
            misspelt = any((one.code, one.key) == ("misspelt", key) for one in model.warnings)
            return None if misspelt else f"{scales} is read"
        known = reads.PARAMETERS.get(read.rope_type)
        named = found.own.get("rope_type") or found.own.get("type")
        if known is None or key not in reads.OF_SCALING - known or value in _NEUTRAL or not named:
            return None
        return f"rope_type {read.rope_type} has no such parameter"
    others = _ELSEWHERE if model.is_known and "auto_map" not in model.fields else _UNKNOWN
    if level.rank in ("top", "part") and others.search(key) and key not in _NOTED and _is_set(value):
        if not _ELSEWHERE.search(key):
            return "one position of each token and the given pairing are read"
        return None if key in _SAME and found.own.get(_SAME[key]) == value else f"{scales} is read"
    if key not in (reads.OF_SCALING - {"truncate"} | {"rope_type"} if level.rank == "around" else reads.INSIDE):
        return None
    mine = {**found.around, **found.own, "rope_type": read.rope_type}.get(key)
    if level.rank == "around":
        mine = read.rope_type if key == "rope_type" else found.own.get(key)
    if value in (mine, "default", "mrope", *_NEUTRAL) or (key == "mrope_interleaved" and not value):
        return None
    if level.rank == "around":
        return "the entry of each kind of layer is read"
    if mine is None and key.startswith("mrope_"):
        return "the sections of the model type are read, if it has any"
    return f"{scales} is read" if mine is None or key == "rope_type" else f"{key} is {values.short(mine)}"


def _is_set(value: Any) -> bool:
    if isinstance(value, str):
        return bool(_OTHER_RULE.search(value.lower()))
    return isinstance(value, dict | list | int | float) and bool(value) and (value is True or value != 1)


def _scales(value: Any) -> bool:
    """Return whether parameters differ from those of the plain rotation."""
    if not isinstance(value, dict):
        return bool(value)
    plain = {"rope_type": "default", "type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}
    return any(plain.get(key, "") != own for key, own in value.items() if own is not None)


def _plain(own: Mapping[str, Any], read: Read) -> dict[str, Any]:
    """Return parameters in one spelling, without those that have the default values."""
    out = {"rope_type" if key == "type" else key: value for key, value in own.items() if value is not None}
    if out.get("rope_type") in (None, "mrope"):
        out["rope_type"] = "default"
    if out.get("rope_theta") == read.base:
        del out["rope_theta"]
    return {key: repr(value) for key, value in out.items()}
