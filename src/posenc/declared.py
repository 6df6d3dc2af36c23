"""What encodings declare of themselves: read from their files as text, so that nothing of them runs or needs torch.

The file of an encoding has one class under `@register(name, ...)`. Facts and default arguments are literals there.
"""

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from posenc.needs import needs_torch

_FOLDER = Path(__file__).parent / "encodings"
_FAMILIES = {
    "Encoding": "none",
    "Additive": "additive",
    "Embedded": "embedded",
    "Rotary": "rotary",
    "Piecewise": "piecewise",
    "Bias": "bias",
    "ContentBias": "content_bias",
    "ScoreMap": "score_map",
    "ValueRotary": "values",
    "CameraTransform": "rotary",
}


@dataclass(frozen=True)
class Declared:
    """What is known of a class without importing it.

    Args:
        module: Where it stands.
        cls_name: Its name there.
        family: The hook that it uses; "none" where it uses none.
        docstring: Without indentation; empty where there is none.
        options: The arguments of its constructor, each with its default.
        loaded: The class itself, where it was imported.
    """

    module: str
    cls_name: str
    family: str
    docstring: str
    options: tuple[str, ...]
    loaded: type | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, found: type) -> "Declared":
        """Read a class that is imported."""
        options = tuple(
            name if parameter.default is parameter.empty else f"{name}={parameter.default!r}"
            for name, parameter in parameters(found).items()
        )
        family, said = str(getattr(found, "family", "none")), inspect.cleandoc(found.__doc__ or "")
        return cls(found.__module__, found.__qualname__, family, said, options, found)

    def load(self) -> type:
        """Return the class, imported if need be.

        Raises:
            ModuleNotFoundError: There is no torch.
        """
        if self.loaded is not None:
            return self.loaded
        with needs_torch(f"posenc.{self.cls_name}"):
            found: type = getattr(import_module(self.module), self.cls_name)
        return found


def parameters(cls: type) -> dict[str, inspect.Parameter]:
    """Return the named arguments of a class's constructor."""
    variadic = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return {n: p for n, p in inspect.signature(cls).parameters.items() if p.kind not in variadic}


@cache
def names() -> frozenset[str]:
    """Return the names of the encodings that come with posenc, which are those of their files."""
    return frozenset(path.stem for path in _FOLDER.glob("[!_]*.py"))


def read(name: str) -> tuple[Declared, dict[str, Any]]:
    """Return what the file of an encoding declares, and the facts of its `@register`.

    Raises:
        ValueError: It registers no class under its name, or a fact or a default is no literal.

    >>> declared, facts = read("nope")
    >>> declared.cls_name, declared.family, declared.options, facts["year"]
    ('NoPE', 'none', ('n_axes=1',), 2022)
    """
    source = _FOLDER / f"{name}.py"
    tree = ast.parse(source.read_text("utf-8"))
    for found, call in _registered(tree):
        if [_literal(name, one) for one in call.args] == [name]:
            facts = {str(word.arg): _literal(name, word.value) for word in call.keywords}
            module, said = f"posenc.encodings.{name}", inspect.cleandoc(ast.get_docstring(found) or "")
            return Declared(module, found.name, _family(tree, found), said, _options(name, found)), facts
    raise ValueError(f"{source.name} must register one class, as @register({name!r}, ...); it registers none so.")


def _registered(tree: ast.Module) -> Iterator[tuple[ast.ClassDef, ast.Call]]:
    classes = (node for node in tree.body if isinstance(node, ast.ClassDef))
    for node in classes:
        for call in node.decorator_list:
            if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("register"):
                yield node, call


def _literal(name: str, value: ast.expr) -> Any:
    try:
        return ast.literal_eval(value)
    except ValueError as error:
        raise ValueError(
            f"{name}.py: what @register is given, and the defaults of __init__, must be literals, because cards are "
            f"read without importing the file; got {ast.unparse(value)}. Write the value out."
        ) from error


def _family(tree: ast.Module, found: ast.ClassDef) -> str:
    """Return the family that a class names itself, or that of its bases."""
    for node in found.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "family":
            return str(ast.literal_eval(node.value))
    bases = [ast.unparse(base) for base in found.bases]
    homes = {a.asname or a.name: n.module for n in tree.body if isinstance(n, ast.ImportFrom) for a in n.names}
    for base in bases:
        if base in _FAMILIES:
            return _FAMILIES[base]
        if str(homes.get(base)).startswith("posenc.encodings."):  # another encoding
            return read(str(homes[base]).rpartition(".")[2])[0].family
    raise ValueError(f"{found.name}: its bases must name a family, {', '.join(_FAMILIES)}; got {', '.join(bases)}.")


def _options(name: str, found: ast.ClassDef) -> tuple[str, ...]:
    """Return the arguments of the constructor as a caller writes them."""
    for node in found.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            defaults = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            return tuple(a.arg if d is None else f"{a.arg}={_literal(name, d)!r}" for a, d in defaults)
    raise ValueError(f"{found.name}: must write its own __init__, from which its options are read.")
