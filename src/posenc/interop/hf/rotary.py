"""Rotary models: what is put in place of the modules that make tables and of the functions that turn by them."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from posenc.encodings import RoPE
from posenc.families import Rotary
from posenc.interop.hf import copied, extending, gptj, groups, patching, rephased, tables, turning
from posenc.interop.hf.groups import Group


@dataclass
class Plan:
    """What is put into a group."""

    places: dict[str, tables.Places]  # by the name of the rotary module
    turns: dict[Any, turning.Turn]  # by function
    by_table: tuple[RoPE, Tensor] | None = None


def parts(model: nn.Module) -> list[tuple[str, str | None, Callable[[], str | None]]]:
    """Return by name the modules that make tables, what runs there now or None, and what says why it is left."""
    return [
        (name, _running(group, rotary), partial(_refusal, group))
        for group in groups.find(model).values()
        for name, rotary in group.rotaries.items()
    ]


def _running(group: Group, rotary: Any) -> str | None:
    note, callers = patching.note(rotary), list(group.callers.values())
    changed = sum(not patching.runs(module) for module in callers)
    if note is None or changed == len(callers) or not (group.by_table or patching.runs(rotary)):
        return None
    return note + (f"; {changed} of them have been changed since" if changed else "")


def owners(model: nn.Module) -> list[str]:
    """Return the names of the modules whose attentions are meant."""
    return list(groups.find(model))


def route(model: nn.Module, rope_parameters: object = None) -> None:
    """Replace what can be replaced and is not yet; with rope_parameters, all of it anew.

    Raises:
        TypeError: As `extending.checked` does.
        ValueError: As `extending.checked` does, or the extended model cannot be replaced.
    """
    found = groups.find(model)
    extended = rope_parameters is not None
    if extended:
        found = {name: group for name, group in found.items() if not isinstance(planned(group, again=True), str)}
        owner, new = extending.checked(found, rope_parameters)
        _undo(found)
        patching.extend(model, owner, new)
        extending.rescale(found)
    for group in found.values():
        if any(patching.note(rotary) is not None for rotary in group.rotaries.values()):
            continue
        plan = planned(group, extended=extended)
        if not isinstance(plan, str):
            _replace(model, group, plan)
            patching.remember(group.owner, [groups.inside(key, group.name) for key in group.callers])
        elif extended:
            _undo(found)
            raise ValueError(f"posenc.hf.use: the model cannot be extended so: {plan}.")


def planned(group: Group, *, extended: bool = False, again: bool = False) -> Plan | str:
    """Return what would be put into a group, or a sentence why it is left; `again`: it may be there already."""
    if not group.callers:
        return "no attention that its tables reach turns by a function of its file"
    for module in (*group.rotaries.values(), *group.callers.values()):
        if sentence := patching.taken(module, "forward"):
            return sentence
    if again and any(patching.note(rotary) is not None for rotary in group.rotaries.values()):
        return Plan({}, {})
    plan = Plan({}, {})
    if group.by_table:
        return _by_table(group, plan)
    for name, rotary in group.rotaries.items():
        try:
            plan.places[name], pairs = tables.found(rotary, extended=extended)
        except tables.OtherError as error:
            return str(error)
        if sentence := _tried(group, plan, pairs):
            return sentence
    by_length = any(places.by_length for places in plan.places.values())
    return (rephased.refuses(group.callers.values()) if by_length else None) or plan


def _tried(group: Group, plan: Plan, pairs: list[tuple[Any, tables.Tables]]) -> str | None:
    """Find what does the same as each function of the group, or return a sentence why nothing does."""
    for function in {f for module in group.callers.values() for f in groups.functions(module).values()}:
        for theirs, ours in pairs:
            turn = turning.like(function, theirs, ours)
            if isinstance(turn, str):
                return turn
            if plan.turns.setdefault(function, turn).way != turn.way:
                return f"its function {function.__name__} turns in several ways"
    return None


def _by_table(group: Group, plan: Plan) -> Plan | str:
    made = gptj.planned(group.owner)
    if isinstance(made, str):
        return made
    plan.by_table = made
    cos, sin = made[0].place(tables.trial_positions()).parts
    return _tried(group, plan, [((cos, sin), (cos, sin))]) or plan


def _refusal(group: Group) -> str | None:
    plan = planned(group)
    return plan if isinstance(plan, str) else None


def _undo(found: Mapping[str, Group]) -> None:
    for group in found.values():
        for module in (group.owner, *group.rotaries.values(), *group.callers.values()):
            patching.undo(module)


def _replace(model: nn.Module, group: Group, plan: Plan) -> None:
    by_class: dict[Any, list[Any]] = {}  # layers share a subclass, so that a compiler sees one code
    if plan.by_table is not None:
        callers = list(group.callers.values())
        gptj.replace(group.owner, callers, *plan.by_table, next(iter(groups.functions(callers[0]))))
    by_length = next((places for places in plan.places.values() if places.by_length), None)
    for module in [] if plan.by_table else group.callers.values():
        functions = groups.functions(module)
        by_class.setdefault(patching.own_class(module), []).append(module)
        for encoding in (e for places in plan.places.values() for e in places.encodings.values()):
            for function in functions.values():
                plan.turns[function].widths(*groups.widths(module), n_pairs=encoding.rotary_dim // 2)
    for cls, modules in by_class.items():
        turns = {name: plan.turns[function] for name, function in groups.functions(modules[0]).items()}
        patching.replace(modules, forward=_copy(cls, turns, by_length))
    if by_length is not None:
        rephased.keep_caches(model)
    for name, rotary in group.rotaries.items():
        if plan.by_table is None:
            patching.replace([rotary], forward=partial(tables.forward, places=plan.places[name]))
        patching.describe(rotary, _note(group, plan, name))


def _copy(cls: type, turns: dict[str, turning.Turn], by_length: tables.Places | None) -> Any:
    """Return what stands in for the forward of the callers of a class."""
    copy = copied.Copied(cls, "forward", turns)
    if by_length is None:
        return copy
    return partial(rephased.forward, copy=copy, places=by_length, turns=tuple(turns.values()))


def _note(group: Group, plan: Plan, name: str) -> str:
    if plan.by_table is not None:
        return f"turns queries and keys of {len(group.callers)} attentions by {described(plan.by_table[0])}"
    places = plan.places[name]
    said = [described(encoding) for encoding in places.encodings.values()]
    if len(set(said)) > 1:
        said = [f"{text} ({kind})" for text, kind in zip(said, places.encodings, strict=True)]
    how = "turns queries and keys of" if len(group.rotaries) == 1 else f"one of {len(group.rotaries)} that turn"
    return "; ".join([f"{how} {len(group.callers)} attentions by {', '.join(dict.fromkeys(said))}", *places.notes])


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
