"""The target of `posenc verify`: a file or an object in a module, parsed without running anything, then loaded."""

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from posenc.config.values import short

_LOADED_AS = "posenc_subject"  # not "__main__": code under that guard is not part of the subject


class Target(NamedTuple):
    """Where the subject is: a dotted name in a file or in a module."""

    path: Path | None
    module: str
    name: str


def parse(text: str) -> Target:
    """Return the place of a target without importing anything.

    Raises:
        ValueError: It is neither FILE.py nor package.module:OBJECT, or the file does not exist.

    >>> parse("posenc.encodings:RoPE")
    Target(path=None, module='posenc.encodings', name='RoPE')
    """
    place, colon, name = (text, ":", "build") if text.endswith(".py") else text.rpartition(":")
    is_file = place.endswith(".py")
    if is_file and not os.path.isfile(place):  # Path would raise; a pipe or a device would block
        raise ValueError(f"verify: there is no file {short(place)}. Name a file of Python code.")
    if not colon or not all(part.isidentifier() for part in (name if is_file else f"{place}.{name}").split(".")):
        raise ValueError(f"verify: TARGET must be FILE.py or package.module:OBJECT; got {short(text)}.")
    return Target(Path(place), "", name) if is_file else Target(None, place, name)


def load(target: Target) -> tuple[Callable[[], Any], Any, Any]:
    """Import the target's module, which runs its code; return a function that makes the subject, and STYLE and SPEC.

    Raises:
        ValueError: The object does not exist, or cannot be built without arguments.
    """
    module = found = _module(target.module) if target.path is None else _file(target.path.resolve())
    for part in target.name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            where = target.path.name if target.path else target.module
            build = target.name == "build"
            wanted = "Correct the name"
            if build:
                wanted = "Define build(), which returns the object to check, as in docs/verify.md"
            raise ValueError(f"verify: {short(where)} has no {target.name}. {wanted}.") from None
    return _maker(found, target.name), getattr(module, "STYLE", None), getattr(module, "SPEC", None)


def spec_of(value: Any) -> dict[str, Any]:
    """Return a file's SPEC as plain values, or refuse one that exceeds the limits of a configuration."""
    if not isinstance(value, Mapping):
        raise ValueError(f"verify: SPEC must be a dict; got {type(value).__name__}. Write SPEC = {{...}}.")
    import torch

    from posenc.config import read

    dtypes = {k: str(v).removeprefix("torch.") for k, v in value.items() if isinstance(v, torch.dtype)}
    return read({**value, **dtypes})


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise
        raise ValueError(
            f"verify: there is no module {name!r}: {error.name!r} cannot be found. "
            f"Correct the name, or run posenc where it can be imported."
        ) from None


def _file(path: Path) -> ModuleType:
    sys.path.insert(0, str(path.parent))  # like `python FILE.py`, so that it finds its neighbours
    spec = importlib.util.spec_from_file_location(_LOADED_AS, path)
    assert spec
    assert spec.loader  # the name ends in .py
    module = sys.modules[_LOADED_AS] = importlib.util.module_from_spec(spec)  # dataclasses and pickle look it up there
    spec.loader.exec_module(module)
    return module


def _maker(found: Any, name: str) -> Callable[[], Any]:
    """Return a function that makes the subject: it calls build() or a class, or returns the object itself."""
    from posenc.encoding import Encoding

    try:
        parameters = list(inspect.signature(found).parameters.values())
    except (TypeError, ValueError):  # written in C, or with a wrong signature
        parameters = []
    starred = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = ", ".join(p.name for p in parameters if p.default is p.empty and p.kind not in starred)
    is_class, builds = inspect.isclass(found), name.split(".")[-1] == "build" and inspect.isroutine(found)
    is_called = not issubclass(found, Encoding) if is_class else builds
    if is_called and needed:
        why = (
            f"{name} is a class that needs {needed}" if is_class else f"build must need no arguments; it needs {needed}"
        )
        raise ValueError(f"verify: {why}. Write a file with build(), which needs none and returns the object to check.")
    if is_called or (not is_class and inspect.isroutine(found) and not parameters):
        made: Callable[[], Any] = found
        return made
    return lambda: found
