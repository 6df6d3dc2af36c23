"""Warnings about keys that are not read in their place."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from posenc.config import reads, values
from posenc.config.model import Model
from posenc.config.models import LABELS, TYPES
from posenc.config.spelling import Spelled, summary
from posenc.config.widths import Widths


@dataclass(frozen=True)
class Read:
    """The values that are read for one kind of layer, for comparison with other keys; lengths in positions."""

    kind: str
    listed: list[str]
    base: float
    width: Widths
    rope_type: str
    original_max_len: int | None
    max_len: int | None


@dataclass(frozen=True)
class Level:
    """One object of a file: a description of its place, the prefix of its keys, and its fields."""

    rank: Literal["outer", "top", "part", "around", "own"]
    place: str
    prefix: str
    fields: Mapping[str, Any]


def warn(model: Model, key: str, message: str, value: Any, allowed: str, fix: str) -> None:
    """Add a warning about a key that is not read in its place."""
    meanings = ((f"{key} {summary(value)}"[:100], "not read"), ("left out", "the same"))
    model.warn("unread", key, message, value=value, allowed=allowed, meanings=meanings, fix=fix)


def label(model: Model, kind: str) -> str:
    """Return the key of the entry for a kind of layer."""
    return LABELS.get(model.name, {}).get(kind, kind)


def report(model: Model, found: Spelled, read: Read, level: Level, key: str, value: Any, instead: str) -> None:
    """Add a warning about a key that is not read and contradicts the values that are.

    Args:
        model: The model, which collects warnings.
        found: The parameters of the kind of layer.
        read: The values that are read for it.
        level: The object with the key.
        key: The key.
        value: Its value.
        instead: A description of the value that is read.
    """
    shown = f"({summary(value)})" if isinstance(value, dict) else values.short(value)
    inner = found.own.get("rope_theta")
    stated = inner is not None and found.key != "top level"  # not a default of the type
    if key == "rope_theta" and level.rank == "top" and stated and not isinstance(value, dict | list):
        _two_bases(model, f"{found.key}.{label(model, read.kind)}" if found.nested else found.key, inner, value)
        return
    wide = key in reads.SHARES + reads.WIDTHS
    code = "two_widths" if wide and read.width.key not in ("", key) and level.rank == "top" else "unread"
    name = f"{level.prefix}{key}"
    where = f"where {model.name} does not read it" if model.is_known else "and posenc does not know what reads it"
    message = f"{key} {shown} is {level.place}, {where}: {instead}."
    if code == "two_widths":
        message = f"{key} {shown} and {read.width.key} contradict each other: {instead}, by {read.width.key}."
    model.warn(
        code,
        name,
        message,
        value=value,
        allowed=f"left out, or the value that is read: {instead}",
        meanings=((f"{key} {shown}"[:80], "not read in this place"), ("left out", f"the same: {instead}")),
        fix=_fix(model, read, level, key, value),
    )


def _fix(model: Model, read: Read, level: Level, key: str, value: Any) -> str:
    """Return the suggested change for a key that is not read."""
    if level.rank == "outer":
        return f"Move {key} into {level.place.removeprefix('outside ')} if it is right, or remove it."
    if model.native and level.rank == "top":
        return f"Pass the config.json next to {model.native}, or read what the publisher's code does with {key}."
    if key in reads.SHARES + reads.WIDTHS:
        known, number = TYPES.get(model.name), isinstance(value, int | float)
        if (known is not None and not known.reads_share) or not number or read.width.side == "last":
            return f"Remove {key}, or write a model_type that reads it and rotates that part of a head."
        share = value if key in reads.SHARES else value / read.width.head_dim
        outside = reads.share_keys(model.name, True)
        right = f"{outside[0]} {share:g}" if outside else f"partial_rotary_factor {share:g} into the parameters"
        return f"Write {right} if it is right, or remove {key}."
    if key in reads.BASES + reads.LOCAL_BASES:
        where = reads.base_keys(model.name, "sliding" in read.kind, True) or ("rope_theta in rope_parameters",)
        return f"Write it as {where[0]}, a number, if it is right, or remove {key}."
    if level.rank == "own" and key in reads.OF_SCALING:
        return f"Write the rope_type that reads {key} if it is right, or remove it."
    if not model.is_known and key not in reads.INSIDE:
        return f"Write what the model's own code does with {key} as rope_scaling, or remove it if nothing reads it."
    return f"Move {key} into the parameters of the kind of layer if it is right, or remove it."


def _two_bases(model: Model, place: str, inner: Any, outer: Any) -> None:
    """Add a warning about a base among the parameters that differs from the one at the level above."""
    one, other = values.short(inner), values.short(outer)
    model.warn(
        "two_bases",
        "rope_theta",
        f"rope_theta is {one} in {place} but {other} at the level above; {one} is used.",
        value={f"{place}.rope_theta": inner, "rope_theta": outer},
        allowed="one of the two, or both alike",
        meanings=(
            (f"rope_theta {one}", f"in {place}: transformers 5 reads it"),
            (f"rope_theta {other}", "at the top: transformers 4 and most other programs read it"),
        ),
        fix="Write the base of the training in both places, or in one.",
    )
