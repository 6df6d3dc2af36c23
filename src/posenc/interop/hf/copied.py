"""Copies of third-party methods in which some global names refer to other functions.

A module-level function such as `apply_rotary_pos_emb` is looked up in the globals of the file that calls it. Writing to
these globals would change every model in the process. A copy of the calling method with its own globals changes one
model.
"""

from collections.abc import Callable, Iterator, Mapping
from types import CellType, CodeType, FunctionType
from typing import Any


class Copied:
    """A copy of a method with `others` among its globals, called with the module first.

    Copies and pickles keep the arguments and create the copied method again.

    Args:
        cls: The class of the method.
        method: The name of the method.
        others: The replacements by global name.
    """

    def __init__(self, cls: type, method: str, others: Mapping[str, Callable[..., Any]]) -> None:
        self.made_of = (cls, method, dict(others))
        self.function = _rebound(getattr(cls, method), others)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the copied method."""
        return self.function(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return Copied, self.made_of


def found(function: object, wanted: Callable[[str], bool]) -> dict[str, Any]:
    """Return the globals with wanted names that a function, or one that it wraps, looks up."""
    out: dict[str, Any] = {}
    for inner in _functions(function, set()):
        for name in _names(inner.__code__):
            if name in inner.__globals__ and wanted(name):
                out[name] = inner.__globals__[name]
    return out


def mentions(function: object) -> set[str]:
    """Return the names of globals, attributes and variables in a function and in those that it wraps."""
    out: set[str] = set()
    for inner in _functions(function, set()):
        out |= _names(inner.__code__) | {*inner.__code__.co_varnames}
    return out


def _functions(function: object, seen: set[int]) -> Iterator[FunctionType]:
    """Yield a function and the functions in its closure, where decorators keep them."""
    if isinstance(function, FunctionType) and id(function) not in seen:
        seen.add(id(function))
        yield function
        for cell in function.__closure__ or ():
            yield from _functions(_content(cell), seen)


def _rebound(function: Any, others: Mapping[str, Any]) -> Any:
    """Return a copy of a function with other globals; the function itself if it uses none of them."""
    if not isinstance(function, FunctionType):
        return function
    contents = [_content(cell) for cell in function.__closure__ or ()]
    copies = [_rebound(content, others) for content in contents if content is not function]
    wraps = len(copies) == len(contents) and any(a is not b for a, b in zip(copies, contents, strict=True))
    looks = not others.keys().isdisjoint(_names(function.__code__))
    if not (wraps or looks):
        return function
    scope = function.__globals__
    if looks:  # drop __name__, by which torch.compile would find the original globals
        scope = {key: value for key, value in scope.items() if key != "__name__"} | {**others}
    closure = tuple(CellType(content) for content in copies) if wraps else function.__closure__
    copy = FunctionType(function.__code__, scope, function.__name__, function.__defaults__, closure)
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__dict__.update(function.__dict__)
    return copy


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _names(code: CodeType) -> set[str]:
    """Return the names that a function and the functions within it look up."""
    inner = (const for const in code.co_consts if isinstance(const, CodeType))
    return {*code.co_names}.union(*map(_names, inner))
