"""Which tests run (`sampling.py`), in which order, with one thread of arithmetic each, and with shapes checked."""

import gc
import inspect
import random
import signal
import threading
import typing
from collections.abc import Callable
from functools import partial
from typing import Any

import jaxtyping
import pytest
import torch
from beartype import BeartypeConf, beartype

import sampling

gc.disable()  # collecting makes many objects and no garbage; on again when it has ended
torch.set_num_threads(1)  # two processes share the cores of a small machine
# A shell that runs `make test &` lets it ignore Ctrl-C, and the children that tests interrupt would inherit that.
if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Half a minute or more each: begun last, one of them would leave the other workers idle.
LONG = ("test_page.py", "test_command.py", "test_compiled.py", "test_blocks.py", "test_child.py", "test_triton.py")
_shaped = jaxtyping.jaxtyped
_typed = beartype(conf=BeartypeConf(violation_type=jaxtyping.TypeCheckError))


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("posenc")
    group.addoption("--whole", action="store_true", help="run everything: slow tests and whole products of parameters")
    group.addoption("--sample-seed", type=int, default=0, help="of the pairwise samples of products of parameters")
    group.addoption("--shuffle", type=int, metavar="SEED", help="run the tests in a random order")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("whole"):
        sampling.property_share = 1.0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("whole"):
        items[:], dropped = sampling.split(items, config.getoption("sample_seed"))
        config.hook.pytest_deselected(items=dropped)
    items.sort(key=lambda item: item.path.name not in LONG)
    if config.getoption("shuffle") is not None:
        random.Random(config.getoption("shuffle")).shuffle(items)


def pytest_collection_finish() -> None:
    gc.freeze()  # what was collected lives to the end, and need not be looked through again
    gc.enable()


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
