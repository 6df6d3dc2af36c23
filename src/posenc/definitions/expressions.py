"""An expression of a definition with its numbers put in: choices decided, names and elements replaced, sums kept."""

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
    """What is added up, as an expression, and its terms."""

    what: str
    terms: Array


@dataclass
class Frame:
    """A function that runs.

    Args:
        function: Its name.
        names: What its names stand for.
        made: The names in what it returns.
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
    """Return the code of an expression or a statement, kept with it: a loop runs it again and again."""
    code: CodeType | None = getattr(node, "code", None)
    if code is None:
        whole = ast.Expression(node) if mode == "eval" else ast.Module([node], [])
        code = node.code = compile(ast.fix_missing_locations(whole), "definition", mode)
    return code


class Drawn(NamedTuple):
    """An expression: as it stands but for branches that are not taken, with the numbers put in, and what it adds up."""

    formula: str
    numbers: str
    sums: tuple[Sum, ...]


def draw(node: ast.expr, frame: Frame) -> Drawn | None:
    """Write an expression; None for a name or a constant alone."""
    taken = _Taken(frame).visit(copy.deepcopy(node))
    if isinstance(taken, (ast.Name, ast.Constant)):
        return None
    filled = _Filled(frame)
    return Drawn(ast.unparse(taken), ast.unparse(filled.visit(copy.deepcopy(taken))), tuple(filled.sums))


class _Taken(ast.NodeTransformer):
    """Keep of choices what is taken: of dictionaries by a word, of conditions."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        """Keep the branch."""
        try:
            test = self.frame.value(node.test)
        except NameError:  # it looks at a variable of a comprehension
            return self.generic_visit(node)
        taken: ast.AST = self.visit(node.body if test else node.orelse)
        return taken

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """Keep the entry of a dictionary that is written out."""
        if not isinstance(node.value, ast.Dict):
            return self.generic_visit(node)
        keys = [self.frame.value(key) for key in node.value.keys if key is not None]
        taken: ast.AST = self.visit(node.value.values[keys.index(self.frame.value(node.slice))])
        return taken

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Keep the body of a lambda that is called where it stands; its arguments have the names of what is given."""
        self.generic_visit(node)
        return node.func.body if isinstance(node.func, ast.Lambda) else node


class _Filled(ast.NodeTransformer):
    """Put numbers in for names, elements and sums; a list over one thing becomes that of the one thing."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.sums: list[Sum] = []

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Put in a number."""
        return self._number(node) or node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """Put in an element."""
        return self._number(node) or self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """Put in a product of two vectors, and keep its terms."""
        found = self._number(node) if isinstance(node.op, ast.MatMult) else None
        if found is None:
            return self.generic_visit(node)
        left, right = (np.asarray(self.frame.value(side)) for side in (node.left, node.right))
        self.sums.append(Sum(ast.unparse(node), left * right))
        return found

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Put in a sum of a list, and keep its terms."""
        called = ast.unparse(node.func)
        found = self._number(node) if called in ("sum", "math.fsum") and len(node.args) == 1 else None
        if found is None:
            return self.generic_visit(node)
        self.sums.append(Sum(ast.unparse(node), np.array(list(self.frame.value(node.args[0])), dtype=float)))
        return found

    def visit_ListComp(self, node: ast.ListComp) -> ast.AST:
        """Write a list over one thing as that of the thing."""
        loop = node.generators[0]
        try:
            items = list(self.frame.value(loop.iter))
        except NameError:  # it runs over a variable of another one
            return node
        if len(node.generators) > 1 or len(items) != 1:
            return node
        inner = _Filled(Frame(self.frame.function, dict(self.frame.names), set()))
        inner.frame.bind(loop.target, items[0])
        found = ast.List([inner.visit(node.elt)], ast.Load())
        self.sums += inner.sums
        return found

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> ast.AST:
        """Leave it as it is."""
        return node

    def _number(self, node: ast.expr) -> ast.Name | None:
        """Return an expression's number as a node that is written so; None where it has none."""
        try:
            value = self.frame.value(node)
        except (NameError, TypeError, ValueError, IndexError):  # of a comprehension's variable
            return None
        if not is_number(value):
            return None
        return ast.Name(f"({number(value)})" if value < 0 else number(value), ast.Load())
