"""The operators: what one token may become, and how it is changed in a tree and back.

- arithmetic: + - * / // % ** @ & | << >>, each to another one; so, too, += and its like
- comparison: < <= > >= == !=, each to its neighbour; `is` and `in` to their negations
- logic: `and` to `or` and back; `not` and `~` dropped; the condition of an `if` or `x if c else y` negated
- sign: a unary minus dropped
- constant: n to n + 1, n to n - 1, True to False and back; so 0 to 1, 2.0 to 1.0, and dim=-1 to 0 or -2
- slice: its start, stop or step dropped; a bound that is no number moved by one
- name: of two that are easily confused the one for the other: q and k, cos and sin, rows and columns, ... (`PAIRS`),
  as variables, attributes, keywords and functions
- word: of strings that choose between two: "half" and "interleaved", "first" and "last", ... (`WORDS`)
- precision: float64 to bfloat16, `.double()` to `.bfloat16()`
"""

import ast
from collections.abc import Callable, Iterator, Mapping

ARITHMETIC = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult},
    **{ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.MatMult: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd},
    **{ast.LShift: ast.RShift, ast.RShift: ast.LShift},
}
COMPARISON = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In},
}
_PAIRS = (
    "q k,cos sin,floor ceil,min max,exp log,any all,a b,head tail,lanes untouched,rows columns,h w,low high,far near,"
    "down right,starts stops,first last,beta_fast beta_slow,low_turns high_turns,low_freq_factor high_freq_factor,"
    "short_factors long_factors,q_pos k_pos,placed k_placed,q_len k_len,begin end,start stop,top bottom,left end,"
    "k_cos k_sin,mean sum,cummax cummin,argmax argmin,zeros ones,zeros_like ones_like,"
    "tril triu,maximum minimum,aminmax aminmax,log2 exp2,log1p expm1,ones zeros,sinh cosh,amax amin,"
    "rotate_q rotate_k,n_heads n_kv_heads,d_model head_dim,base width,high middle,whole rest,"
    "before after,behind ahead,of_query of_key,n_pairs rest,cumsum cumprod"
)
PAIRS = {}
for _pair in _PAIRS.split(","):
    _one, _other = _pair.split()
    if _one != _other:
        PAIRS.setdefault(_one, _other)
        PAIRS.setdefault(_other, _one)
_WORDS = "half interleaved,first last,floor trunc,shared dealt,blocks interleaved,alternating concatenated"
WORDS = {}
for _pair in f"{_WORDS},paper tensor2tensor,symmetric one-sided,authors geometric,linear nearest".split(","):
    _one, _other = _pair.split()
    WORDS.setdefault(_one, _other)
    WORDS.setdefault(_other, _one)
WIDE = {"float64": "bfloat16", "double": "bfloat16"}
_BUILTIN = {"min", "max", "any", "all"}
Parents = Mapping[ast.AST, ast.AST]


def kinds(node: ast.AST, parents: Parents, names: set[str]) -> list[str]:
    """Return the kind of each change of a node; `names` are those that its function has."""
    if isinstance(node, ast.BinOp | ast.AugAssign):
        return ["arithmetic"] if type(node.op) in ARITHMETIC else []
    if isinstance(node, ast.Compare):
        return ["comparison" for op in node.ops if type(op) in COMPARISON]
    if isinstance(node, ast.UnaryOp):
        return ["sign" if isinstance(node.op, ast.USub) else "logic"]
    if isinstance(node, ast.If | ast.IfExp):
        return [] if isinstance(node.test, ast.Compare | ast.BoolOp | ast.UnaryOp) else ["logic"]
    if isinstance(node, ast.Constant):
        return [kind for kind, _ in _constants(node)]
    if isinstance(node, ast.Slice):
        return ["slice" for _ in _slices(node)]
    if isinstance(node, ast.Name | ast.Attribute | ast.keyword):
        return [kind for kind, _ in _others(node, parents, names)]
    return ["logic"] if isinstance(node, ast.BoolOp) else []


def make(node: ast.AST, parents: Parents, names: set[str], which: int) -> tuple[Callable[[], None], ast.AST | None]:
    """Make one of the changes of a node, in place; return what undoes it, and what now stands for the node if another.

    Of an `if` it is the condition that another node stands for.
    """
    if isinstance(node, ast.BinOp | ast.AugAssign):
        return _set(node, "op", ARITHMETIC[type(node.op)]())
    if isinstance(node, ast.Compare):
        at = [i for i, op in enumerate(node.ops) if type(op) in COMPARISON][which]
        changed = [COMPARISON[type(op)]() if i == at else op for i, op in enumerate(node.ops)]
        return _set(node, "ops", changed)
    if isinstance(node, ast.BoolOp):
        return _set(node, "op", ast.Or() if isinstance(node.op, ast.And) else ast.And())
    if isinstance(node, ast.UnaryOp):
        return _replace(parents[node], node, node.operand), node.operand
    if isinstance(node, ast.If | ast.IfExp):
        negated = ast.copy_location(ast.UnaryOp(ast.Not(), node.test), node.test)
        return _set(node, "test", negated)[0], negated if isinstance(node, ast.If) else None
    if isinstance(node, ast.Constant):
        return _set(node, "value", list(_constants(node))[which][1])
    if isinstance(node, ast.Slice):
        return _set(node, *list(_slices(node))[which])
    field = {ast.Name: "id", ast.Attribute: "attr", ast.keyword: "arg"}[type(node)]
    return _set(node, field, list(_others(node, parents, names))[which][1])


def _set(node: ast.AST, field: str, value: object) -> tuple[Callable[[], None], None]:
    old = getattr(node, field)
    setattr(node, field, value)
    return lambda: setattr(node, field, old), None


def _replace(parent: ast.AST, old: ast.AST, new: ast.AST) -> Callable[[], None]:
    for name, value in ast.iter_fields(parent):
        if value is old:
            return _set(parent, name, new)[0]
        if isinstance(value, list) and any(item is old for item in value):
            return _set(parent, name, [new if item is old else item for item in value])[0]
    raise LookupError(ast.dump(old))


def _constants(node: ast.Constant) -> Iterator[tuple[str, object]]:
    value = node.value
    if isinstance(value, bool):
        yield "constant", not value
    elif isinstance(value, int | float):
        yield "constant", value + 1
        if value != 0:
            yield "constant", value - 1
    elif isinstance(value, str) and value in WORDS:
        yield "word", WORDS[value]


def _slices(node: ast.Slice) -> Iterator[tuple[str, ast.expr | None]]:
    for part in ("lower", "upper", "step"):
        bound = getattr(node, part)
        if bound is None:
            continue
        yield part, None
        if part != "step" and not _is_number(bound):
            yield part, ast.copy_location(ast.BinOp(bound, ast.Add(), ast.Constant(1)), bound)


def _is_number(node: ast.AST) -> bool:
    return isinstance(node.operand if isinstance(node, ast.UnaryOp) else node, ast.Constant)


def _others(node: ast.AST, parents: Parents, names: set[str]) -> Iterator[tuple[str, str]]:
    """Yield what a name may be confused with: of variables only what the function has as well."""
    if isinstance(node, ast.keyword):
        called = parents[node]
        taken = {k.arg for k in called.keywords} if isinstance(called, ast.Call) else set()
        if node.arg in _BUILTIN and PAIRS[node.arg] not in taken:
            yield "name", PAIRS[node.arg]
        return
    name = name_of(node)
    if isinstance(node, ast.Attribute) and name in WIDE:
        yield "precision", WIDE[name]
    other = PAIRS.get(name)
    if other is None or not isinstance(node.ctx, ast.Load):
        return
    called = isinstance(parents[node], ast.Call) and parents[node].func is node
    known = called and (isinstance(node, ast.Attribute) or name in _BUILTIN)
    if known or other in names:
        yield "name", other


def name_of(node: ast.AST) -> str:
    """Return the name of a variable or an attribute."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
