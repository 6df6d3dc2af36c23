"""Every one-token change of a file's arithmetic.

`operators.py` lists the operators. Each change is made alone, on the syntax tree, so that line numbers stay.

Left out, and counted, each by a rule:

- decorators: what the registry says of an encoding, which tests of the registry hold against what is measured
- messages and argument validation: they decide what is refused, not what is computed; so, too, what is bound to a name
  that validation alone reads, in a function, a class or a file
- how learned numbers are drawn at first: the laws draw their own
- defaults of constructors: which encoding a caller gets, not how it is computed; subjects name what their spec names
- `options()` and text
- dispatch: conditions that ask where tensors live and who follows them (a device, a graph, gradients, autocast), and
  choose between two ways to the same numbers (`DISPATCH`); the ways themselves are changed
- whose device: of which tensor a call reads `.device`; all of a call are on one, and no number comes of it
- sizes of work: how many rows are formed at once (`WORK`, in some functions `WORK_OF`), which changes the time alone

Annotations and docstrings hold no arithmetic, and neither does a `|` between types.
"""

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace

from operators import kinds, make, name_of

CHECKS = ("check", "_check", "_count", "_measure", "_afford", "refuse")
NUMBERS = ("size", "number", "finite", "entries")  # checks of a constructor's numbers
DRAWS = ("init", "uniform_", "normal_", "random_", "randn", "rand")
DISPATCH = {
    *("is_plain", "may_look", "has_float64", "is_grad_enabled", "requires_grad", "is_meta", "device_mesh"),
    *("is_autocast_available", "is_autocast_enabled", "autocast_dtype"),
}
WORK = {"_GROUP", "_SHORTEST", "_CHUNK", "CHUNK", "_PIECE", "_LANES", "_FAR", "_NEAR", "_AT_ONCE", "BLOCK"}
WORK_OF = {"_exponentials": {"at_once"}, "_fill_runs": {"most"}, "_fill_any": {"size", "rows"}, "_pieces": {"step"}}
_TYPES = ("isinstance", "issubclass", "cast", "TypeVar")
_ALIASES = ("Literal", "Annotated", "Union", "Optional")


@dataclass(frozen=True)
class Mutant:
    """One change of one file.

    Args:
        file: Below src/posenc.
        function: The outermost function that holds it, with its class; a class, or "", if none does.
        kind: The operator that made it.
        lines: First and last line of the statement.
        line: Of the change.
        change: Before and after.
        site: Which node of the tree, in the order of `ast.walk`, and which of its changes.
        excluded: Why it is left out; empty if it is not.
    """

    file: str
    function: str
    kind: str
    lines: tuple[int, int]
    line: int
    change: str
    site: tuple[int, int]
    excluded: str = ""


def mutants(file: str, source: str) -> list[Mutant]:
    """Return all of a source's changes, those that are left out included."""
    tree = ast.parse(source)
    places = _Places(tree)
    found = []
    for index, node in enumerate(ast.walk(tree)):
        where = places.of.get(node)
        if where is None or where.skipped:
            continue
        names = places.names[where.owner]
        for which, kind in enumerate([] if places.of_types(node) else kinds(node, places.parent, names)):
            shown = node.test if isinstance(node, ast.If) else _shown(node, places)
            before = _text(shown)
            undo, instead = make(node, places.parent, names, which)
            replaced = instead is not None and (shown is node or isinstance(node, ast.If))
            change = f"{before} -> {_text(instead if replaced else shown)}"
            undo()
            lines = where.statement.lineno, _last(where.statement)
            line = getattr(node, "lineno", where.statement.lineno)
            excluded = where.excluded or ("dispatch" if isinstance(node, ast.If) and _dispatches(node.test) else "")
            found.append(Mutant(file, where.function, kind, lines, line, change, (index, which), excluded))
    return found


def mutated(source: str, mutant: Mutant) -> ast.Module:
    """Return the tree with the change made."""
    tree = ast.parse(source)
    places = _Places(tree)
    index, which = mutant.site
    node = next(node for i, node in enumerate(ast.walk(tree)) if i == index)
    make(node, places.parent, places.names[places.of[node].owner], which)
    return ast.fix_missing_locations(tree)


def _last(statement: ast.stmt) -> int:
    """Return the last line of a statement without its body; of a function the line at which its body begins."""
    if isinstance(statement, ast.FunctionDef):  # its defaults count where it runs
        return statement.body[0].lineno
    body = getattr(statement, "body", None)
    inside = isinstance(body, list) and body
    return max(statement.lineno, body[0].lineno - 1) if inside else statement.end_lineno or statement.lineno


@dataclass
class _Place:
    statement: ast.stmt
    function: str
    owner: ast.AST  # the outermost function, or the module
    excluded: str = ""
    skipped: bool = False  # no arithmetic, such as an annotation


class _Places:
    """Where each node stands: its parent, statement and function, and whether it is left out."""

    def __init__(self, tree: ast.Module) -> None:
        self.of: dict[ast.AST, _Place] = {}
        self.parent: dict[ast.AST, ast.AST] = {}
        self.names: dict[ast.AST, set[str]] = {tree: _bound(tree)}
        for statement in tree.body:
            self._enter(statement, _Place(statement, "", tree), tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                self._leave_out_what_refusals_read(node)
        for scope in (tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))):
            self._leave_out_limits(tree, scope)

    def _enter(self, node: ast.AST, place: _Place, parent: ast.AST) -> None:
        place = self._here(node, place)
        self.of[node], self.parent[node] = place, parent
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            self._enter_definition(node, place)
            return
        for name, child in _children(node):
            below = place
            if isinstance(node, ast.AnnAssign) and name == "annotation":
                below = replace(place, skipped=True)
            self._enter(child, below, node)

    def _enter_definition(self, node: ast.FunctionDef | ast.ClassDef, place: _Place) -> None:
        inner = copy.copy(place)
        if not isinstance(place.owner, ast.FunctionDef):
            inner.function = f"{place.function}.{node.name}".lstrip(".")
            if isinstance(node, ast.FunctionDef):
                inner.owner = node
                self.names[node] = _bound(node)
            else:
                self.names.setdefault(inner.owner, set())
        inner.excluded = inner.excluded or _of_function(node.name)
        for name, child in _children(node):
            below = replace(inner)
            if name == "decorator_list":
                below.excluded = below.excluded or "decorator"
            elif name == "returns" or name == "bases":
                below.skipped = True
            self._enter(child, below, node)

    def _leave_out_what_refusals_read(self, function: ast.FunctionDef) -> None:
        """Leave out what is bound to a name that validation reads and nothing else."""
        reads: dict[str, list[bool]] = {}
        for node in ast.walk(function):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                reads.setdefault(node.id, []).append(self.of[node].excluded == "message or validation")
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and all(
                isinstance(target, ast.Name) and all(reads.get(target.id, [False])) for target in node.targets
            ):
                for part in ast.walk(node):
                    self.of[part].excluded = self.of[part].excluded or "message or validation"

    def _leave_out_limits(self, tree: ast.Module, scope: ast.Module | ast.ClassDef) -> None:
        """Leave out constants of a file or a class that validation reads and nothing else in the file."""
        for node in scope.body:
            if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            bound = {name_of(n) for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}
            reads = [
                self.of[n].excluded == "message or validation"
                for n in ast.walk(tree)
                if name_of(n) in bound and isinstance(getattr(n, "ctx", None), ast.Load)
            ]
            if reads and all(reads):
                for part in ast.walk(node.value):
                    self.of[part].excluded = self.of[part].excluded or "message or validation"

    def of_types(self, node: ast.AST) -> bool:
        """Tell whether a node joins types by `|`, as a file does for names of its own."""
        return (
            isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.BitOr)
            and isinstance(self.of[node].owner, ast.Module)
        )

    def _here(self, node: ast.AST, place: _Place) -> _Place:
        statement = node if isinstance(node, ast.stmt) else place.statement
        types = (isinstance(node, ast.Call) and name_of(node.func) in _TYPES) or isinstance(node, ast.arg)
        types = types or (isinstance(node, ast.Subscript) and name_of(node.value) in _ALIASES)
        reason = place.excluded
        if isinstance(node, ast.arguments) and place.function.endswith("__init__"):
            reason = reason or "default of a constructor"
        work = WORK_OF.get(place.function.rpartition(".")[2], set())
        if isinstance(node, ast.Assign) and any(name_of(target) in work for target in node.targets):
            reason = reason or "size of work"
        return replace(place, statement=statement, skipped=place.skipped or types, excluded=reason or _of_node(node))


def _of_node(node: ast.AST) -> str:
    """Return why a node is left out, or "" if it is not."""
    validates = isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr)
    if isinstance(node, ast.If):  # one that does nothing but raise, with what it prepares for that, or check
        validates = not node.orelse and (isinstance(node.body[-1], ast.Raise) or all(map(_checks, node.body)))
    if isinstance(node, ast.Call):
        validates = name_of(node.func).startswith(CHECKS) or (
            isinstance(node.func, ast.Name) and node.func.id in NUMBERS
        )
    if validates:
        return "message or validation"
    if isinstance(node, ast.Assign) and any(name_of(n) in WORK for target in node.targets for n in ast.walk(target)):
        return "size of work"
    if isinstance(node, ast.BoolOp | ast.Compare | ast.UnaryOp) and _dispatches(node):
        return "dispatch"
    if isinstance(node, ast.Attribute) and node.attr == "device":
        return "whose device"
    if isinstance(node, ast.keyword) and node.arg == "strict":  # of zip: a check
        return "message or validation"
    draws = isinstance(node, ast.Expr) and any(isinstance(n, ast.Attribute) and n.attr in DRAWS for n in ast.walk(node))
    return "how learned numbers are drawn" if draws else ""


def _checks(node: ast.stmt) -> bool:
    """Tell whether a statement is nothing but the call of a check."""
    called = name_of(node.value.func) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else ""
    return called.startswith(CHECKS) or called in NUMBERS


def _dispatches(node: ast.AST) -> bool:
    """Tell whether a condition asks where tensors live."""
    asked = isinstance(node, ast.BoolOp | ast.Compare | ast.Call | ast.Attribute)
    asked = asked or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not))
    names = {ast.unparse(n) for n in ast.walk(node) if isinstance(n, ast.Attribute)} if asked else set()
    kind = any(name.endswith("device.type") for name in names)
    return asked and (kind or any(name_of(n) in DISPATCH for n in ast.walk(node)))


def _children(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield name, child


def _of_function(name: str) -> str:
    if name in ("reset_parameters", "_draw"):
        return "how learned numbers are drawn"
    if name in ("options", "__repr__", "extra_repr"):
        return "options() and text"
    if name.startswith("check_") or name == "check":
        return "message or validation"
    return ""


def _bound(node: ast.AST) -> set[str]:
    """Return the names that a function or module binds."""
    found = {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}
    found |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    found |= {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
    return found | {n.name for n in ast.walk(node) if isinstance(n, ast.FunctionDef)}


def _shown(node: ast.AST, places: _Places) -> ast.AST:
    """Return the expression around a node that says what the change means."""
    shown = node
    for _ in range(4):
        above = places.parent.get(shown)
        inner = isinstance(shown, ast.Constant | ast.UnaryOp | ast.Slice | ast.keyword | ast.Name | ast.Attribute)
        if above is None or isinstance(above, ast.stmt | ast.arguments) or not (inner or isinstance(shown, ast.Tuple)):
            break
        if shown is not node and len(_text(above)) > 72:
            break
        shown = above
    return shown if not isinstance(shown, ast.Slice | ast.keyword | ast.comprehension) else node


def _text(node: ast.AST) -> str:
    try:
        return " ".join(ast.unparse(node).split())
    except Exception:  # a part that stands for nothing alone, such as a slice
        return type(node).__name__
