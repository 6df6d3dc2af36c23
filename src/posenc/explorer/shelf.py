"""What the running explorer holds beside the registry: models read from files, and a study's directory.

Views ask here. It lasts as long as the server and is never written to a disk.
"""

import secrets
from collections import OrderedDict
from pathlib import Path
from threading import Lock
from typing import Any

MAX_KEPT = 32  # models; the oldest goes first

_models: OrderedDict[str, dict[str, Any]] = OrderedDict()
_lock = Lock()
_study: list[Path] = []


def keep(model: dict[str, Any]) -> str:
    """Keep an inspected model and return the id by which views ask for it; ids cannot be guessed."""
    key = f"file-{secrets.token_hex(8)}"
    with _lock:
        _models[key] = model
        while len(_models) > MAX_KEPT:
            _models.popitem(last=False)
    return key


def find(key: str) -> dict[str, Any]:
    """Return what was kept under an id.

    Raises:
        ValueError: Nothing is kept under it.
    """
    with _lock:
        if key not in _models:
            raise ValueError("explore: that model is held no longer; files stay in memory only. Drop it again.")
        return _models[key]


def use_study(directory: Path) -> None:
    """Let views look at a study's directory."""
    _study[:] = [directory]


def study() -> Path | None:
    """Return the study's directory that the explorer was started with."""
    return _study[0] if _study else None
