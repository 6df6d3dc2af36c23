"""The settings of real models that come with the package."""

import json
from importlib.resources import files
from typing import Any


def known_models() -> dict[str, Any]:
    """Return the settings of real models that come with the package, by name."""
    found: dict[str, Any] = json.loads(files("posenc").joinpath("known_models.json").read_text("utf-8"))["models"]
    return found
