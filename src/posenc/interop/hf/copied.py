"""Methods of other people's classes, copied so that they find other functions under some global names.

A module-level function such as `apply_rotary_pos_emb` is looked up in the globals of the file that calls it. Writing
into that file would change every model of the process; a copy of the calling method with globals of its own changes
one model.
"""

from collections.abc import Callable, Iterator, Mapping
from types import CellType, CodeType, FunctionType
from typing import Any


class Copied:
    """A method of a class that finds `others` among its globals; called with the module first.

    Copies and pickles hold what it was made of, and are made anew.

    Args:
        cls: The class whose method it is.
        method: Its name.
        others: By global name, what the copy finds there.
    """

    def __init__(self, cls: type, method: str, others: Mapping[str, Callable[..., Any]]) -> None:
        self.made_of = (cls, method, dict(others))
        self.function = _rebound(getattr(cls, method), others)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the copy."""
        return self.function(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return Copied, self.made_of


def found(function: object, wanted: Callable[[str], bool]) -> dict[str, Any]:
    """Return the globals that a function, or one that it wraps, looks up under names that are wanted."""
    out: dict[str, Any] = {}
    for inner in _functions(function, set()):
        for name in _names(inner.__code__):
            if name in inner.__globals__ and wanted(name):
                out[name] = inner.__globals__[name]
    return out


def mentions(function: object) -> set[str]:
    """Return the names of the globals, attributes and variables of a function and of those that it wraps."""
    out: set[str] = set()
    for inner in _functions(function, set()):
        out |= _names(inner.__code__) | {*inner.__code__.co_varnames}
    return out


def _functions(function: object, seen: set[int]) -> Iterator[FunctionType]:
    """Yield a function and those in its closure, as decorators leave them there."""
    if isinstance(function, FunctionType) and id(function) not in seen:
        seen.add(id(function))
        yield function
        for cell in function.__closure__ or ():
            yield from _functions(_content(cell), seen)


def _rebound(function: Any, others: Mapping[str, Any]) -> Any:
    """Return a copy of a function with other globals; the function itself where it looks none of them up."""
    if not isinstance(function, FunctionType):
        return function
    contents = [_content(cell) for cell in function.__closure__ or ()]
    copies = [_rebound(content, others) for content in contents if content is not function]
    wraps = len(copies) == len(contents) and any(a is not b for a, b in zip(copies, contents, strict=True))
    looks = not others.keys().isdisjoint(_names(function.__code__))
    if not (wraps or looks):
        return function
    scope = function.__globals__
    if looks:  # without a name: by it, torch.compile would look the globals up in the file again
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
    """Return the names that a function and those within it look up."""
    inner = (const for const in code.co_consts if isinstance(const, CodeType))
    return {*code.co_names}.union(*map(_names, inner))
