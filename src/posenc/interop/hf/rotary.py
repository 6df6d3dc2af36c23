"""Rotary models: find the modules that make tables and those that rotate by them, and plan their replacements."""

import inspect
import re
import warnings
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from posenc.families import Rotary
from posenc.interop.hf import copied, extending, gptj, patching, rephased, rotation, tables
from posenc.interop.hf.patching import LeftError, Plan

_ROTATES = re.compile(r"apply.*(rotary|rope)|(rotary|rope).*apply")
_MAKES = re.compile(r"Rotary|Rope|RoPE")


@dataclass
class Group:
    """A module that contains rotary modules, and the attention layers that use their tables.

    Args:
        model: The whole model.
        name: The name of the owner in the model.
        owner: The module that contains the rotary modules.
        rotaries: The rotary modules by their names in the owner; for GPT-J, which has none, the owner.
        callers: The attention layers by their names in the owner.
        by_table: Whether positions are looked up in a table, as in GPT-J.
    """

    model: nn.Module
    name: str
    owner: Any
    rotaries: dict[str, Any] = field(default_factory=dict)
    callers: dict[str, Any] = field(default_factory=dict)
    by_table: bool = False

    def plan(self, *, extended: bool = False) -> Plan:
        """Return the replacements for this group.

        Args:
            extended: The configuration has changed since the modules were made, and takes precedence.

        Raises:
            LeftError: Its tables, its rotary functions or its caches are not supported.
        """
        if not self.callers:
            raise LeftError("no attention layer that uses its tables rotates by a function of its file")
        patching.check_own((*self.rotaries.values(), *self.callers.values()), "forward")
        return self._of_table() if self.by_table else self._of_modules(extended)

    def _of_table(self) -> Plan:
        rope, buffers = gptj.exact(self.owner)
        theirs = tables.trial(rope)[1]
        looks_up = hasattr(next(iter(self.callers.values())), "_get_embed_positions")
        more = {"_get_embed_positions": gptj.get_embed_positions} if looks_up else {}
        methods = self._forwards([(theirs, theirs)], None, **more)
        note = f"rotates queries and keys of {len(self.callers)} attention layers by {described(rope)}"
        return Plan([*self.callers.values()], {self.owner: note}, methods, buffers)

    def _of_modules(self, extended: bool) -> Plan:
        found = {name: tables.found(rotary, extended=extended) for name, rotary in self.rotaries.items()}
        by_length = next((places for places, _ in found.values() if places.by_length), None)
        methods = self._forwards([pair for _, pairs in found.values() for pair in pairs], by_length)
        if by_length is not None:
            rephased.check(self.callers.values())
            methods |= rephased.keep_caches(self.model)
        methods |= {self.rotaries[n]: {"forward": partial(tables.forward, places=p)} for n, (p, _) in found.items()}
        notes = {self.rotaries[name]: self._note(places) for name, (places, _) in found.items()}
        return Plan([*self.callers.values()], notes, methods)

    def _forwards(
        self, trials: list[Any], by_length: tables.Places | None, **more: Any
    ) -> dict[nn.Module, patching.Methods]:
        """Return the replacements of the callers' forwards, and `more`; callers of one class share a mapping.

        Raises:
            LeftError: No rotation equals one of their functions.
        """
        rotations: dict[Any, rotation.Rotation] = {}
        for function in {f for module in self.callers.values() for f in functions(module).values()}:
            for theirs, ours in trials:
                same = rotation.like(function, theirs, ours)
                if rotations.setdefault(function, same).way != same.way:
                    raise LeftError(f"its function {function.__name__} rotates its tables in several ways")
        by_class: dict[type, patching.Methods] = {}
        for module in self.callers.values():
            cls = patching.own_class(module)
            if cls not in by_class:
                own = {name: rotations[function] for name, function in functions(module).items()}
                forward: Any = copied.Copied(cls, "forward", own)
                if by_length is not None:
                    forward = partial(rephased.forward, copy=forward, places=by_length, rotations=tuple(own.values()))
                by_class[cls] = {"forward": forward, **more}
        return {module: by_class[patching.own_class(module)] for module in self.callers.values()}

    def _note(self, places: tables.Places) -> str:
        texts = [described(encoding) for encoding in places.encodings.values()]
        if len(set(texts)) > 1:
            texts = [f"{text} ({kind})" for text, kind in zip(texts, places.encodings, strict=True)]
        n_rotaries, by = len(self.rotaries), ", ".join(dict.fromkeys(texts))
        how = "rotates queries and keys of" if n_rotaries == 1 else f"one of {n_rotaries} modules that rotate"
        return "; ".join([f"{how} {len(self.callers)} attention layers by {by}", *places.notes])


def find(model: nn.Module, without: Collection[str] = ()) -> dict[str, Group]:
    """Return the groups of a model by the name of their owner, except the names in `without`."""
    found: dict[str, Group] = {}
    modules = dict(model.named_modules())
    for name, module in modules.items():
        if _makes_tables(module):
            outer = next((o for o in _around(name) if not isinstance(modules[o], nn.ModuleList)), name)
            group = found.setdefault(outer, Group(model, outer, modules[outer]))
            group.rotaries[_inside(name, outer)] = module
        elif gptj.holds_table(module):
            outer = next((o for o in _around(name) if hasattr(modules[o], "config")), "")
            found.setdefault(outer, Group(model, outer, modules[outer], {"": modules[outer]}, by_table=True))
    for name, module in modules.items():
        outer = next((o for o in (name, *_around(name)) if o in found), None)
        if outer is not None and functions(module):
            found[outer].callers[_inside(name, outer)] = module
    for name, group in list(found.items()):
        known = [] if name in without else patching.known(group.owner)
        rotating = _rotating(group) if known is None else known
        if name in without or (group.callers and not rotating):  # its tables are not used
            del found[name]
        group.callers = {key: module for key, module in group.callers.items() if key in rotating}
    return found


def _rotating(group: Group) -> list[str]:
    """Return the attention layers that call their rotary function in a forward pass on the meta device.

    Some never call it: layers without positions, or all layers if the configuration disables it. If the model cannot
    run on the meta device, as with mixtures of experts, return all layers that have such a function.
    """
    seen: list[str] = []
    try:
        with warnings.catch_warnings(), torch.device("meta"), torch.no_grad():
            warnings.simplefilter("ignore")
            fresh: Any = patching.own_class(group.owner)(group.owner.config)
            for name in group.callers:
                module = fresh.get_submodule(name)
                noted = {key: partial(_note, seen, name, function) for key, function in functions(module).items()}
                patching.replace({module: {"forward": copied.Copied(type(module), "forward", noted)}})
            # with a cache, because without one masks look for packed documents in values that do not exist here
            fresh.eval()(input_ids=torch.zeros(1, 2, dtype=torch.long), use_cache=True)
    except Exception:  # third-party code can raise any error
        return [*group.callers]
    return [name for name in group.callers if name in seen]


def _note(seen: list[str], name: str, function: Any, *args: Any, **kwargs: Any) -> Any:
    seen.append(name)
    return function(*args, **kwargs)


def functions(module: nn.Module) -> dict[str, Any]:
    """Return the rotary functions among the globals that a module's forward uses."""
    if _makes_tables(module):
        return {}
    return copied.found(patching.own_class(module).forward, lambda name: bool(_ROTATES.search(name)))


def _makes_tables(module: nn.Module) -> bool:
    """Whether a module has its own frequencies and a rotary class name."""
    named = (key for key, _ in module.named_buffers(recurse=False))
    return bool(_MAKES.search(type(module).__name__)) and any("inv_freq" in key for key in named)


def _around(name: str) -> Iterator[str]:
    """Yield the names of the modules that contain one, innermost first."""
    while name:
        name = name.rpartition(".")[0]
        yield name


def _inside(name: str, outer: str) -> str:
    """Return the name of a module relative to one that contains it."""
    return name.removeprefix(f"{outer}.") if outer else name


def extend(groups: dict[str, Group], rope_parameters: object) -> None:
    """Write other rope_parameters into a model, and replace all of its parts again.

    Raises:
        TypeError: From `extending.checked`.
        ValueError: From `extending.checked`, or the extended model cannot be replaced.
    """
    found = {name: group for name, group in groups.items()
             if patching.notes(group.owner) or isinstance(patching.planned(group), Plan)}  # fmt: skip
    owner, new = extending.checked(found, rope_parameters)
    _undo(found)
    extending.write(next(iter(found.values())).model, owner, new)
    extending.rescale(found)
    for group in found.values():
        try:
            group.plan(extended=True).put(group.owner)
        except LeftError as error:
            _undo(found)
            raise ValueError(
                f"posenc.hf.use: the model cannot be extended with these rope_parameters: {error}."
            ) from None


def _undo(found: dict[str, Group]) -> None:
    for group in found.values():
        for module in (group.owner, *group.rotaries.values(), *group.callers.values()):
            patching.undo(module)


def described(encoding: Rotary) -> str:
    """Return a short description of an encoding: its options that differ from the defaults, without lists."""
    if isinstance(encoding, tables.Axes):
        return f"RoPE(head_dim={encoding.head_dim}) over {encoding.n_axes} axes of {encoding.pairs} pairs"
    defaults = {key: p.default for key, p in inspect.signature(type(encoding)).parameters.items()}
    shown = {key: value for key, value in encoding.options().items() if key in ("base", "head_dim") or (
        isinstance(value, int | float | str) and value != defaults.get(key) and value is not None)}  # fmt: skip
    if shown.get("rotary_dim") == encoding.head_dim:
        del shown["rotary_dim"]
    return f"{encoding.name}({', '.join(f'{key}={value!r}' for key, value in shown.items())})"
