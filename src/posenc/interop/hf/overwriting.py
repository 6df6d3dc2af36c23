"""Whether queries and keys may be turned in place: where a forward has just made them, and nobody else looks at them.

Fresh memory costs more than the turn. An attention may be overwritten if its source shows that what it turns comes out
of linear layers by views and norms alone, under names that stand for nothing else.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as _everywhere

_LOOKS = {"shape", "dtype", "device", "ndim"}


def sources(module: nn.Module, function: str) -> list[str] | None:
    """Return the names of the linear layers that what `function` turns comes from; None where others may see it."""
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(type(module).forward)))).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _named(node.func, function)]
    assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    if len(calls) != 1:
        return None
    statement = next((node for node in assigned if node.value is calls[0]), None)
    turned = [arg.id for arg in calls[0].args[:2] if isinstance(arg, ast.Name)]
    if statement is None or len(set(turned)) != 2 or _targets(statement) != turned:
        return None
    before = [node for node in assigned if node.lineno < statement.lineno]
    own = [node for node in before if not set(_targets(node)).isdisjoint(turned)]
    roots = [_root(module, node.value, _targets(node)) for node in own]
    if None in roots or any(len(_targets(node)) != 1 for node in own) or set(turned) - {_targets(n)[0] for n in own}:
        return None
    inside = {id(inner) for node in (*own, statement) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in _LOOKS:
            inside |= {id(inner) for inner in ast.walk(node)}
    others = (node for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in inside)
    if any(node.id in turned and node.lineno < statement.lineno for node in others):
        return None
    return sorted({root for root in roots if root})


def forward(module: Any, *args: Any, fresh: Any, overwriting: Any, layers: tuple[str, ...], **kwargs: Any) -> Any:
    """Run the forward that overwrites, unless gradients, a compiler or somebody's hooks look at what it would."""
    looked_at = any(module._modules[layer]._forward_hooks for layer in layers) or _everywhere._global_forward_hooks
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or looked_at:
        return fresh(module, *args, **kwargs)
    return overwriting(module, *args, **kwargs)


def _root(module: nn.Module, value: ast.expr, targets: list[str]) -> str | None:
    """Return the linear layer that an expression is a view or norm of; "" where it is one of what it is assigned to."""
    while True:
        if isinstance(value, ast.Name):
            return "" if [value.id] == targets else None
        if not isinstance(value, ast.Call) or not isinstance(method := value.func, ast.Attribute):
            return None
        if not _named(method.value, "self"):
            value = method.value  # a method of what is on its left
            continue
        layer = getattr(module, method.attr, None)
        if "Linear" in type(layer).__name__:
            return str(method.attr)
        if not isinstance(layer, nn.Module) or not value.args:
            return None
        value = value.args[0]


def _named(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _targets(node: ast.Assign) -> list[str]:
    return [name.id for target in node.targets for name in _names(target)]


def _names(target: ast.expr) -> Iterator[Any]:
    inner = target.elts if isinstance(target, ast.Tuple) else [target]
    return (node for node in inner if isinstance(node, ast.Name))
