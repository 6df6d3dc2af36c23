"""An expression of a definition with numbers filled in: branches decided, names and elements replaced, sums kept."""

from __future__ import annotations

import ast
import copy
from dataclasses import dataclass
from types import CodeType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from posenc.definitions.written import is_number, number

Array = NDArray[np.float64]
_ITEM = "_item"


class Sum(NamedTuple):
    """A sum, as an expression, and its terms."""

    what: str
    terms: Array


@dataclass
class Frame:
    """A running function.

    Args:
        function: Its name.
        names: The values of its names.
        made: The names that its return value is made of.
    """

    function: str
    names: dict[str, Any]
    made: set[str]

    def value(self, node: ast.expr) -> Any:
        """Evaluate an expression."""
        return eval(_compiled(node, "eval"), self.names)

    def execute(self, node: ast.stmt) -> None:
        """Execute a statement."""
        exec(_compiled(node, "exec"), self.names)

    def bind(self, target: ast.expr, item: Any) -> None:
        """Set the variables of a loop."""
        if isinstance(target, ast.Name):
            self.names[target.id] = item
            return
        self.names[_ITEM] = item
        whole = ast.Module([ast.Assign([target], ast.Name(_ITEM, ast.Load()))], [])
        exec(compile(ast.fix_missing_locations(whole), "definition", "exec"), self.names)


def _compiled(node: Any, mode: str) -> CodeType:
    """Return the code of an expression or a statement, cached on the node, since a loop runs it repeatedly."""
    code: CodeType | None = getattr(node, "code", None)
    if code is None:
        whole = ast.Expression(node) if mode == "eval" else ast.Module([node], [])
        code = node.code = compile(ast.fix_missing_locations(whole), "definition", mode)
    return code


class Drawn(NamedTuple):
    """An expression with only the branches taken, the same with numbers filled in, and the sums in it."""

    formula: str
    numbers: str
    sums: tuple[Sum, ...]


def draw(node: ast.expr, frame: Frame) -> Drawn | None:
    """Write an expression; None if it is only a name or a constant."""
    taken = _Taken(frame).visit(copy.deepcopy(node))
    if isinstance(taken, (ast.Name, ast.Constant)):
        return None
    filled = _Filled(frame)
    return Drawn(ast.unparse(taken), ast.unparse(filled.visit(copy.deepcopy(taken))), tuple(filled.sums))


class _Taken(ast.NodeTransformer):
    """Keep only the branch taken of a choice: of a dictionary looked up by a word, or of a condition."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        """Keep the branch taken."""
        try:
            test = self.frame.value(node.test)
        except NameError:  # it reads a variable of a comprehension
            return self.generic_visit(node)
        taken: ast.AST = self.visit(node.body if test else node.orelse)
        return taken

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """Keep the chosen entry of a literal dictionary."""
        if not isinstance(node.value, ast.Dict):
            return self.generic_visit(node)
        keys = [self.frame.value(key) for key in node.value.keys if key is not None]
        taken: ast.AST = self.visit(node.value.values[keys.index(self.frame.value(node.slice))])
        return taken

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Keep the body of a lambda that is called in place; its parameters are named like the arguments."""
        self.generic_visit(node)
        return node.func.body if isinstance(node.func, ast.Lambda) else node


class _Filled(ast.NodeTransformer):
    """Replace names, elements and sums by numbers; a list over one item becomes a list of that item."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.sums: list[Sum] = []

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Fill in a number."""
        return self._number(node) or node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """Fill in an element."""
        return self._number(node) or self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """Fill in a product of two vectors, and keep its terms."""
        found = self._number(node) if isinstance(node.op, ast.MatMult) else None
        if found is None:
            return self.generic_visit(node)
        left, right = (np.asarray(self.frame.value(side)) for side in (node.left, node.right))
        self.sums.append(Sum(ast.unparse(node), left * right))
        return found

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Fill in the sum of a list, and keep its terms."""
        called = ast.unparse(node.func)
        found = self._number(node) if called in ("sum", "math.fsum") and len(node.args) == 1 else None
        if found is None:
            return self.generic_visit(node)
        self.sums.append(Sum(ast.unparse(node), np.array(list(self.frame.value(node.args[0])), dtype=float)))
        return found

    def visit_ListComp(self, node: ast.ListComp) -> ast.AST:
        """Write a list over one item as a list of that item."""
        loop = node.generators[0]
        try:
            items = list(self.frame.value(loop.iter))
        except NameError:  # it iterates over a variable of another comprehension
            return node
        if len(node.generators) > 1 or len(items) != 1:
            return node
        inner = _Filled(Frame(self.frame.function, dict(self.frame.names), set()))
        inner.frame.bind(loop.target, items[0])
        found = ast.List([inner.visit(node.elt)], ast.Load())
        self.sums += inner.sums
        return found

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> ast.AST:
        """Leave it unchanged."""
        return node

    def _number(self, node: ast.expr) -> ast.Name | None:
        """Return an expression's number as a node that prints it; None if it has no number."""
        try:
            value = self.frame.value(node)
        except (NameError, TypeError, ValueError, IndexError):  # it contains a comprehension's variable
            return None
        if not is_number(value):
            return None
        return ast.Name(f"({number(value)})" if value < 0 else number(value), ast.Load())
