"""Derive the page's controls for an encoding from its constructor's signature and its class's docstring."""

import inspect
import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from posenc.colours import colour, on_dark
from posenc.registry import USUAL, Card

EXAMPLE = USUAL.offer(())  # for a user class
_SECTION = re.compile(r"^Args:\n(?P<body>(?:[ \t]+\S.*\n|\n)+)", re.MULTILINE)


class Range(NamedTuple):
    """The range of a slider; the constructor may accept more."""

    low: float
    high: float
    log: bool = False
    step: int | None = None


_WIDTH, _COUNT, _LENGTH = Range(2, 1024, step=2), Range(1, 64), Range(1, 2**20, log=True)
_RANGES = {
    **dict.fromkeys(("d_model", "hidden", "n_features", "width"), _WIDTH),
    **dict.fromkeys(("head_dim", "rotary_dim"), Range(2, 256, step=2)),
    **dict.fromkeys(("n_heads", "n_kv_heads"), _COUNT),
    **dict.fromkeys(("max_len", "original_max_len", "length", "height"), _LENGTH),
    **dict.fromkeys(("window", "chunk", "local", "max_distance", "max_ahead", "max_count"), Range(1, 2**16, log=True)),
    **dict.fromkeys(("factor", "group"), Range(1, 128, log=True)),
    **dict.fromkeys(("attention_factor", "long_attention_factor", "score_factor"), Range(0.25, 4, log=True)),
    **dict.fromkeys(("scale_base", "extent"), Range(1, 2**16, log=True)),
    "base": Range(2, 1e8, log=True),
    "bias_max": Range(1, 32),
    "n_axes": Range(1, 3),
    "n_buckets": Range(2, 1024, log=True),
    "n_octaves": Range(1, 32),
    "depth": Range(1, 8),
    "kernel_size": Range(1, 31, step=2),
    "sigma": Range(0.1, 1000, log=True),
    "gamma": Range(0.1, 100, log=True),
    "seed": Range(0, 2**31 - 1),
}


def describe(card: Card, views: Iterable[str]) -> dict[str, Any]:
    """Return the page's description of an encoding as JSON values.

    Args:
        card: Its registry card.
        views: Ids of the views that apply to it.
    """
    return {
        "name": card.name,
        "cls": card.declared.cls_name,
        "family": card.family,
        "summary": card.summary,
        "colour": colour(card.name),
        "colour_dark": on_dark(card.name),
        "formula": card.formula,
        "paper": f"{card.paper} ({card.year})",
        "arxiv": card.arxiv,
        "used_by": list(card.used_by),
        "learned": bool(card.traits.get("learned")),
        "options": controls(card.cls, card.example),
        "views": list(views),
    }


def describe_class(name: str, cls: type, views: Iterable[str]) -> dict[str, Any]:
    """Return the same for a user class `package.module:Class`, which has no card."""
    return {
        **dict.fromkeys(("formula", "paper"), ""),
        "name": name,
        "cls": cls.__name__,
        "family": str(getattr(cls, "family", "none")),
        "summary": (inspect.getdoc(cls) or "").split("\n")[0],
        "colour": colour(name),
        "colour_dark": on_dark(name),
        "arxiv": None,
        "used_by": [],
        "learned": True,
        "options": controls(cls, EXAMPLE),
        "views": list(views),
    }


def controls(cls: type, example: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a control for each option of a constructor that can be written as text.

    Args:
        cls: The class.
        example: Arguments that construct a small instance; they replace missing defaults.

    >>> from posenc import RoPE
    >>> [(c["name"], c["kind"], c["default"]) for c in controls(RoPE, {"head_dim": 8})][:2]
    [('head_dim', 'int', 8), ('base', 'float', 10000.0)]
    """
    helps, given = helps_of(cls), defaults(cls, example)
    found = []
    for name, parameter in inspect.signature(cls).parameters.items():
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        required = parameter.default is parameter.empty
        default = given.get(name, None if required else parameter.default)
        control = _control(name, alternatives(parameter.annotation), default)
        if control is not None:
            found.append({**control, "help": helps.get(name, ""), "required": required})
    return found


def defaults(cls: type, example: Mapping[str, Any]) -> dict[str, Any]:
    """Return the constructor arguments for options that a query omits; all others keep the constructor's defaults.

    These are the example's values for options that are required or cannot be written as text; or the whole example, if
    the constructor's defaults are inconsistent with those values.

    >>> from posenc import RoPE
    >>> defaults(RoPE, {"head_dim": 8, "base": 100.0})
    {'head_dim': 8}
    """
    parameters = inspect.signature(cls).parameters.values()
    own = {
        p.name: example[p.name]
        for p in parameters
        if p.name in example and (_is_needed(p) or _control(p.name, alternatives(p.annotation), None) is None)
    }
    try:
        cls(**own)
    except ValueError:
        return dict(example)
    return own


def _is_needed(parameter: inspect.Parameter) -> bool:
    """Return whether an option has no default, or None for a size that a family lets its author set later."""
    of_family = parameter.default is None and parameter.name in ("d_model", "n_heads", "head_dim")
    return parameter.default is parameter.empty or of_family


def alternatives(annotation: Any) -> list[Any]:
    """Return the members of a union, flattened; for any other annotation, a list of just that.

    >>> alternatives(int | str | None)
    [<class 'int'>, <class 'str'>, <class 'NoneType'>]
    """
    if typing.get_origin(annotation) not in (typing.Union, types.UnionType):
        return [annotation]
    return [kind for part in typing.get_args(annotation) for kind in alternatives(part)]


def is_list(kind: Any) -> bool:
    """Return whether an annotation is a list or tuple of values."""
    return typing.get_origin(kind) in (tuple, list, Sequence)


def helps_of(cls: type) -> dict[str, str]:
    """Return the description of each argument in a class's docstring.

    >>> from posenc import RoPE
    >>> helps_of(RoPE)["base"]
    '10,000 in the paper; larger for longer contexts.'
    """
    section = _SECTION.search(inspect.getdoc(cls) or "")
    body = inspect.cleandoc(section["body"]) if section else ""
    entries = re.finditer(r"^(?P<name>\w+): (?P<help>.+(?:\n +.+)*)", body, re.MULTILINE)
    return {entry["name"]: " ".join(entry["help"].split()) for entry in entries}


def _control(name: str, kinds: list[Any], default: Any) -> dict[str, Any] | None:
    """Return name, kind, default, choices and range; None for an option that cannot be written as text."""
    words = [word for k in kinds if typing.get_origin(k) is Literal for word in typing.get_args(k)]
    optional = type(None) in kinds
    lists = any(is_list(k) and _is_plain(k) for k in kinds)
    if words and not lists:
        return _plain(name, "choice", default) | {"choices": [*words, ""] if optional else words}
    if bool in kinds:
        return _plain(name, "bool", default)
    if lists or str in kinds:
        return _plain(name, "text", _written(default)) | ({"choices": words} if words else {})
    for kind, word in ((int, "int"), (float, "float")):
        if kind in kinds and not (kind is int and float in kinds):
            return _plain(name, word, default) | _range(name, default)
    return None


def _is_plain(kind: Any) -> bool:
    """Return whether a list's entries are numbers or words."""
    return any(k in (int, float, str) for part in typing.get_args(kind) for k in alternatives(part))


def _plain(name: str, kind: str, default: Any) -> dict[str, Any]:
    return {"name": name, "kind": kind, "default": default}


def _written(default: Any) -> Any:
    """Return a list as comma-separated text."""
    if isinstance(default, str) or not isinstance(default, Iterable):
        return default
    return ",".join(str(value) for value in default)


def _range(name: str, default: Any) -> dict[str, Any]:
    """Return the slider's range for a name, if known, widened to include the default."""
    if name not in _RANGES:
        return {}
    low, high, log, step = _RANGES[name]
    known = [default] if isinstance(default, int | float) else []
    found = {"min": min([low, *known]), "max": max([high, *known])}
    return found | ({"log": True} if log else {}) | ({"step": step} if step else {})
