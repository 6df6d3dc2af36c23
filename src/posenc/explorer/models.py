"""Models of the shelf: what each layer does, and what its pairs reach before and after an extension."""

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

_WHO = "explore"


@dataclass(frozen=True)
class Shown:
    """A model's settings, read.

    Args:
        name: What it is called.
        found: What `posenc.inspection.inspect` returns.
        layers: For each layer, first to last, which entry of found["layers"] it is; one layer alone where the settings
            do not say how many there are.
        told: Whether they say so.
        bundled: Whether it is one of those that come with the package.
    """

    name: str
    found: Mapping[str, Any]
    layers: tuple[int, ...]
    told: bool
    bundled: bool


def open_shown(name: str) -> Shown:
    """Return a bundled model, or one that was read from a file, by its id.

    Raises:
        ValueError: There is none of that name, or its file says nothing of how positions turn.
    """
    if name in (known := known_models()):
        return _bundled(name)
    if not name.startswith("file-"):
        raise ValueError(f"{_WHO}: there is no model {short(name)} on the shelf. Known: {', '.join(known)}.")
    kept = shelf.find(name)
    if kept.get("config") is None:
        raise ValueError(f"{_WHO}: {kept['title']} came without a config.json, which says how positions turn. Add it.")
    found, order = kept["inspection"], _order(kept["config"])
    return Shown(kept["title"], found, *_places(found, order), False)


@lru_cache(maxsize=64)
def _bundled(name: str) -> Shown:
    found = inspection.inspect(name)
    return Shown(name, found, *_places(found, _order(known_models()[name]["config"])), True)


def _order(source: config.Source) -> list[str] | None:
    """Return the kind of each layer, or None where the file does not say how many there are."""
    with suppress(ValueError):
        return kinds.layers(open_model(Checked(config.read(source))))
    return None


def _places(found: Mapping[str, Any], order: list[str] | None) -> tuple[tuple[int, ...], bool]:
    named = [layer["kind"] for layer in found["layers"]]
    if order is None or not set(order) <= set(named):
        return tuple(range(len(named))), False
    return tuple(named.index(kind) for kind in order), True
