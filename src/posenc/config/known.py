"""The settings of real models that come with the package."""

import json
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posenc.config.reading import Source


def known_models() -> dict[str, Any]:
    """Return the settings of real models that come with the package, by name."""
    found: dict[str, Any] = json.loads(files("posenc").joinpath("known_models.json").read_text("utf-8"))["models"]
    return found


def find(target: str, who: str) -> tuple["Source", int | None]:
    """Return a configuration by its path or its name, and for a known model the length of the texts of training.

    Args:
        target: A config.json, a directory with one, or the name of a known model.
        who: The command, for the message.

    Raises:
        ValueError: Nothing is there.
    """
    if Path(target).exists():
        return target, None
    if target in (models := known_models()):
        fields: dict[str, Any] = models[target]["config"]
        return fields, models[target]["original_max_len"]
    raise ValueError(
        f"{who}: no configuration is at {target[:200]!r}, and no known model is called so. Known: {', '.join(models)}."
    )
