"""The page's start answer: encodings with their options, models, and views."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import posenc
from posenc.config.known import known_models
from posenc.explorer import shelf
from posenc.explorer.targets import Target

if TYPE_CHECKING:
    from posenc.explorer.views import View


def early(target: Target) -> dict[str, Any]:
    """Return the part of the answer that needs no torch."""
    return {
        "version": posenc.__version__,
        "target": _describe(target),
        "models": [_model(name, model) for name, model in known_models().items()],
        "encodings": [],
        "views": [],
    }


def late(target: Target) -> dict[str, Any]:
    """Import torch, the encodings and the views; read the target; return the rest of the answer.

    An invalid file does not stop the page: `target` holds the error message.
    """
    from posenc.explorer import options, views

    encodings = []
    for name in posenc.names():
        card = posenc.card(name)
        fitting = _fitting(card.cls, options.defaults(card.cls, card.example), views.VIEWS)
        encodings.append(options.describe(card, fitting))
    if target.kind == "own":
        views.allow(target.name)
        encodings.append(_own(target.name, views.VIEWS))
    return {
        "encodings": encodings,
        "views": [view.as_dict() for view in views.VIEWS.values()],
        "target": _describe(target) | _read(target),
    }


def _describe(target: Target) -> dict[str, Any]:
    kind = "encoding" if target.kind == "own" else target.kind
    return {"kind": kind, "name": target.name, "id": None if kind == "file" else target.name, "error": None}


def _model(name: str, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts about a bundled model in the list of models."""
    fields = known["config"]
    rotary = fields.get("rope_scaling") or fields.get("rope_parameters") or {}
    return {
        "name": name,
        "trained": known["original_max_len"],
        "declared": fields.get("max_position_embeddings"),
        "base": rotary.get("rope_theta", fields.get("rope_theta", fields.get("global_rope_theta"))),
        "rope_type": rotary.get("rope_type", rotary.get("type", "default")),
    }


def _read(target: Target) -> dict[str, Any]:
    """Read a target that is a file or a study; return its id or the error message."""
    if target.kind == "study" and target.path is not None:
        shelf.use_study(target.path)
    if target.kind != "file" or target.path is None:
        return {}
    from posenc.explorer import uploads

    try:
        return {"id": uploads.read_path(target.path, target.name)["id"]}
    except (ValueError, TypeError) as error:
        return {"error": str(error)}


def _fitting(cls: type, arguments: Mapping[str, Any], views: "Mapping[str, View]") -> list[str]:
    try:
        encoding = cls(**arguments)
    except (TypeError, ValueError):  # it needs other arguments, which the user enters on the page
        return list(views)
    return [view.id for view in views.values() if view.fits(encoding)]


def _own(name: str, views: "Mapping[str, View]") -> dict[str, Any]:
    from posenc import registry
    from posenc.explorer import options

    cls = registry.find_class(name)
    return options.describe_class(name, cls, _fitting(cls, options.defaults(cls, options.EXAMPLE), views))
