"""Which modules of a model make rotary tables, and which turn queries and keys by them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from posenc.interop.hf import copied, gptj

_TURNS = re.compile(r"apply.*(rotary|rope)|(rotary|rope).*apply")
_MAKES = re.compile(r"Rotary|Rope|RoPE")


@dataclass
class Group:
    """A module that holds rotary modules, and the attentions that their tables reach.

    Args:
        owner: It.
        rotaries: By name; of GPT-J, whose attentions hold tables themselves, the model.
        callers: By name.
        by_table: Whether the attentions hold tables themselves.
    """

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
            found.setdefault(outer, Group(modules[outer])).rotaries[name] = module
        elif gptj.holds_table(module):
            outer = next(o for o in _outwards(name, inside=True) if o == "" or hasattr(modules[o], "config"))
            found.setdefault(outer, Group(modules[outer], {outer: modules[outer]}, by_table=True))
    for name, module in modules.items():
        around = next((o for o in _outwards(name) if o in found), None)
        if around is not None and functions(module):
            found[around].callers[name] = module
    return found


def functions(module: nn.Module) -> dict[str, Any]:
    """Return the rotary functions that a module's forward looks up among the globals of its file."""
    if _makes_tables(module):
        return {}
    return copied.found(type(module).forward, lambda name: bool(_TURNS.search(name)))


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
