"""What the explorer is started on: an encoding, a model's settings, a checkpoint, or a study. Knows no torch."""

import json
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Literal

from posenc.config.known import known_models
from posenc.config.values import short

_STATE = re.compile(r"[A-Za-z0-9%&=+,.:/_~*()'!@-]*")
FIRST = "rope"  # what is shown where nothing is asked for


@dataclass(frozen=True)
class Target:
    """What to show first.

    Args:
        kind: What it is; `own` is a class of one's own, `file` a config.json or a checkpoint.
        name: The encoding's or model's name; of files, what they are called.
        path: Of files and studies; never sent to the page.
        state: What the page begins with, as it stands in its address behind the question mark.
    """

    kind: Literal["encoding", "own", "model", "file", "study"]
    name: str
    path: Path | None = None
    state: str = ""


def find(given: str | None) -> Target:
    """Find out what a target is.

    What exists on the disk wins over a name of the package. Only where a name is neither a file's, a model's nor that
    of an encoding's module (an alias, say, or a mistake) the encodings are loaded to decide. Behind a question mark the
    page's state may follow, as in `alibi?view=bias`.

    Raises:
        ValueError: It is none of the kinds, or what follows is no state.
        TypeError: It is a class that is no encoding.

    >>> find("llama-3.1-8b").kind, find("alibi").kind
    ('model', 'encoding')
    """
    if given is None:
        return Target("encoding", FIRST)
    path = Path(given)
    if given and _exists(path):
        return _of_path(path)
    if "?" in given:
        name, _, state = given.partition("?")
        return replace(find(name or None), state=_checked(state))
    if given in known_models():
        return Target("model", given)
    if f"{given}.py" in {entry.name for entry in files("posenc").joinpath("encodings").iterdir()} - {"__init__.py"}:
        return Target("encoding", given)
    if path.suffix in {".json", ".safetensors"} or (len(path.parts) > 1 and ":" not in given):
        raise ValueError(f"explore: there is no file {short(given)}. Check the path.")
    return _loaded(given)


def _checked(state: str) -> str:
    """Return a state, which becomes part of an address.

    Raises:
        ValueError: It has characters that no address has there.
    """
    if not _STATE.fullmatch(state):
        raise ValueError(
            f"explore: what follows the question mark must be the page's state, as the page copies it; got "
            f"{short(state)}. Write alibi?view=bias, in quotes for the shell."
        )
    return state


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long, or with characters that no path has
        return False


def _of_path(path: Path) -> Target:
    name = path.name or path.resolve().name
    if path.is_dir():
        if _is_study(path):
            return Target("study", name, path)
        if (path / "config.json").is_file() or any(path.glob("*.safetensors")):
            return Target("file", name, path)
        raise ValueError(
            f"explore: the directory {short(str(path))} holds neither config.json, nor *.safetensors, nor a study's "
            "run.json. Name one that does, or an encoding."
        )
    if path.suffix not in {".json", ".safetensors"}:
        raise ValueError(
            f"explore: {short(str(path))} must be a config.json, a file in safetensors, a directory that holds "
            "them, or a study's directory; got another file."
        )
    if not path.is_file():
        raise ValueError(f"explore: {short(str(path))} is no regular file. Name a file.")
    return Target("file", path.parent.resolve().name if path.name == "config.json" else name, path)


def _is_study(path: Path) -> bool:
    try:
        run = json.loads((path / "run.json").read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(run, dict) and "schema" in run and (path / "cells").is_dir()


def _loaded(given: str) -> Target:
    """Return the encoding that has this alias or class's name, or is a class of one's own."""
    from posenc import registry  # its names load the encodings, and so torch

    if ":" in given:
        registry.find_class(given)
        return Target("own", given)
    with suppress(ValueError):
        return Target("encoding", registry.card(given).name)
    near = get_close_matches(given.lower(), [*registry.names(), *known_models()], n=1, cutoff=0.5)
    meant = f": did you mean {near[0]!r}?" if near else "."
    raise ValueError(
        f"explore: there is nothing called {short(given)}{meant} Name an encoding (`posenc list`), a bundled model "
        "such as llama-3.1-8b, a config.json, a checkpoint in safetensors, or a study's directory."
    )
