"""What `posenc verify` is pointed at: a file or an object in a module, found without running anything, then loaded."""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from posenc.config.values import short

_LOADED_AS = "posenc_subject"  # not "__main__": what stands under that guard is no part of the subject


@dataclass(frozen=True)
class Target:
    """Where the subject stands.

    Args:
        path: Its file, or None for a module by name.
        module: The module's dotted name, empty for a file.
        name: The object in it, dotted; empty for build().
    """

    path: Path | None
    module: str
    name: str


@dataclass(frozen=True)
class Loaded:
    """What a target carries.

    Args:
        make: Returns the subject, a new one if the target can build one.
        style: Its STYLE, or None.
        spec: Its SPEC, or None.
    """

    make: Callable[[], Any]
    style: Any
    spec: Any


def parse(text: str) -> Target:
    """Return where a target stands; nothing is imported.

    Raises:
        ValueError: It is neither FILE.py nor package.module:OBJECT, or there is no such file.

    >>> parse("posenc.encodings:RoPE")
    Target(path=None, module='posenc.encodings', name='RoPE')
    """
    file, found, name = text.rpartition(".py:")
    if text.endswith(".py") or found:
        path, name = (Path(file + ".py"), name) if found else (Path(text), "")
        if not _is_file(path):  # a pipe or a device would block
            raise ValueError(f"verify: there is no file {short(str(path))}. Name a file of Python code.")
        _require_names(name or "build", text)
        return Target(path, "", name)
    module, colon, name = text.partition(":")
    if not colon:
        raise ValueError(f"verify: TARGET must be FILE.py or package.module:OBJECT; got {short(text)}.")
    _require_names(f"{module}.{name}", text)
    return Target(None, module, name)


def load(target: Target) -> Loaded:
    """Import the target's module, which runs its code, and return what it carries.

    Raises:
        ValueError: It has no such object, or none that can be built without arguments.
        BaseException: Whatever the code raises.
    """
    module = _module_of(target)
    name = target.name or "build"
    found: Any = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            where = target.path.name if target.path else target.module
            wanted = "Define build(), which returns what is to be checked" if name == "build" else "Correct the name"
            raise ValueError(f"verify: {short(where)} has no {name}. {wanted}.") from None
    make = _maker(found, name)
    return Loaded(make, getattr(module, "STYLE", None), getattr(module, "SPEC", None))


def spec_of(value: Any) -> dict[str, Any]:
    """Return a file's SPEC as plain values within the limits of a configuration.

    Raises:
        ValueError: It is no mapping, or exceeds a limit.
        TypeError: It holds what JSON has not.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"verify: SPEC must be a dict; got {type(value).__name__}. Write SPEC = {{...}}.")
    import torch

    from posenc.config import read

    dtypes = {k: str(v).removeprefix("torch.") for k, v in value.items() if isinstance(v, torch.dtype)}
    return read({**value, **dtypes})


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long, or a NUL in it
        return False


def _require_names(dotted: str, text: str) -> None:
    if not all(part.isidentifier() for part in dotted.split(".")):
        raise ValueError(
            f"verify: TARGET must be FILE.py or package.module:OBJECT, of Python's names; got {short(text)}."
        )


def _module_of(target: Target) -> ModuleType:
    if target.path is None:
        try:
            return importlib.import_module(target.module)
        except ModuleNotFoundError as error:
            if not f"{target.module}.".startswith(f"{error.name}."):
                raise
            raise ValueError(
                f"verify: there is no module {target.module!r}: {error.name!r} cannot be found. "
                f"Correct the name, or start where it can be imported."
            ) from None
    path = target.path.resolve()
    sys.path.insert(0, str(path.parent))  # as `python FILE.py` does, so that it finds what lies beside it
    spec = importlib.util.spec_from_file_location(_LOADED_AS, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"verify: {short(str(path))} cannot be imported as Python code.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_LOADED_AS] = module  # dataclasses and pickling look there
    spec.loader.exec_module(module)
    return module


def _maker(found: Any, name: str) -> Callable[[], Any]:
    """Return what makes the subject: build() and classes that need no arguments are called, the rest is the subject."""
    if inspect.isclass(found):
        from posenc.encoding import Encoding

        if issubclass(found, Encoding):
            return lambda: found
        if _needed(found):
            raise ValueError(
                f"verify: {name} is a class that needs {', '.join(_needed(found))}, and no arguments are known. "
                f"Write a file with build(), which returns an object of it."
            )
        return found
    if inspect.isroutine(found):
        if name.split(".")[-1] == "build" and _needed(found):
            raise ValueError(f"verify: build must need no arguments; it needs {', '.join(_needed(found))}.")
        if name.split(".")[-1] == "build" or not _parameters(found):
            made: Callable[[], Any] = found
            return made
    return lambda: found


def _parameters(of: Any) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(of).parameters.values())
    except (TypeError, ValueError):  # written in C, or a signature that lies
        return []


def _needed(of: Any) -> list[str]:
    starred = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in _parameters(of) if p.default is p.empty and p.kind not in starred]
