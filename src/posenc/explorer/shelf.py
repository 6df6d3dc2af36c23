"""State of the running explorer for its views: models read from files, and a study's directory.

It stays in memory for as long as the server runs, and is never written to disk.
"""

import secrets
from collections import OrderedDict
from pathlib import Path
from threading import Lock
from typing import Any

from posenc.languages import tr

MAX_KEPT = 32  # models; the oldest is removed first

_models: OrderedDict[str, dict[str, Any]] = OrderedDict()
_lock = Lock()
_study: list[Path] = []


def keep(model: dict[str, Any]) -> str:
    """Keep an inspected model and return its id for the views; ids cannot be guessed."""
    key = f"file-{secrets.token_hex(8)}"
    with _lock:
        _models[key] = model
        while len(_models) > MAX_KEPT:
            _models.popitem(last=False)
    return key


def find(key: str) -> dict[str, Any]:
    """Return the model with an id.

    Raises:
        ValueError: There is no model with that id.
    """
    with _lock:
        if key not in _models:
            raise ValueError(tr("explore: that model is no longer in memory. Drop its file again."))
        return _models[key]


def use_study(directory: Path) -> None:
    """Set the study's directory."""
    _study[:] = [directory]


def study() -> Path | None:
    """Return the study's directory, or None if the explorer was started without one."""
    return _study[0] if _study else None
