"""Read models for the model view: bundled ones, and ones from uploaded files."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from posenc import config, inspection
from posenc.config import kinds
from posenc.config.known import known_models
from posenc.config.model import open_model
from posenc.config.reading import Checked
from posenc.config.values import short
from posenc.explorer import shelf
from posenc.languages import tr


@dataclass(frozen=True)
class Shown:
    """A model's configuration, inspected.

    Args:
        name: Its name.
        found: The result of `posenc.inspection.inspect`.
        layers: The index into found["layers"] for each layer, first to last; each kind once if the configuration does
            not give the number of layers.
        counted: Whether the configuration gives that number.
        bundled: Whether the model comes with the package.
    """

    name: str
    found: Mapping[str, Any]
    layers: tuple[int, ...]
    counted: bool
    bundled: bool


def open_shown(name: str) -> Shown:
    """Return a bundled model by name, or an uploaded one by its id.

    Raises:
        ValueError: There is no such model, or it was uploaded without a configuration.
    """
    if name in (known := known_models()):
        return _bundled(name)
    if not name.startswith("file-"):
        raise ValueError(
            tr("explore: there is no model {name:s}. Known: {known:s}.", name=short(name), known=", ".join(known))
        )
    kept = shelf.find(name)
    if kept.get("config") is None:
        raise ValueError(
            tr(
                "explore: {name:s} came without a config.json, which holds the settings for positions. Drop both files "
                "together.",
                name=kept["title"],
            )
        )
    found, order = kept["inspection"], _order(kept["config"])
    return Shown(kept["title"], found, *_places(found, order), False)


@lru_cache(maxsize=64)
def _bundled(name: str) -> Shown:
    found = inspection.inspect(name)
    return Shown(name, found, *_places(found, _order(known_models()[name]["config"])), True)


def _order(source: config.Source) -> list[str] | None:
    """Return the kind of each layer, or None if the configuration does not give the number of layers."""
    with suppress(ValueError):
        return kinds.layers(open_model(Checked(config.read(source))))
    return None


def _places(found: Mapping[str, Any], order: list[str] | None) -> tuple[tuple[int, ...], bool]:
    named = [layer["kind"] for layer in found["layers"]]
    if order is None or not set(order) <= set(named):
        return tuple(range(len(named))), False
    return tuple(named.index(kind) for kind in order), True
