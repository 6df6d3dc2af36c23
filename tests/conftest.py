"""One thread of arithmetic in each test process, and shapes checked where they are named."""

import inspect
import typing
from collections.abc import Callable
from functools import partial
from typing import Any

import jaxtyping
import torch
from beartype import BeartypeConf, beartype

torch.set_num_threads(1)  # two processes share the cores of a small machine

_shaped = jaxtyping.jaxtyped
_typed = beartype(conf=BeartypeConf(violation_type=jaxtyping.TypeCheckError))


def names_shapes(function: Callable[..., Any]) -> bool:
    """Say whether an annotation of a function names a shape; where it cannot be read, it may."""
    try:
        return "jaxtyping." in repr(typing.get_type_hints(function))
    except Exception:  # names that only a type checker imports
        return True


def lean(function: Any = None, **how: Any) -> Any:
    """Check shapes where some are named, and plain types alone elsewhere.

    `--jaxtyping-packages` wraps every function, and its wrapper binds the arguments of every call anew, which takes
    longer than most functions do. Functions within functions, made at every call, are left to mypy if they name none.
    """
    if function is None:
        return partial(lean, **how)
    if inspect.isclass(function) or names_shapes(function):
        return _shaped(function, **how)
    return function if "<locals>" in function.__qualname__ else _typed(function)


jaxtyping.jaxtyped = lean
