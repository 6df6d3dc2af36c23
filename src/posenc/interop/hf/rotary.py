"""Rotary models: which modules make tables, which turn queries and keys by them, and what is put in their place."""

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
from posenc.interop.hf import copied, extending, gptj, patching, rephased, tables, turning
from posenc.interop.hf.patching import LeftError, Plan

_TURNS = re.compile(r"apply.*(rotary|rope)|(rotary|rope).*apply")
_MAKES = re.compile(r"Rotary|Rope|RoPE")


@dataclass
class Group:
    """A module that holds rotary modules, and the attentions that their tables reach.

    Args:
        model: What it is part of.
        name: Its name there.
        owner: It.
        rotaries: By their names in it; of GPT-J, whose tables are no modules' own, the model.
        callers: By their names in it.
        by_table: Whether it looks positions up, as GPT-J does.
    """

    model: nn.Module
    name: str
    owner: Any
    rotaries: dict[str, Any] = field(default_factory=dict)
    callers: dict[str, Any] = field(default_factory=dict)
    by_table: bool = False

    def plan(self, *, extended: bool = False) -> Plan:
        """Return what to put into it.

        Args:
            extended: Its configuration has changed since it was made, and is what counts.

        Raises:
            LeftError: Its tables, its rotary functions or its caches are of a kind that is not known here.
        """
        if not self.callers:
            raise LeftError("no attention that its tables reach turns by a function of its file")
        patching.check_own((*self.rotaries.values(), *self.callers.values()), "forward")
        return self._of_table() if self.by_table else self._of_modules(extended)

    def _of_table(self) -> Plan:
        rope, buffers = gptj.exact(self.owner)
        theirs = tables.trial(rope)[1]
        looks_up = hasattr(next(iter(self.callers.values())), "_get_embed_positions")
        more = {"_get_embed_positions": gptj.get_embed_positions} if looks_up else {}
        methods = self._forwards([(theirs, theirs)], None, **more)
        note = f"turns queries and keys of {len(self.callers)} attentions by {described(rope)}"
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
        """Return what stands in for the forwards of the callers, and for `more`; those of a class share it.

        Raises:
            LeftError: Nothing here does the same as one of their functions.
        """
        turns: dict[Any, turning.Turn] = {}
        for function in {f for module in self.callers.values() for f in functions(module).values()}:
            for theirs, ours in trials:
                turn = turning.like(function, theirs, ours)
                if turns.setdefault(function, turn).way != turn.way:
                    raise LeftError(f"its function {function.__name__} turns in several ways")
        by_class: dict[type, patching.Methods] = {}
        for module in self.callers.values():
            cls = patching.own_class(module)
            if cls not in by_class:
                own = {name: turns[function] for name, function in functions(module).items()}
                forward: Any = copied.Copied(cls, "forward", own)
                if by_length is not None:
                    forward = partial(rephased.forward, copy=forward, places=by_length, turns=tuple(own.values()))
                by_class[cls] = {"forward": forward, **more}
        return {module: by_class[patching.own_class(module)] for module in self.callers.values()}

    def _note(self, places: tables.Places) -> str:
        said = [described(encoding) for encoding in places.encodings.values()]
        if len(set(said)) > 1:
            said = [f"{text} ({kind})" for text, kind in zip(said, places.encodings, strict=True)]
        how = "turns queries and keys of" if len(self.rotaries) == 1 else f"one of {len(self.rotaries)} that turn"
        return "; ".join([f"{how} {len(self.callers)} attentions by {', '.join(dict.fromkeys(said))}", *places.notes])


def find(model: nn.Module, without: Collection[str] = ()) -> dict[str, Group]:
    """Return the groups of a model by the name of their owner, without some."""
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
        turning = _turning(group) if known is None else known
        if name in without or (group.callers and not turning):  # it makes tables and uses none
            del found[name]
        group.callers = {key: module for key, module in group.callers.items() if key in turning}
    return found


def _turning(group: Group) -> list[str]:
    """Return which attentions turn by a function of their file, as a forward of a model without weights shows.

    Some never call it: layers without positions, or all of them where a configuration says so. Where that model cannot
    be made or run so, as with mixtures of experts, all that could turn are returned.
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
            # without a cache masks look for packed documents, in numbers that are not there
            fresh.eval()(input_ids=torch.zeros(1, 2, dtype=torch.long), use_cache=True)
    except Exception:  # of whatever its author asks for
        return [*group.callers]
    return [name for name in group.callers if name in seen]


def _note(seen: list[str], name: str, function: Any, *args: Any, **kwargs: Any) -> Any:
    seen.append(name)
    return function(*args, **kwargs)


def functions(module: nn.Module) -> dict[str, Any]:
    """Return the rotary functions that a module's forward looks up among the globals of its file."""
    if _makes_tables(module):
        return {}
    return copied.found(patching.own_class(module).forward, lambda name: bool(_TURNS.search(name)))


def _makes_tables(module: nn.Module) -> bool:
    """Whether a module holds frequencies by itself and is called a rotary one."""
    named = (key for key, _ in module.named_buffers(recurse=False))
    return bool(_MAKES.search(type(module).__name__)) and any("inv_freq" in key for key in named)


def _around(name: str) -> Iterator[str]:
    """Yield the names of the modules around one, innermost first."""
    while name:
        name = name.rpartition(".")[0]
        yield name


def _inside(name: str, outer: str) -> str:
    """Return the name of a module as one around it has it."""
    return name.removeprefix(f"{outer}.") if outer else name


def extend(groups: dict[str, Group], rope_parameters: object) -> None:
    """Give a model other rope_parameters, and replace all of it anew.

    Raises:
        TypeError: As `extending.checked` does.
        ValueError: As `extending.checked` does, or the extended model cannot be replaced.
    """
    found = {name: group for name, group in groups.items()
             if patching.said(group.owner) or isinstance(patching.planned(group), Plan)}  # fmt: skip
    owner, new = extending.checked(found, rope_parameters)
    _undo(found)
    extending.write(next(iter(found.values())).model, owner, new)
    extending.rescale(found)
    for group in found.values():
        try:
            group.plan(extended=True).put(group.owner)
        except LeftError as error:
            _undo(found)
            raise ValueError(f"posenc.hf.use: the model cannot be extended so: {error}.") from None


def _undo(found: dict[str, Group]) -> None:
    for group in found.values():
        for module in (group.owner, *group.rotaries.values(), *group.callers.values()):
            patching.undo(module)


def described(encoding: Rotary) -> str:
    """Return an encoding in a few words: what differs from its defaults, without lists of numbers."""
    if isinstance(encoding, tables.Axes):
        return f"RoPE(head_dim={encoding.head_dim}) over {encoding.n_axes} axes of {encoding.pairs} pairs"
    defaults = {key: p.default for key, p in inspect.signature(type(encoding)).parameters.items()}
    shown = {key: value for key, value in encoding.options().items() if key in ("base", "head_dim") or (
        isinstance(value, int | float | str) and value != defaults.get(key) and value is not None)}  # fmt: skip
    if shown.get("rotary_dim") == encoding.head_dim:
        del shown["rotary_dim"]
    return f"{encoding.name}({', '.join(f'{key}={value!r}' for key, value in shown.items())})"
