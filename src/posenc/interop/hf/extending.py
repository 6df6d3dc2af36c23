"""Change the rope_parameters of a loaded model: check them as a configuration, and write them into its own."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from posenc import config as configs
from posenc.config.reads import KEPT, LENGTHS
from posenc.config.values import integer, short
from posenc.encodings import RoPE
from posenc.interop.hf import copied, patching, tables

_READ = {"rope_parameters", "rope_scaling"}
_LENGTH, _ORIGINAL = LENGTHS
_STRETCHED = ("linear", "yarn", "llama3", "longrope")  # not dynamic NTK, for which _LENGTH is the trained length
WHO = "posenc.hf.use"


def checked(groups: Mapping[str, Any], rope_parameters: object) -> tuple[Any, dict[str, Any]]:
    """Return the module whose configuration changes, and its new values: the parameters and the length.

    Raises:
        TypeError: The parameters are not a mapping.
        ValueError: They do not match the model, or several of its parts rotate.
    """
    if not isinstance(rope_parameters, Mapping) or not rope_parameters:
        kind: type[Exception] = ValueError if isinstance(rope_parameters, Mapping) else TypeError
        raise kind(
            f"{WHO}: rope_parameters must be a mapping as in a config.json; got {short(rope_parameters)}. "
            'Pass for example {"rope_type": "yarn", "factor": 4.0}.'
        )
    owner = _one_owner(groups)
    given, stated = _given(rope_parameters)
    old = patching.before(owner, "config", "rope_parameters")
    new = _merged(old, given)
    changed = copy.deepcopy(owner.config)
    changed.rope_parameters = copy.deepcopy(new)
    length = getattr(changed, "attribute_map", {}).get(_LENGTH, _LENGTH)
    kept = patching.before(owner, "config", length) if length in vars(changed) else None
    if kept is not None:
        setattr(changed, length, stated or kept)  # the original length, not that of an earlier call
    fields = {**tables.plain(changed), "rope_parameters": new}
    kinds: list[str | None] = [name for name, own in new.items() if isinstance(own, dict)]
    for name in kinds or [None]:
        RoPE.from_config(fields, name)  # raises errors with its own text
    changed.standardize_rope_params()
    written = {"rope_parameters": changed.rope_parameters}
    if kept is not None:
        written[length] = stated or _longest(kept, old, changed.rope_parameters)
    return owner, written


def _given(rope_parameters: Mapping[str, Any]) -> tuple[dict[str, Any], int | None]:
    """Return the parameters, and the maximum length if given, as in the output of `posenc write --to hf5`."""
    given = configs.read(rope_parameters)
    if not isinstance(given.get("rope_parameters"), dict):
        return given, None
    if unknown := sorted(given.keys() - {"rope_parameters", _LENGTH}):
        raise ValueError(
            f"{WHO}: next to rope_parameters only {_LENGTH} is allowed; got {short(unknown)}. Leave the others out."
        )
    stated = given.get(_LENGTH)
    return given["rope_parameters"], None if stated is None else integer(WHO, _LENGTH, stated, low=2)


def _longest(kept: int, old: Mapping[str, Any], new: Mapping[str, Any]) -> int:
    """Return the maximum length for these parameters: the trained length times the factor.

    Programs refuse longer texts, and interpret the file differently if length and factor disagree.
    """
    both = [(old.get(kind), own) for kind, own in new.items() if isinstance(own, Mapping)] or [(old, new)]
    reached = []
    for before, own in both:
        kind, factor = own.get("rope_type"), own.get("factor")
        if kind not in _STRETCHED or factor is None or own == before:
            continue
        scaled = before["factor"] if before and before.get("rope_type") == "linear" else 1.0
        trained = own.get(_ORIGINAL) or kept / scaled
        # Llama 3's factor applies to the slowest frequencies: 8 for 16 times the trained length
        reached.append(max(kept if kind == "llama3" else 0, round(factor * trained)))
    return max(reached, default=kept)


def write(model: nn.Module, owner: nn.Module, values: Mapping[str, Any]) -> None:
    """Write values into a copy of the owner's configuration, since other models may share the original."""
    memo: dict[int, Any] = {}
    for module in model.modules():
        if hasattr(vars(module).get("config"), "to_dict"):
            module.config = copy.deepcopy(module.config, memo)
    patching.exchange(owner, "config", **values)


def rescale(groups: Mapping[str, Any]) -> None:
    """Update the score scale of attention layers, since DeepSeek's depends on the factor."""
    for group in groups.values():
        for module in group.callers.values():
            cls: Any = patching.own_class(module)
            if _READ.isdisjoint(copied.mentions(cls.__init__)) or not hasattr(module, "layer_idx"):
                continue
            with torch.device("meta"):
                fresh = cls(module.config, module.layer_idx)
            numbers = {key: value for key, value in vars(fresh).items() if isinstance(value, float)}
            if other := {key: value for key, value in numbers.items() if vars(module).get(key) != value}:
                patching.exchange(module, "attributes", **other)


def _one_owner(groups: Mapping[str, Any]) -> Any:
    owners: dict[int, nn.Module] = {}
    for group in groups.values():
        if isinstance(getattr(getattr(group.owner, "config", None), "rope_parameters", None), dict):
            owners.setdefault(id(group.owner.config), group.owner)
    if not owners:
        raise ValueError(
            f"{WHO}: rope_parameters need a rotary part whose configuration has rope_parameters; this model has none. "
            "Leave rope_parameters out."
        )
    if len(owners) > 1:
        names = ", ".join(type(owner).__name__ for owner in owners.values())
        raise ValueError(
            f"{WHO}: rope_parameters are for one rotary part, but this model has {len(owners)}: {names}. "
            "Call it on the part that you want to extend."
        )
    return next(iter(owners.values()))


def _merged(old: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given parameters, with the old values of those that do not depend on the length."""
    by_kind = {kind: own for kind, own in old.items() if isinstance(own, Mapping)}
    if not by_kind:
        if {"rope_type", "type"}.isdisjoint(given) and (unread := sorted(given.keys() - {*KEPT})):
            raise ValueError(
                f"{WHO}: rope_parameters without a rope_type mean plain RoPE, which does not read {', '.join(unread)}; "
                f'got {short(dict(given))}. Add for example "rope_type": "yarn".'
            )
        return {key: old[key] for key in KEPT if key in old} | dict(given)
    flat = [key for key, own in given.items() if not isinstance(own, Mapping) or key not in by_kind]
    if flat or not given:
        raise ValueError(
            f"{WHO}: kinds of layers of this model rotate differently, so rope_parameters must have the kinds "
            f"{', '.join(by_kind)} as keys; got {short(list(given))}. Pass {{{next(iter(by_kind))!r}: {{...}}}}."
        )
    return {**old, **{kind: _merged(by_kind[kind], own) for kind, own in given.items()}}
