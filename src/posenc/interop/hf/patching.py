"""What `use` changes in modules, and how it is undone.

A module gets a subclass of its own class, in which some methods are others. So copies, replicas, pickles and traces of
the module run the same methods on weights of their own, and its `state_dict` does not change.
"""

import copy
import functools
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn

_NOTE, _KNOWN, _BUFFERS = "_posenc_note", "_posenc_known", "_posenc_buffers"
_VALUES, _ROPE = "_posenc_values", "_posenc_rope_parameters"


class Recipe:
    """A class, and what a subclass of it runs instead of some methods; copies and pickles make the subclass anew.

    Args:
        base: The class.
        functions: By name of the method; called with the module first.
    """

    def __init__(self, base: type, functions: dict[str, Callable[..., Any]]) -> None:
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


def replace(modules: Iterable[nn.Module], **functions: Callable[..., Any]) -> None:
    """Run functions in place of methods of some modules; those of one class get one subclass."""
    recipes: dict[type, Recipe] = {}
    for module in modules:
        cls = type(module)
        if cls not in recipes:
            before = recipe(module)
            base, kept = (cls, {}) if before is None else (before.base, before.functions)
            recipes[cls] = Recipe(base, kept | functions)
        module.__class__ = recipes[cls].cls


def recipe(module: nn.Module) -> Recipe | None:
    """Return what a module's methods were replaced by, or None."""
    return getattr(type(module), "_posenc_recipe", None)


def own_class(module: nn.Module) -> Any:
    """Return the class that a module had before."""
    found = recipe(module)
    return type(module) if found is None else found.base


def taken(module: nn.Module, *names: str) -> str | None:
    """Return a sentence if something else has replaced one of these methods already."""
    found = [name for name in names if name in vars(module)]
    if not found:
        return None
    return f"{type(module).__name__}.{found[0]} has been replaced by something else, as offloading hooks do"


def runs(module: nn.Module, name: str = "forward") -> bool:
    """Whether a call of this method reaches what stands in its place."""
    found = recipe(module)
    return found is not None and name in found.functions and name not in vars(module)


def describe(host: nn.Module, note: str) -> None:
    """Mark a host as routed."""
    vars(host)[_NOTE] = note


def note(host: nn.Module) -> str | None:
    """Return what was noted of a routed host."""
    return vars(host).get(_NOTE)


def remember(owner: nn.Module, names: list[str]) -> None:
    """Keep the names of the attentions that turn, which are found by running a model."""
    vars(owner)[_KNOWN] = names


def known(owner: nn.Module) -> list[str] | None:
    """Return what was remembered."""
    return vars(owner).get(_KNOWN)


def swap(module: nn.Module, **tensors: Tensor) -> None:
    """Put other tensors in place of buffers that no `state_dict` holds, on their device and in their precision."""
    own = vars(module)
    own[_BUFFERS] = own.get(_BUFFERS, {}) | {name: module._buffers[name] for name in tensors}
    for name, tensor in tensors.items():
        module._buffers[name] = tensor.to(module._buffers[name])


def change(module: nn.Module, **numbers: float) -> None:
    """Put other numbers in place of attributes."""
    own = vars(module)
    own[_VALUES] = {name: own[name] for name in numbers} | own.get(_VALUES, {})
    own.update(numbers)


def extend(model: nn.Module, owner: nn.Module, rope_parameters: dict[str, Any]) -> None:
    """Write other rope_parameters into the owner's configuration, of which the model gets a copy of its own.

    Other models may share the one before.
    """
    if _ROPE not in vars(owner):
        config: Any = owner.config
        vars(owner)[_ROPE] = config.rope_parameters
        memo: dict[int, Any] = {}
        for module in model.modules():
            if hasattr(vars(module).get("config"), "to_dict"):
                module.config = copy.deepcopy(module.config, memo)
    config = owner.config
    config.rope_parameters = rope_parameters


def rope_parameters(owner: nn.Module) -> dict[str, Any]:
    """Return the rope_parameters that the owner's configuration has by itself."""
    config: Any = owner.config
    found: dict[str, Any] = vars(owner).get(_ROPE, config.rope_parameters)
    return found


def undo(module: nn.Module) -> None:
    """Take out whatever stands in one module."""
    own = vars(module)
    module.__class__ = own_class(module)
    own.pop(_NOTE, None)
    own.pop(_KNOWN, None)
    for name, tensor in own.pop(_BUFFERS, {}).items():
        module._buffers[name] = tensor.to(module._buffers[name])
    own.update(own.pop(_VALUES, {}))
    if _ROPE in own:
        config: Any = module.config
        config.rope_parameters = own.pop(_ROPE)
