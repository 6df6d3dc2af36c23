"""Encodings and what they placed as one line of text and some tensors: what an operator of torch can be given."""

import ast
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from posenc.attention.leaves import apart
from posenc.encoding import REGISTERED, Encoding, Placed

_OF_MODULES = frozenset(vars(nn.Module())) - {"training"}  # what every module has, and is no setting
Described = tuple[str, list[Tensor]]


def encoding(module: nn.Module) -> Described | None:
    """Return the text of a module, and its parameters; None if a setting of it is no word, number or tuple of such.

    Traced by a compiler, which then makes a program for these settings.
    """
    text = _of_module(module)
    return None if text is None else (text, [t for _, t in module.named_parameters(remove_duplicate=False)])


def placed(tree: Any) -> Described | None:
    """Return the text of what was placed, and its tensors; None if there is anything else in it."""
    if isinstance(tree, Tensor):
        return "0", [tree]
    children = [tree.pos, tree.parts] if isinstance(tree, Placed) else tree if isinstance(tree, tuple) else None
    if children is None:
        return None
    found = [placed(child) for child in children]
    if any(one is None for one in found):
        return None
    texts = ", ".join(one[0] for one in found if one is not None)
    n_axes = _of_value(tree.n_axes if isinstance(tree, Placed) else 0)
    return f"({n_axes}, [{texts}])", [t for one in found if one is not None for t in one[1]]


def read_encoding(text: str, tensors: Sequence[Tensor]) -> Encoding:
    """Return the encoding of a text, with given tensors for its parameters."""
    found: Encoding = apart(_made(text))  # threads share what is made once
    given = iter(tensors)
    for module in found.modules():
        for name in [name for name, place in module._parameters.items() if place is not None]:
            module._parameters[name] = next(given)  # type: ignore[assignment]
    return found


def read_placed(text: str, tensors: Sequence[Tensor]) -> Placed:
    """Return what was placed, of its text and tensors."""
    found = _filled(ast.literal_eval(text), iter(tensors))
    assert isinstance(found, Placed)
    return found


def _filled(tree: Any, tensors: Iterator[Tensor]) -> Any:
    if tree == 0:
        return next(tensors)
    n_axes, children = tree
    filled = tuple(_filled(child, tensors) for child in children)
    return Placed(filled[0], filled[1], n_axes) if n_axes else filled


def _of_module(module: nn.Module) -> str | None:
    """Return (class, settings, places of parameters, children) as a literal."""
    kind = _name(type(module))
    settings = [(name, _of_value(v)) for name, v in vars(module).items() if name not in _OF_MODULES]
    children = [(name, _of_module(child)) for name, child in module._modules.items() if child is not None]
    if kind is None or any(text is None for _, text in (*settings, *children)) or module._buffers:
        return None
    own = {name: None if t is None else 0 for name, t in module._parameters.items()}
    pairs = [", ".join(f"{name!r}: {text}" for name, text in some) for some in (settings, children)]
    return f"({kind!r}, {{{pairs[0]}}}, {own!r}, {{{pairs[1]}}})"


def _of_value(value: Any) -> str | None:
    if isinstance(value, (list, tuple)):
        inner = [_of_value(one) for one in value]
        if type(value) not in (list, tuple) or any(text is None for text in inner):
            return None
        texts = "".join(f"{text}, " for text in inner)
        return f"[{texts}]" if isinstance(value, list) else f"({texts})"
    if value is None or type(value) in (bool, str):
        return repr(value)
    if type(value) not in (int, float, torch.SymInt, torch.SymFloat):  # others may compute in their own way
        return None
    from torch.fx.experimental.symbolic_shapes import guard_scalar  # slow to import

    number = guard_scalar(value)  # which a compiler may have left open
    return repr(number) if math.isfinite(number) else None


def _name(kind: type) -> str | None:
    """Return what `_kind` finds a class by, in any process if it is no class of somebody's own; None if it cannot."""
    if not issubclass(kind, Encoding):
        return f"{kind.__module__}.{kind.__qualname__}" if kind is nn.ModuleList else None
    return kind.registered if kind.itself is kind else None  # a class before it may have kept it from the registry


def _kind(name: str) -> type:
    return nn.ModuleList if name == _name(nn.ModuleList) else REGISTERED[name]


@lru_cache(maxsize=256)
def _made(text: str) -> Any:
    """Return the encoding of a text, whose parameters are to be put in."""
    return _built(ast.literal_eval(text))


def _built(described: Any) -> nn.Module:
    kind, settings, parameters, children = described
    found: nn.Module = object.__new__(_kind(kind))
    nn.Module.__init__(found)
    found.__dict__ |= settings
    found._parameters = parameters
    found._modules = {name: _built(child) for name, child in children.items()}
    return found
