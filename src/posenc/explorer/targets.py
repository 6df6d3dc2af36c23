"""Find the target that the explorer starts with: an encoding, a model, a checkpoint, or a study. Imports no torch."""

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
FIRST = "rope"  # the default target


@dataclass(frozen=True)
class Target:
    """The first thing to show.

    Args:
        kind: Its kind; `own` is a user class, `file` a config.json or a checkpoint.
        name: The name of the encoding, model, file or directory.
        path: The path of a file or study; never sent to the page.
        state: The initial state of the page, as in the query string of its address.
    """

    kind: Literal["encoding", "own", "model", "file", "study"]
    name: str
    path: Path | None = None
    state: str = ""


def find(given: str | None) -> Target:
    """Find the target with a name or path.

    An existing file or directory has priority over a name of the package. The encodings are imported only for a name
    that is neither a file, a model nor an encoding's module, such as an alias or a typo. The page's state may follow
    after a question mark, as in `alibi?view=bias`.

    Raises:
        ValueError: There is no such target, or the state is invalid.
        TypeError: The target is a class that is not an encoding.

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
    """Return a state that is safe to put into an address.

    Raises:
        ValueError: It has characters that a query string cannot have.
    """
    if not _STATE.fullmatch(state):
        raise ValueError(
            f"explore: the text after the question mark must be the page's state, as in its address; got "
            f"{short(state)}. Write for example 'alibi?view=bias', in quotes for the shell."
        )
    return state


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long, or with characters that a path cannot have
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
            f"explore: {short(str(path))} must be a config.json, a .safetensors file, a directory that holds "
            "one of them, or a study's directory; got another kind of file."
        )
    if not path.is_file():
        raise ValueError(f"explore: {short(str(path))} is not a regular file. Give the path of a file.")
    return Target("file", path.parent.resolve().name if path.name == "config.json" else name, path)


def _is_study(path: Path) -> bool:
    try:
        run = json.loads((path / "run.json").read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(run, dict) and "schema" in run and (path / "cells").is_dir()


def _loaded(given: str) -> Target:
    """Return the encoding with this alias or class name, or the user class."""
    from posenc import registry  # imports the encodings, and so torch

    if ":" in given:
        registry.find_class(given)
        return Target("own", given)
    with suppress(ValueError):
        return Target("encoding", registry.card(given).name)
    near = get_close_matches(given.lower(), [*registry.names(), *known_models()], n=1, cutoff=0.5)
    meant = f": did you mean {near[0]!r}?" if near else "."
    raise ValueError(
        f"explore: there is nothing called {short(given)}{meant} Give an encoding (`posenc list`), a bundled model "
        "such as llama-3.1-8b, a config.json, a checkpoint in safetensors, or a study's directory."
    )
