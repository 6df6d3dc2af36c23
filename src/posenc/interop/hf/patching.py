"""What `use` writes into modules, and how it is taken out again.

Everything stands in the module's own `__dict__`, none of it as a parameter, a buffer or a submodule, so that
`state_dict` does not change, and copies of a model are routed as well and can be restored on their own.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn

_NOTE, _NAMES, _HOOK, _CHOICE = "_posenc_note", "_posenc_names", "_posenc_hook", "_posenc_choice"
_BUFFERS, _VALUES, _ROPE = "_posenc_buffers", "_posenc_values", "_posenc_rope_parameters"


def replace(module: nn.Module, **functions: Callable[..., Any]) -> None:
    """Put functions in place of methods; each is called with the module first.

    Partial functions and no bound ones: they survive pickling and deep copies.
    """
    own = vars(module)
    own[_NAMES] = (*own.get(_NAMES, ()), *functions)
    own.update({name: partial(function, module) for name, function in functions.items()})


def taken(module: nn.Module, *names: str) -> str | None:
    """Return a sentence if somebody else has replaced one of these methods already."""
    found = [name for name in names if name in vars(module)]
    if not found:
        return None
    return f"{type(module).__name__}.{found[0]} has been replaced by something else, as offloading hooks do"


def has_replaced(module: nn.Module) -> bool:
    """Whether methods of a module are replaced from here."""
    return _NAMES in vars(module)


def describe(host: nn.Module, note: str) -> None:
    """Mark a host as routed."""
    vars(host)[_NOTE] = note


def note(host: nn.Module) -> str | None:
    """Return what was said of a routed host."""
    return vars(host).get(_NOTE)


def is_patched(host: nn.Module) -> bool:
    """Whether the host is routed."""
    return note(host) is not None


def choose(owner: nn.Module, implementation: str) -> None:
    """Name the attention implementation in a configuration; the one before is kept with its first owner."""
    config: Any = owner.config
    if config._attn_implementation != implementation:
        vars(owner)[_CHOICE] = config._attn_implementation
        config._attn_implementation_internal = implementation  # the setter would write into nested configurations


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


def extend(owner: nn.Module, rope_parameters: dict[str, Any]) -> None:
    """Write other rope_parameters into the owner's configuration."""
    config: Any = owner.config
    vars(owner).setdefault(_ROPE, config.rope_parameters)
    config.rope_parameters = rope_parameters


def rope_parameters(owner: nn.Module) -> dict[str, Any]:
    """Return the rope_parameters that the owner's configuration has by itself."""
    config: Any = owner.config
    found: dict[str, Any] = vars(owner).get(_ROPE, config.rope_parameters)
    return found


def refuse_weights(host: nn.Module) -> None:
    """Let the host raise where attention weights are asked for, instead of returning none."""
    vars(host)[_HOOK] = host.register_forward_pre_hook(_refuse_weights, with_kwargs=True)


def undo(module: nn.Module) -> None:
    """Take out whatever stands in one module."""
    own = vars(module)
    for name in own.pop(_NAMES, ()):
        own.pop(name, None)
    own.pop(_NOTE, None)
    if (hook := own.pop(_HOOK, None)) is not None:
        hook.remove()
    for name, tensor in own.pop(_BUFFERS, {}).items():
        module._buffers[name] = tensor.to(module._buffers[name])
    own.update(own.pop(_VALUES, {}))
    config: Any
    if _ROPE in own:
        config = module.config
        config.rope_parameters = own.pop(_ROPE)
    if _CHOICE in own:
        config = module.config
        config._attn_implementation_internal = own.pop(_CHOICE)


def _refuse_weights(host: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    wanted = kwargs.get("output_attentions")
    if wanted is None:
        wanted = getattr(getattr(host, "config", None), "output_attentions", False)
    if wanted:
        raise ValueError(
            f"posenc.hf: {type(host).__name__} was asked for attention weights, which posenc.attend never forms; got "
            "output_attentions=True. Call posenc.hf.restore(model) first."
        )
