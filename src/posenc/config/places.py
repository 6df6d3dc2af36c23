"""Keys about positions, at every level of a file: each is read, or says what is read, or is noted."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from posenc.config import kinds, reads, unrotated, values
from posenc.config.model import ConfigWarning, Model
from posenc.config.models import LABELS, TYPES
from posenc.config.scaling import LENGTH
from posenc.config.spelling import Spelled, told
from posenc.config.widths import Widths

# entries that many types write whether or not they have such layers
_USUAL = {kinds.FULL, kinds.SLIDING, "hybrid", "hybrid_sliding"}
_NEUTRAL = (None, 1, True)
# whose rotation is by rows and columns of an image, and which write keys of a rotation that they may leave out
_ROTATES_BY_IMAGE = {"pixtral", "dinov3_vit"}
_WRITES_ANYWAY = {"falcon"}
# of a default configuration of transformers, whose code does not read it
_WRITTEN = {("minimax_m3_vl_text", "rotary_dim"): 64}
_STRETCHED = ("yarn", "llama3", "longrope")
# whose outer part rotates by itself
_ROTATES_OUTSIDE = {"blt", "musicflamingo"}


@dataclass(frozen=True)
class Read:
    """What is read for one kind of layer, with which other keys are compared; lengths in positions."""

    kind: str
    listed: list[str]
    base: float
    width: Widths
    rope_type: str
    original_max_len: int | None
    max_len: int | None


@dataclass(frozen=True)
class _Level:
    """One object of a file: where it stands in words, what goes before its keys, and its fields."""

    rank: Literal["outer", "top", "around", "own"]
    place: str
    prefix: str
    fields: Mapping[str, Any]


def note(model: Model, found: Spelled, read: Read) -> None:
    """Add warnings of keys that nothing reads and that say something else than what is read.

    Args:
        model: The model, which collects them.
        found: The parameters of the kind of layer.
        read: What is read for it.
    """
    _note_objects(model, found)
    _note_entries(model, found, read)
    for level in _levels(model, found, read):
        for key, value in level.fields.items():
            if value is not None and (instead := _instead(model, found, read, level, key, value)):
                _report(model, found, read, level, key, value, instead)


def of_unrotated(model: Model) -> list[ConfigWarning]:
    """Return warnings of keys of a rotation in a model whose layers do not rotate."""
    how = unrotated.kind(model)
    if how is not None and how.read is not None and model.model_type not in _ROTATES_BY_IMAGE | _WRITES_ANYWAY:
        for key in (*reads.SCALINGS, *reads.BASES, *reads.SHARES, *reads.INSIDE):
            if _says_something(value := model.fields.get(key)):
                said = f"{key} is not read by {model.model_type}, which does not rotate: positions enter by {how.said}."
                _warn(model, "unread", key, said, value, "left out", f"Remove {key}, or correct model_type.")
    return model.warnings


def _levels(model: Model, found: Spelled, read: Read) -> Iterator[_Level]:
    if model.outer and str(model.outer[0][1].get("model_type")) not in _ROTATES_OUTSIDE:
        for inner, fields in model.outer:
            yield _Level("outer", f"outside {inner}", "", fields)
    yield _Level("top", f"in {model.outer[-1][0]}" if model.outer else "at the top level", "", model.fields)
    if found.nested:
        yield _Level("around", f"in {found.key} next to the kinds of layers", f"{found.key}.", found.around)
        label = _label(model, read.kind)
        yield _Level("own", f"in {found.key}.{label}", f"{found.key}.{label}.", found.own)
    elif found.key != "top level":
        yield _Level("own", f"in {found.key}", f"{found.key}.", found.own)


def _label(model: Model, kind: str) -> str:
    return LABELS.get(model.name, {}).get(kind, kind)


# ---- objects of parameters, and their entries for kinds of layers


def _note_objects(model: Model, found: Spelled) -> None:
    """Note parameters that the type does not read, or that it reads in another form: flat, or by kind of layer."""
    for key in reads.SCALINGS:
        if key not in reads.objects(model.name) and _says_something(model.fields.get(key)):
            _warn_object(model, key, "nothing in them is read", f"Remove {key}.")
    if found.key == "top level" or model.name not in TYPES:
        return
    if found.nested and model.name not in reads.BY_KIND:
        because = "it reads one object for all layers, takes its default rotation, or fails"
        _warn_object(model, found.key, because, f"Write one set of parameters into {found.key}.")
    if not found.nested and not reads.spreads(model.name, found.key) and found.around:
        because = "it reads one entry for each kind of layer, and takes its defaults, or fails"
        fix = f'Nest them: "{found.key}": {{"full_attention": {{...}}, "sliding_attention": {{...}}}}.'
        _warn_object(model, found.key, because, fix)


def _warn_object(model: Model, key: str, because: str, fix: str) -> None:
    said = f"{key} is not read by {model.name} in transformers as it stands: {because}."
    _warn(model, "unread", key, said, model.fields[key], "what the model type reads, or the key left out", fix)


def _warn(model: Model, code: str, key: str, message: str, value: Any, allowed: str, fix: str) -> None:
    meanings = ((f"{key} {told(value)}"[:100], "not read"), ("left out", "the same"))
    model.warn(code, key, message, value=value, allowed=allowed, meanings=meanings, fix=fix)


def _note_entries(model: Model, found: Spelled, read: Read) -> None:
    """Note an entry for a kind of layer that the model has not, and a kind that has no entry."""
    if not found.nested or (model.name in TYPES and model.name not in reads.BY_KIND):
        return
    labels = [_label(model, kind) for kind in dict.fromkeys(read.listed)]
    for label, own in found.around.items():
        if isinstance(own, dict) and label not in {*labels, *_USUAL, *LABELS.get(model.name, {}).values()}:
            name = values.short(label)[1:-1]
            model.warn(
                "kind_unread",
                f"{found.key}.{name}",
                f"{found.key} has an entry for {name}, which is no kind of layer of this model: {told(own)} is lost.",
                value=own,
                allowed=f"an entry for {', '.join(labels)[:200]}",
                meanings=((name, "not read"), *((label, "read for its layers") for label in labels[:4])),
                fix=f"Rename the entry to the kind that is meant ({', '.join(labels)[:200]}), or remove it.",
            )
    if found.left_out:
        label = _label(model, read.kind)
        plain = f"the default rotation with base {read.base:g}, which scales nothing"
        model.warn(
            "kind_missing",
            f"{found.key}.{label}",
            f"{found.key} has no entry for {label}: {plain}, is taken.",
            value=None,
            allowed="an object",
            meanings=(("left out", plain), (label, "the parameters of these layers")),
            fix=f'Write an entry for it: "{label}": {{"rope_type": ..., "rope_theta": ...}}.',
        )


# ---- single keys


def _instead(model: Model, found: Spelled, read: Read, level: _Level, key: str, value: Any) -> str | None:
    """Return what is read in place of a key, in words; None where it is read or says the same."""
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
        return None if value == read.max_len else f"the longest text is {read.max_len or 'not in the file'}"
    if level.rank == "outer" and key in reads.SCALINGS:
        inner = found.around or {"rope_type": "default"}
        same = _plain(value, read).items() <= _plain(inner, read).items() if isinstance(value, dict) else not value
        return None if same else f"{found.key} with {told(inner)} is read"
    return _parameter(found, read, level, key, value)


def _base(model: Model, read: Read, level: _Level, key: str, value: Any) -> str | None:
    """Compare a base with that of the layers which it speaks of: those with a window, or the others."""
    sliding, others = ([k for k in read.listed if kinds.turns(k) and ("sliding" in k) is w] for w in (True, False))
    own = "sliding" in read.kind
    if level.rank != "own":
        if key in reads.LOCAL_BASES and not own and (sliding or model.name in reads.BY_KIND):
            return None
        if key in reads.BASES and (own and others or _label(model, read.kind) == "compress"):
            return None
    if isinstance(value, list) and len(value) >= len(read.listed):
        return None  # one for each layer: Step 3.5
    if isinstance(value, dict) and level.rank != "own":
        return "the base of each kind of layer stands in its parameters"
    same = isinstance(value, int | float) and value == read.base
    return None if same else f"the base is {read.base:g}"


def _share(model: Model, read: Read, level: _Level, key: str, value: Any) -> str | None:
    known = TYPES.get(model.name)
    if known is not None and not known.reads_share and key == read.width.key:
        return None  # noted as share_unread
    if known is not None and not known.reads_share and key == "partial_rotary_factor" and level.rank == "own":
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _rotated(read)
    if read.rope_type == "proportional":
        return None if value == read.width.share else f"a share of {read.width.share:g} rotates"
    whole = read.width.side == "last" and value == 1
    stated = model.fields.get("head_dim")  # Dots 3 has a share of this and not of the latent head
    heads = {read.width.head_dim, stated if isinstance(stated, int) else 0}
    same = whole or any(int(head * value) == read.width.rotary_dim for head in heads)
    return None if same else _rotated(read)


def _rotated(read: Read) -> str:
    return f"{read.width.rotary_dim} of the {read.width.head_dim} dimensions of a head rotate"


def _parameter(found: Spelled, read: Read, level: _Level, key: str, value: Any) -> str | None:
    """Judge a parameter of the rotation: outside of its object, next to entries, or of another type of rotation."""
    scales = f"rope_type {read.rope_type}" + ("" if read.rope_type != "default" else ", which scales nothing,")
    if level.rank == "own":
        known = reads.PARAMETERS.get(read.rope_type)
        named = found.own.get("rope_type") or found.own.get("type")
        if known is None or key not in reads.OF_SCALING - known or value in _NEUTRAL or not named:
            return None
        return f"{scales} does not read it"
    if key not in (reads.OF_SCALING - {"truncate"} | {"rope_type"} if level.rank == "around" else reads.INSIDE):
        return None
    mine = {**found.around, **found.own, "rope_type": read.rope_type}.get(key)
    if level.rank == "around":
        mine = read.rope_type if key == "rope_type" else found.own.get(key)
    if value in (mine, "default", "mrope", *_NEUTRAL) or (key == "mrope_interleaved" and not value):
        return None
    return f"{scales} is read" if mine is None or key == "rope_type" else f"{key} is {values.short(mine)}"


def _says_something(value: Any) -> bool:
    """Return whether parameters say more than that the rotation is the plain one."""
    if not isinstance(value, dict):
        return bool(value)
    plain = {"rope_type": "default", "type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}
    return any(plain.get(key, "") != own for key, own in value.items() if own is not None)


def _plain(own: Mapping[str, Any], read: Read) -> dict[str, Any]:
    """Return parameters in one spelling, without those that say what is read anyway."""
    out = {"rope_type" if key == "type" else key: value for key, value in own.items() if value is not None}
    if out.get("rope_type") in (None, "mrope"):
        out["rope_type"] = "default"
    if out.get("rope_theta") == read.base:
        del out["rope_theta"]
    return {key: repr(value) for key, value in out.items()}


# ---- reports


def _report(model: Model, found: Spelled, read: Read, level: _Level, key: str, value: Any, instead: str) -> None:
    shown = values.short(value)
    inner = found.own.get("rope_theta")
    if key == "rope_theta" and level.rank == "top" and inner is not None and not isinstance(value, dict | list):
        _two_bases(model, f"{found.key}.{_label(model, read.kind)}" if found.nested else found.key, inner, value)
        return
    wide = key in reads.SHARES + reads.WIDTHS
    code = "two_widths" if wide and read.width.key not in ("", key) and level.rank == "top" else "unread"
    name = f"{level.prefix}{key}"
    message = f"{key} {shown} stands {level.place}, where {model.name or 'this model'} does not read it: {instead}."
    if code == "two_widths":
        message = f"{key} {shown} and {read.width.key} contradict each other: {instead}, as {read.width.key} says."
    model.warn(
        code,
        name,
        message,
        value=value,
        allowed=f"left out, or what is read: {instead}",
        meanings=((f"{key} {shown}"[:80], "not read in this place"), ("left out", f"the same: {instead}")),
        fix=_fix(model, read, level, key, value),
    )


def _fix(model: Model, read: Read, level: _Level, key: str, value: Any) -> str:
    """Return what to do with a key that nothing reads."""
    if level.rank == "outer":
        return f"Move {key} into {level.place.removeprefix('outside ')} if it is meant, or remove it."
    if key in reads.SHARES + reads.WIDTHS:
        known, number = TYPES.get(model.name), isinstance(value, int | float)
        if known is not None and not known.reads_share or not number or read.width.side == "last":
            return f"Remove {key}, or name a model_type that reads it and rotates that part of a head."
        share = value if key in reads.SHARES else value / read.width.head_dim
        right = (*reads.share_keys(model.name, True), "partial_rotary_factor in the parameters of the rotation")[0]
        return f"Write {right} {share:g} if it is meant, or remove {key}."
    if key in reads.BASES + reads.LOCAL_BASES:
        where = reads.base_keys(model.name, "sliding" in read.kind, True) or ("rope_theta in rope_parameters",)
        return f"Write it as {where[0]}, a number, if it is meant, or remove {key}."
    if level.rank == "own" and key in reads.OF_SCALING:
        return f"Write the rope_type that reads {key} if it is meant, or remove it."
    return f"Move {key} into the parameters of the kind of layer if it is meant, or remove it."


def _two_bases(model: Model, place: str, inner: Any, outer: Any) -> None:
    """Note a base among the parameters that differs from the one next to them."""
    one, other = values.short(inner), values.short(outer)
    model.warn(
        "two_bases",
        "rope_theta",
        f"rope_theta is {one} in {place} and {other} at the level above; the former is taken.",
        value={f"{place}.rope_theta": inner, "rope_theta": outer},
        allowed="one of the two, or both alike",
        meanings=(
            (f"rope_theta {one}", f"in {place}: what transformers 5 takes"),
            (f"rope_theta {other}", "at the top: what transformers 4 and most other programs take"),
        ),
        fix="Write the base that the model was trained with in both places, or in one.",
    )
