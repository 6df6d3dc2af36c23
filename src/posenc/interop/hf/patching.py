"""What `use` changes in modules, and how it is undone.

A module gets a subclass of its own class, in which some methods are others. So copies, replicas, pickles and traces of
the module run the same methods on weights of their own, and its `state_dict` does not change.
"""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

_USED, _BEFORE = "_posenc_used", "_posenc_before"
Methods = dict[str, Any]  # by name of a method, what is called instead, with the module first


class LeftError(Exception):
    """Why a part of a model is left as it is."""


@dataclass
class Plan:
    """What one part of a model gets, before any of it is put there.

    Args:
        attentions: Those that positions then enter by posenc; the report counts them.
        notes: What the report says, by the modules that it says it of.
        methods: By module, what stands in for some of its methods; modules of one class share one mapping.
        buffers: By module, other tensors for buffers that no `state_dict` holds.
        counted: The method of an attention by which it counts.
    """

    attentions: list[nn.Module]
    notes: dict[nn.Module, str]
    methods: dict[nn.Module, Methods]
    buffers: dict[nn.Module, dict[str, Tensor]] = field(default_factory=dict)
    counted: str = "forward"

    def put(self, owner: nn.Module) -> None:
        """Put it into the modules of `owner`, which remembers it by their names."""
        replace(self.methods)
        for module, tensors in self.buffers.items():
            exchange(module, "buffers", **tensors)
        names = {module: name for name, module in owner.named_modules()}
        notes = {names[module]: note for module, note in self.notes.items()}
        vars(owner)[_USED] = (notes, [names[module] for module in self.attentions], self.counted)


def planned(host: Any) -> Plan | str:
    """Return what a host gets, or the sentence why it is left."""
    try:
        plan: Plan = host.plan()
    except LeftError as error:
        return str(error)
    return plan


def said(owner: nn.Module) -> dict[str, str]:
    """Return what runs in a part by the names of modules there; empty where nothing does."""
    notes, attentions, counted = vars(owner).get(_USED, ({}, [], ""))
    inside = dict(owner.named_modules()) if notes else {}
    known = [inside[name] for name in attentions if name in inside]
    changed = sum(not runs(module, counted) for module in known)
    if changed == len(known):
        return {}
    also = f"; {changed} of them have been changed since" if changed else ""
    return {name: note + also for name, note in notes.items() if not name or (name in inside and runs(inside[name]))}


def known(owner: nn.Module) -> list[str] | None:
    """Return the names of the attentions that what runs in a part counts, None where nothing was put there."""
    return vars(owner)[_USED][1] if _USED in vars(owner) else None


class Recipe:
    """A class, and what a subclass of it runs instead of some methods; copies and pickles make the subclass anew.

    Args:
        base: The class.
        functions: By name of the method; called with the module first.
    """

    def __init__(self, base: type, functions: Methods) -> None:
        self.base, self.functions = base, functions
        own = {name: _method(getattr(base, name), function) for name, function in functions.items()}
        kept = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
        self.cls: Any = type(base.__name__, (base,), own | kept | {"_posenc_recipe": self, "__reduce_ex__": _reduce})

    def __reduce__(self) -> tuple[Any, ...]:
        return Recipe, (self.base, self.functions)

    def blank(self) -> Any:
        """Return a module of the subclass that holds nothing yet."""
        return self.cls.__new__(self.cls)


def _method(original: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return function(module, *args, **kwargs)

    return method


def _reduce(module: Any, protocol: int) -> tuple[Any, ...]:
    return Recipe.blank, (type(module)._posenc_recipe,), module.__getstate__()


def replace(methods: dict[nn.Module, Methods]) -> None:
    """Run functions in place of methods; modules of one class with one mapping get one subclass.

    So a compiler of one layer compiles once.
    """
    recipes: dict[tuple[type, int], Recipe] = {}
    for module, functions in methods.items():
        key = type(module), id(functions)
        if key not in recipes:
            before = _recipe(module)
            recipes[key] = Recipe(own_class(module), (before.functions if before else {}) | functions)
        module.__class__ = recipes[key].cls


def _recipe(module: nn.Module) -> Recipe | None:
    return getattr(type(module), "_posenc_recipe", None)


def own_class(module: nn.Module) -> Any:
    """Return the class that a module had before."""
    found = _recipe(module)
    return type(module) if found is None else found.base


def check_own(modules: Iterable[nn.Module], *names: str) -> None:
    """Raise if something else has replaced one of these methods already."""
    for module in modules:
        for name in names:
            if name in vars(module):
                raise LeftError(
                    f"{type(module).__name__}.{name} has been replaced by something else, as offloading hooks do"
                )


def runs(module: nn.Module, name: str = "forward") -> bool:
    """Whether a call of this method reaches what stands in its place."""
    found = _recipe(module)
    return found is not None and name in found.functions and name not in vars(module)


def exchange(module: nn.Module, where: str, **values: Any) -> None:
    """Put other values in place of some that a module holds; tensors stay on their device and in their precision.

    Args:
        module: The module.
        where: "attributes", "buffers" or "config".
        **values: By name.
    """
    held, before = _held(module, where), vars(module).setdefault(_BEFORE, {})
    for name, value in values.items():
        before.setdefault((where, name), held[name])
        held[name] = _like(value, held[name])


def before(module: nn.Module, where: str, name: str) -> Any:
    """Return what a module held before."""
    return vars(module).get(_BEFORE, {}).get((where, name), _held(module, where)[name])


def undo(module: nn.Module) -> None:
    """Take out whatever stands in one module."""
    module.__class__ = own_class(module)
    vars(module).pop(_USED, None)
    for (where, name), value in vars(module).pop(_BEFORE, {}).items():
        held = _held(module, where)
        held[name] = _like(value, held[name])


def _held(module: Any, where: str) -> dict[str, Any]:
    held: dict[str, Any] = module._buffers if where == "buffers" else vars(module)
    return vars(held["config"]) if where == "config" else held


def _like(value: Any, held: Any) -> Any:
    return value.to(held) if isinstance(value, Tensor) else value
