"""A mutated file in the place of the imported one: code by code, so that whoever holds a function runs the mutant."""

import ast
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from mutants import Mutant, mutated

ROOT = Path(importlib.import_module("posenc").__file__ or "").parent
TRUTH = "posenc.frequencies"  # what checks work with as well: theirs stays as it is


class RefusedError(Exception):
    """A changed statement of a module that raises, so that importing it would."""


def set_truth_apart() -> None:
    """Give `posenc.verify` a copy of the frequencies of its own, so that a mutant does not judge itself."""
    checks = [module for name, module in sys.modules.items() if name.startswith("posenc.verify")]
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if name.startswith(TRUTH)}
    importlib.import_module(TRUTH)
    apart = {name: sys.modules[name] for name in list(sys.modules) if name.startswith(TRUTH)}
    sys.modules.update(before)
    parent, _, leaf = TRUTH.rpartition(".")
    setattr(sys.modules[parent], leaf, before[TRUTH])
    for module in checks:
        for name, value in list(vars(module).items()):
            if isinstance(value, ModuleType) and value.__name__ in apart:
                setattr(module, name, apart[value.__name__])
            elif getattr(value, "__module__", None) in apart and hasattr(value, "__qualname__"):
                setattr(module, name, getattr(apart[value.__module__], value.__qualname__))


def put(mutant: Mutant) -> None:
    """Make a mutant's change in this process.

    Raises:
        LookupError: What it is in cannot be found in the imported package.
    """
    module = _module(mutant.file)
    tree = mutated((ROOT / mutant.file).read_text(), mutant)
    holder, node = _find(tree, mutant.function)
    if isinstance(node, ast.FunctionDef):
        _put_function(module, holder, node, tree, mutant)
    else:
        _put_value(module, mutant, tree)


def _module(file: str) -> ModuleType:
    return importlib.import_module("posenc." + file.removesuffix(".py").replace("/", "."))


def _find(tree: ast.Module, path: str) -> tuple[str, ast.AST]:
    """Return the class that holds a function or "", and the function, or the class itself."""
    node: ast.AST = tree
    *above, _ = path.split(".") if path else [""]
    for name in path.split(".") if path else []:
        node = next(n for n in node.body if getattr(n, "name", None) == name)  # type: ignore[attr-defined]
    return ".".join(above), node


def _put_function(module: ModuleType, holder: str, node: ast.FunctionDef, tree: ast.Module, mutant: Mutant) -> None:
    live = _replace_code(module, holder, node, compile(tree, str(ROOT / mutant.file), "exec"), mutant.function)
    space = vars(module)
    defaults = [eval(_expression(value), space) for value in node.args.defaults]
    live.__defaults__ = tuple(defaults) or None
    named = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    live.__kwdefaults__ = {a.arg: eval(_expression(value), space) for a, value in named if value is not None} or None


def _replace_code(
    module: ModuleType, holder: str, node: ast.FunctionDef, compiled: CodeType, function: str
) -> FunctionType:
    codes = [code for code in _codes(compiled) if code.co_qualname == function]
    owner: Any = getattr(module, holder) if holder else module
    live = _unwrapped(vars(owner)[node.name], function)
    live.__code__ = next(code for code in codes if code.co_firstlineno == _line(node))
    return live


def watch(file: str) -> set[int]:
    """Let every function of a file note the statements that it runs; return where their first lines are noted."""
    tree = ast.parse((ROOT / file).read_text())
    functions = list(_functions(tree, ""))
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            body = getattr(node, field, None)
            if isinstance(body, list) and not isinstance(node, ast.Module | ast.ClassDef):
                setattr(node, field, [part for statement in body for part in (*_noting(statement), statement)])
    compiled = compile(ast.fix_missing_locations(tree), str(ROOT / file), "exec")
    module, seen = _module(file), set[int]()
    vars(module)["__seen__"] = seen
    for holder, node in functions:
        _replace_code(module, holder, node, compiled, f"{holder}.{node.name}".lstrip("."))
    return seen


def _functions(node: ast.Module | ast.ClassDef, holder: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    for part in node.body:
        if isinstance(part, ast.FunctionDef):
            yield holder, part
        elif isinstance(part, ast.ClassDef):
            yield from _functions(part, f"{holder}.{part.name}".lstrip("."))


def _noting(statement: ast.stmt) -> list[ast.stmt]:
    if isinstance(statement, ast.Nonlocal | ast.Global):
        return []
    return ast.parse(f"__seen__.add({statement.lineno})").body


def _line(node: ast.FunctionDef) -> int:
    return min([node.lineno, *(d.lineno for d in node.decorator_list)])


def _expression(node: ast.expr) -> CodeType:
    return compile(ast.Expression(node), "<default>", "eval")


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _unwrapped(found: Any, function: str) -> FunctionType:
    """Return the function that was written, below property, classmethod and decorators."""
    while True:
        if isinstance(found, FunctionType) and found.__code__.co_qualname == function:
            return found
        inside = ("fget", "__func__", "__wrapped__", "func")
        inner = next((getattr(found, name) for name in inside if hasattr(found, name)), None)
        if inner is None:
            raise LookupError(function)
        found = inner


def _put_value(module: ModuleType, mutant: Mutant, tree: ast.Module) -> None:
    """Run a statement of a module or a class again, and give what it binds to all who have it."""
    body = tree.body if not mutant.function else _find(tree, mutant.function)[1].body  # type: ignore[attr-defined]
    statement = next(s for s in body if s.lineno == mutant.lines[0])
    space: dict[str, Any] = {}
    try:
        exec(compile(ast.Module([statement], []), mutant.file, "exec"), vars(module), space)
    except Exception as error:
        raise RefusedError(f"{type(error).__name__}: {error}") from error
    if mutant.function:
        for name, value in space.items():
            setattr(getattr(module, mutant.function), name, value)
        return
    for name, value in space.items():
        old = vars(module)[name]
        for path, other in list(sys.modules.items()):
            if path.startswith("posenc.") and not path.startswith("posenc.verify") and vars(other).get(name) is old:
                setattr(other, name, value)


def is_body(mutant: Mutant) -> bool:
    """Tell whether a mutant is no part of a function: whoever runs anything of the file may see it."""
    tree = ast.parse((ROOT / mutant.file).read_text())
    return not isinstance(_find(tree, mutant.function)[1], ast.FunctionDef)
