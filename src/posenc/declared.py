"""Read the declarations of encodings from their files as text, which runs none of their code and needs no torch.

The file of an encoding has one class decorated with `@register(name, ...)`. Its facts and default arguments are
literals.
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
    """The declaration of a class, read without importing it.

    Args:
        module: The module of the class.
        cls_name: The name of the class.
        family: The hook that it uses, or "none".
        docstring: Its docstring without indentation, or an empty string.
        options: The arguments of its constructor, each with its default.
        loaded: The class itself, if it was imported.
    """

    module: str
    cls_name: str
    family: str
    docstring: str
    options: tuple[str, ...]
    loaded: type | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, found: type) -> "Declared":
        """Read an imported class."""
        options = tuple(
            name if parameter.default is parameter.empty else f"{name}={parameter.default!r}"
            for name, parameter in parameters(found).items()
        )
        family, docstring = str(getattr(found, "family", "none")), inspect.cleandoc(found.__doc__ or "")
        return cls(found.__module__, found.__qualname__, family, docstring, options, found)

    def load(self) -> type:
        """Return the class, and import it if necessary.

        Raises:
            ModuleNotFoundError: torch is not installed.
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
    """Return the names of posenc's own encodings, which are those of their files."""
    return frozenset(path.stem for path in _FOLDER.glob("[!_]*.py"))


def read(name: str) -> tuple[Declared, dict[str, Any]]:
    """Return the declaration in the file of an encoding, and the facts of its `@register`.

    Raises:
        ValueError: It does not register a class under its name, or a fact or a default is not a literal.

    >>> declared, facts = read("nope")
    >>> declared.cls_name, declared.family, declared.options, facts["year"]
    ('NoPE', 'none', ('n_axes=1',), 2022)
    """
    source = _FOLDER / f"{name}.py"
    tree = ast.parse(source.read_text("utf-8"))
    for found, call in _registered(tree):
        if [_literal(name, one) for one in call.args] == [name]:
            facts = {str(word.arg): _literal(name, word.value) for word in call.keywords}
            module, docstring = f"posenc.encodings.{name}", inspect.cleandoc(ast.get_docstring(found) or "")
            return Declared(module, found.name, _family(tree, found), docstring, _options(name, found)), facts
    raise ValueError(f"{source.name} must register one class as @register({name!r}, ...); got none.")


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
            f"{name}.py: the arguments of @register and the defaults of __init__ must be literals, because cards are "
            f"read without importing the file; got {ast.unparse(value)}. Write the value out."
        ) from error


def _family(tree: ast.Module, found: ast.ClassDef) -> str:
    """Return the family that a class sets itself, or that of its bases."""
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
    raise ValueError(
        f"{found.name}: one of its bases must be a family, {', '.join(_FAMILIES)}; got {', '.join(bases)}."
    )


def _options(name: str, found: ast.ClassDef) -> tuple[str, ...]:
    """Return the arguments of the constructor as in a call."""
    for node in found.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            defaults = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            return tuple(a.arg if d is None else f"{a.arg}={_literal(name, d)!r}" for a, d in defaults)
    raise ValueError(f"{found.name}: must define its own __init__, from which its options are read.")
