"""How a definition computes one of its numbers: its lines as they run, each with the numbers filled in.

A definition is executed statement by statement, as written. It contains no code for this, and the lines shown are
those that ran. It is run for one query and one key, or for one position.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from posenc.definitions.expressions import Frame, Sum, draw
from posenc.definitions.written import is_number, sum_sentences, written

Array = NDArray[np.float64]
Cell = tuple[int, ...]
_RUNS_ON = object()  # the result of a statement that does not return
_SHORT = 4


@dataclass(frozen=True)
class Step:
    """One line of a definition as it ran.

    Args:
        function: The definition, or one that it calls.
        name: The target that the line sets; "" where it returns.
        formula: The expression, with only the branches taken.
        numbers: The same with the numbers filled in.
        value: The result; for an array, the requested element.
        sums: The sums in the expression.
    """

    function: str
    name: str
    formula: str
    numbers: str
    value: Any
    sums: tuple[Sum, ...] = ()

    def __str__(self) -> str:
        """Write it as an equation."""
        sides = [self.name, *map(_plain, (self.formula, self.numbers)), written(self.value)]
        return " = ".join(side for i, side in enumerate(sides) if side and side not in sides[:i])

    def sentences(self) -> Iterator[str]:
        """Yield the sums, the largest terms first, and then the equation."""
        for what, terms in self.sums:
            yield from sum_sentences(terms, _plain(what))
        yield f"{self}."


def follow(define: Callable[..., Any], cell: Cell, *args: Any, **options: Any) -> tuple[Any, list[Step]]:
    """Run a definition; return its result, and the steps that lead to one element of it.

    Args:
        define: A function of this package.
        cell: The element's place in the result, or in the first array of it.
        args: Arguments of the definition.
        options: Its keyword arguments.

    >>> from posenc.definitions.bias import relative_bias
    >>> at, key, table = np.array([9]), np.array([4]), np.array([[0.5, 0.25, 0.125]])
    >>> _, steps = follow(relative_bias, (0, 0, 0), at, key, n_heads=1, max_distance=1, weight=table)
    >>> for step in steps: print(step)
    distance = int(min(max(p_q - p_k, -max_distance), max_distance)) = int(min(max(9 - 4, -1), 1)) = 1
    out[:, i, j] = weight[:, distance + max_distance] = weight[:, 1 + 1] = 0.125
    """
    run = _Run(cell)
    out = run.call(define, *args, **options)
    return out, run.steps()


class _Note(NamedTuple):
    """An expression that was run: its target, its result, and the function's names before it."""

    target: ast.expr | None
    node: ast.expr
    value: Any
    frame: Frame


class _Run:
    """One run: it executes statements, and records those that lead to the cell."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.notes: list[_Note] = []
        self.quiet = False  # while numbers are filled in, functions run without notes

    def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Run a function of this package; those that it calls are run in the same way."""
        if self.quiet:
            return function(*args, **options)
        bound = inspect.signature(function).bind(*args, **options)
        bound.apply_defaults()
        names = function.__globals__ | {name: partial(self.call, f) for name, f in _callees(function).items()}
        return self._enter(_parse(function), names | bound.arguments)

    def _enter(self, node: ast.FunctionDef, names: dict[str, Any]) -> Any:
        statements = node.body[bool(ast.get_docstring(node)) :]
        returns = [one.value for one in ast.walk(node) if isinstance(one, ast.Return) and one.value is not None]
        frame = Frame(node.name, names, set().union(*map(_names_in, returns)))
        return self._body(statements, frame)[0]

    def _nested(self, node: ast.FunctionDef, frame: Frame, *args: Any) -> Any:
        """Run a function that is defined inside a definition."""
        given = dict(zip([one.arg for one in node.args.args], args, strict=True))
        return self._enter(node, frame.names | given)

    def _body(self, statements: list[ast.stmt], frame: Frame) -> tuple[Any, bool | None]:
        """Run statements; return what they return, and whether they set the cell (None where they set no element)."""
        reached: bool | None = None
        for node in statements:
            out: Any = _RUNS_ON
            found: bool | None = None
            if isinstance(node, ast.For):
                found = self._loop(node, frame)
            elif isinstance(node, ast.If):
                out, found = self._body(node.body if frame.value(node.test) else node.orelse, frame)
            elif isinstance(node, ast.Return) and node.value is not None:
                before = dict(frame.names)
                out = frame.value(node.value)
                self._note(None, node.value, out, before, frame)
            elif isinstance(node, (ast.Assign, ast.AugAssign)):
                found = self._assign(node, frame)
            elif isinstance(node, ast.FunctionDef):
                frame.names[node.name] = partial(self._nested, node, frame)
            else:
                frame.execute(node)
            reached = found if reached is None or found else reached
            if out is not _RUNS_ON:
                return out, reached
        return _RUNS_ON, reached

    def _loop(self, node: ast.For, frame: Frame) -> bool | None:
        """Run a loop, keeping the notes of rounds that set the cell; keep all of a short loop that sets none."""
        reached: bool | None = None
        rounds = list(self._rounds(node, frame))
        for item in rounds:
            before = len(self.notes)
            frame.bind(node.target, item)
            _, found = self._body(node.body, frame)
            if found is False or (found is None and len(rounds) > _SHORT):
                del self.notes[before:]
            reached = found if reached is None or found else reached
        return reached

    def _rounds(self, node: ast.For, frame: Frame) -> Iterable[Any]:
        """Return the items of a loop; only the cell for a loop over all elements, `for h, i, j: out[h, i, j] = ..`."""
        sets = [target for one in ast.walk(node) if isinstance(one, ast.Assign) for target, _ in _pairs(one)]
        places = {ast.unparse(one.slice) for one in sets if isinstance(one, ast.Subscript)}
        over_all = places == {ast.unparse(node.target)} and isinstance(node.target, ast.Tuple)
        found: Iterable[Any] = [self.cell] if over_all else frame.value(node.iter)
        return found

    def _assign(self, node: ast.Assign | ast.AugAssign, frame: Frame) -> bool | None:
        """Run an assignment and note its targets; return whether one is the cell, None if none is an element."""
        pairs = list(_pairs(node))
        covers = [self._covers(target, frame) for target, _ in pairs]
        before = dict(frame.names)
        if isinstance(node, ast.AugAssign):  # it modifies the array that it reads
            before |= {name: np.copy(frame.names[name]) for name in _names_in(node.target) & frame.made}
        cell = self.cell
        if covers == [True]:
            self.cell = self._within(pairs[0][0], frame)
        with self._silence(when=covers == [False]):
            frame.execute(node)
        self.cell = cell
        for (target, value), cover in zip(pairs, covers, strict=True):
            if cover is not False:
                whole = target.value if isinstance(target, ast.Subscript) else _load(target)
                self._note(target, value, frame.value(whole), before, frame)
        known = [cover for cover in covers if cover is not None]
        return any(known) if known else None

    def _within(self, target: ast.expr, frame: Frame) -> Cell:
        """Return the cell's place in the part of an array that a target names, for the function that computes it."""
        assert isinstance(target, ast.Subscript)
        array = np.asarray(frame.value(target.value))
        numbers = np.arange(array.size).reshape(array.shape)
        part = numbers[frame.value(target.slice)]
        return tuple(int(place[0]) for place in np.nonzero(part == numbers[self._place(array)])) if part.ndim else ()

    def _covers(self, target: ast.expr, frame: Frame) -> bool | None:
        """Return whether a target is the cell or contains it; None if it is not an element of the return value."""
        if not isinstance(target, ast.Subscript) or not _names_in(target.value) & frame.made:
            return None
        mask = np.zeros(np.shape(frame.value(target.value)), dtype=bool)
        mask[frame.value(target.slice)] = True
        return bool(mask[self._place(mask)])

    def _place(self, array: Array) -> Cell:
        """Return the cell's place in an array: its last indices in a matrix, its first in a vector."""
        return self.cell[-array.ndim :] if array.ndim > 1 else self.cell[: array.ndim]

    @contextmanager
    def _silence(self, *, when: bool = True) -> Iterator[None]:
        """Call functions without notes."""
        before, self.quiet = self.quiet, self.quiet or when
        try:
            yield
        finally:
            self.quiet = before

    def _note(self, target: ast.expr | None, node: ast.expr, value: Any, names: dict[str, Any], frame: Frame) -> None:
        """Record the result of an expression.

        Args:
            target: The target it is assigned to; None where it is returned.
            node: The expression.
            value: The result; if an element is set, the array.
            names: The values of the names before.
            frame: The function.
        """
        value = value[0] if isinstance(value, tuple) and isinstance(value[0], np.ndarray) else value
        sets = set() if target is None else _names_in(target)
        of_result = target is None or (sets & frame.made and (_is_element(target) or np.ndim(value) > 1))
        if isinstance(value, np.ndarray) and of_result and value.ndim <= len(self.cell):
            value = float(value[self._place(value)])
        self.notes.append(_Note(target, node, value, Frame(frame.function, names, frame.made)))

    def steps(self) -> list[Step]:
        """Return the notes as steps, without those that only pass a value on."""
        found: list[Step] = []
        self.quiet = True
        for target, node, value, frame in self.notes:
            name = "" if target is None else ast.unparse(target)
            if isinstance(target, ast.Subscript):  # the array's initial values no longer matter
                start = {(frame.function, one) for one in _names_in(target)}
                found = [step for step in found if (step.function, step.name) not in start]
            last = found[-1] if found else None
            if last is not None and is_number(value) and is_number(last.value) and value == last.value:
                again = _is_element(target) and name.partition("[")[0] == last.name.partition("[")[0]
                if target is None or again:  # it returns the last number, or multiplies it by one
                    continue
            drawn = draw(node, frame) if written(value) else None
            if drawn is not None:
                found.append(Step(frame.function, name, drawn.formula, drawn.numbers, value, drawn.sums))
        return found


@cache
def _parse(function: Callable[..., Any]) -> ast.FunctionDef:
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    return tree


def _callees(function: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """Return the functions of this package that a function can call; cached ones are called directly."""
    package = __name__.rpartition(".")[0]
    return {
        name: f
        for name, f in function.__globals__.items()
        if inspect.isfunction(f) and f.__module__.startswith(package) and not hasattr(f, "cache_info")
    }


def _pairs(node: ast.Assign | ast.AugAssign) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the targets of an assignment, each with its expression."""
    if isinstance(node, ast.AugAssign):
        yield node.target, ast.BinOp(_load(node.target), node.op, node.value)
        return
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=True)
        else:
            yield target, node.value


def _is_element(target: ast.expr | None) -> bool:
    return isinstance(target, ast.Subscript)


def _load(target: ast.expr) -> ast.expr:
    """Return a target as an expression to read."""
    found: ast.expr = ast.parse(ast.unparse(target), mode="eval").body
    return found


def _names_in(node: ast.expr) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def _plain(code: str) -> str:
    """Write Python's mathematics in common notation: powers by ^, products by a dot, no names of modules."""
    return re.sub(r"\b(math|np|cmath)\.", "", code).replace(" ** ", "^").replace(" * ", " · ")
