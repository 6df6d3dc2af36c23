"""The configurations of real models in this package."""

import json
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posenc.config.reading import Source


def known_models() -> dict[str, Any]:
    """Return the configurations of real models in this package, by name."""
    found: dict[str, Any] = json.loads(files("posenc").joinpath("known_models.json").read_text("utf-8"))["models"]
    return found


def find(target: str, who: str) -> tuple["Source", int | None]:
    """Return a configuration by its path or its name, and the trained length of a known model.

    Args:
        target: A config.json, a directory with one, or the name of a known model.
        who: The command, for the message.

    Raises:
        ValueError: There is no such file, directory or model.
    """
    if Path(target).exists():
        return target, None
    if target in (models := known_models()):
        fields: dict[str, Any] = models[target]["config"]
        return fields, models[target]["original_max_len"]
    raise not_found(target, who)


def not_found(target: str, who: str) -> ValueError:
    """Return the error for a target that is no configuration; it names the models only where a name may be meant."""
    if Path(target).is_dir():
        return ValueError(f"{who}: the directory {target[:200]!r} contains no config.json. Give a model's directory.")
    return ValueError(
        f"{who}: {target[:200]!r} is neither a configuration nor the name of a known model. Give a config.json, "
        f"a directory with one, or one of: {', '.join(known_models())}."
    )
