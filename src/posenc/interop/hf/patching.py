"""The changes that `use` makes in modules, and their reversal.

A module gets a subclass of its own class with some methods replaced. So copies, replicas, pickles and traces of the
module run the new methods on their own weights, and its `state_dict` does not change.
"""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

_USED, _BEFORE = "_posenc_used", "_posenc_before"
Methods = dict[str, Any]  # the replacement of each method by its name, called with the module first


class LeftError(Exception):
    """The reason why a part of a model is left unchanged."""


@dataclass
class Plan:
    """The replacements for one part of a model, before they are applied.

    Args:
        attentions: The attention layers that will use posenc; the report counts them.
        notes: The notes of the report, by module.
        methods: By module, replacements of its methods; modules of one class share one mapping.
        buffers: By module, other tensors for buffers that are not in `state_dict`.
        counted: The replaced method by which the report counts an attention layer.
    """

    attentions: list[nn.Module]
    notes: dict[nn.Module, str]
    methods: dict[nn.Module, Methods]
    buffers: dict[nn.Module, dict[str, Tensor]] = field(default_factory=dict)
    counted: str = "forward"

    def put(self, owner: nn.Module) -> None:
        """Apply the replacements, and keep the notes in `owner` by module name."""
        replace(self.methods)
        for module, tensors in self.buffers.items():
            exchange(module, "buffers", **tensors)
        names = {module: name for name, module in owner.named_modules()}
        notes = {names[module]: note for module, note in self.notes.items()}
        vars(owner)[_USED] = (notes, [names[module] for module in self.attentions], self.counted)


def planned(host: Any) -> Plan | str:
    """Return the plan for a host, or the reason why it is left."""
    try:
        plan: Plan = host.plan()
    except LeftError as error:
        return str(error)
    return plan


def notes(owner: nn.Module) -> dict[str, str]:
    """Return the notes on the modules of a part that use posenc, by name; empty if none does."""
    found, attentions, counted = vars(owner).get(_USED, ({}, [], ""))
    inside = dict(owner.named_modules()) if found else {}
    known = [inside[name] for name in attentions if name in inside]
    changed = sum(not runs(module, counted) for module in known)
    if changed == len(known):
        return {}
    also = f"; {changed} of them were changed since" if changed else ""
    return {name: note + also for name, note in found.items() if not name or (name in inside and runs(inside[name]))}


def known(owner: nn.Module) -> list[str] | None:
    """Return the names of the attention layers that a part replaced; None if nothing was replaced there."""
    return vars(owner)[_USED][1] if _USED in vars(owner) else None


class Recipe:
    """A class and its subclass with some methods replaced. Copies and pickles create the subclass again.

    Args:
        base: The class.
        functions: The replacements by method name, called with the module first.
    """

    def __init__(self, base: type, functions: Methods) -> None:
        self.base, self.functions = base, functions
        own = {name: _method(getattr(base, name), function) for name, function in functions.items()}
        kept = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
        self.cls: Any = type(base.__name__, (base,), own | kept | {"_posenc_recipe": self, "__reduce_ex__": _reduce})

    def __reduce__(self) -> tuple[Any, ...]:
        return Recipe, (self.base, self.functions)

    def blank(self) -> Any:
        """Return an uninitialised module of the subclass."""
        return self.cls.__new__(self.cls)


def _method(original: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return function(module, *args, **kwargs)

    return method


def _reduce(module: Any, protocol: int) -> tuple[Any, ...]:
    return Recipe.blank, (type(module)._posenc_recipe,), module.__getstate__()


def replace(methods: dict[nn.Module, Methods]) -> None:
    """Replace methods of modules by functions.

    Modules of one class with one mapping share one subclass, so a compiler compiles their layer once.
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
    """Return the original class of a module."""
    found = _recipe(module)
    return type(module) if found is None else found.base


def check_own(modules: Iterable[nn.Module], *names: str) -> None:
    """Raise an error if other code has replaced one of these methods."""
    for module in modules:
        for name in names:
            if name in vars(module):
                raise LeftError(
                    f"{type(module).__name__}.{name} has been replaced by other code, such as an offloading hook"
                )


def runs(module: nn.Module, name: str = "forward") -> bool:
    """Whether a call of this method runs its replacement."""
    found = _recipe(module)
    return found is not None and name in found.functions and name not in vars(module)


def exchange(module: nn.Module, where: str, **values: Any) -> None:
    """Replace values of a module and remember the old ones; tensors keep their device and dtype.

    Args:
        module: The module.
        where: "attributes", "buffers" or "config".
        **values: The new values by name.
    """
    held, before = _held(module, where), vars(module).setdefault(_BEFORE, {})
    for name, value in values.items():
        before.setdefault((where, name), held[name])
        held[name] = _like(value, held[name])


def before(module: nn.Module, where: str, name: str) -> Any:
    """Return the original value."""
    return vars(module).get(_BEFORE, {}).get((where, name), _held(module, where)[name])


def undo(module: nn.Module) -> None:
    """Undo all replacements in one module."""
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
