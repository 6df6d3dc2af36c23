"""Which modules of a model make rotary tables, and which turn queries and keys by them."""

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from posenc.interop.hf import copied, gptj, patching

_TURNS = re.compile(r"apply.*(rotary|rope)|(rotary|rope).*apply")
_MAKES = re.compile(r"Rotary|Rope|RoPE")


@dataclass
class Group:
    """A module that holds rotary modules, and the attentions that their tables reach.

    Args:
        name: Its name in the model.
        owner: It.
        rotaries: By name; of GPT-J, whose attentions hold tables themselves, the model.
        callers: By name.
        by_table: Whether the attentions hold tables themselves.
    """

    name: str
    owner: Any
    rotaries: dict[str, Any] = field(default_factory=dict)
    callers: dict[str, Any] = field(default_factory=dict)
    by_table: bool = False


def find(model: nn.Module) -> dict[str, Group]:
    """Return the groups of a model by the name of their owner."""
    found: dict[str, Group] = {}
    modules = dict(model.named_modules())
    for name, module in modules.items():
        if _makes_tables(module):
            outer = next(o for o in _outwards(name, inside=True) if not isinstance(modules[o], nn.ModuleList))
            found.setdefault(outer, Group(outer, modules[outer])).rotaries[name] = module
        elif gptj.holds_table(module):
            outer = next(o for o in _outwards(name, inside=True) if o == "" or hasattr(modules[o], "config"))
            found.setdefault(outer, Group(outer, modules[outer], {outer: modules[outer]}, by_table=True))
    for name, module in modules.items():
        around = next((o for o in _outwards(name) if o in found), None)
        if around is not None and functions(module):
            found[around].callers[name] = module
    for name, group in list(found.items()):
        known = patching.known(group.owner)
        turning = _turning(group) if known is None else known
        if group.callers and not turning:  # as in Falcon with ALiBi, which makes tables and uses none
            del found[name]
        group.callers = {key: module for key, module in group.callers.items() if inside(key, name) in turning}
    return found


def _turning(group: Group) -> list[str]:
    """Return which attentions turn by a function of their file, as a forward of a model without weights shows.

    Some never call it: layers without positions, or all of them where a configuration says so. Where that model cannot
    be made or run so, as with mixtures of experts, all that could turn are returned.
    """
    could = [inside(name, group.name) for name in group.callers]
    seen: list[str] = []
    try:
        with warnings.catch_warnings(), torch.device("meta"), torch.no_grad():
            warnings.simplefilter("ignore")
            fresh: Any = patching.own_class(group.owner)(group.owner.config)
            for name in could:
                module = fresh.get_submodule(name)
                noted = {key: partial(_note, seen, name, function) for key, function in functions(module).items()}
                patching.replace([module], forward=copied.Copied(patching.own_class(module), "forward", noted))
            # without a cache masks look for packed documents, in numbers that are not there
            fresh.eval()(input_ids=torch.zeros(1, 2, dtype=torch.long), use_cache=True)
    except Exception:  # of whatever its author asks for
        return could
    return [name for name in could if name in seen]


def _note(seen: list[str], name: str, function: Any, *args: Any, **kwargs: Any) -> Any:
    seen.append(name)
    return function(*args, **kwargs)


def inside(name: str, owner_name: str) -> str:
    """Return the name of a module as its owner has it."""
    return name.removeprefix(f"{owner_name}.") if owner_name else name


def functions(module: nn.Module) -> dict[str, Any]:
    """Return the rotary functions that a module's forward looks up among the globals of its file."""
    if _makes_tables(module):
        return {}
    return copied.found(patching.own_class(module).forward, lambda name: bool(_TURNS.search(name)))


def widths(module: Any) -> list[int]:
    """Return the numbers of a module that may be the width of a head."""
    words = ("head_dim", "head_size", "rotary_ndims", "rotary_dim")
    return [n for key, n in vars(module).items() if isinstance(n, int) and any(word in key for word in words)]


def _makes_tables(module: nn.Module) -> bool:
    """Whether a module holds frequencies by itself and is called a rotary one."""
    named = (key for key, _ in module.named_buffers(recurse=False))
    return bool(_MAKES.search(type(module).__name__)) and any("inv_freq" in key for key in named)


def _outwards(name: str, *, inside: bool = False) -> Iterator[str]:
    """Yield the names of the modules around one, innermost first; the module's own before them."""
    if not inside:
        yield name
    while name:
        name = name.rpartition(".")[0]
        yield name
