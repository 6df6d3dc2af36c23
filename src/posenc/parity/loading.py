"""Read the files of rules strictly, and choose stacks and versions."""

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from posenc.parity.rules import (
    FORMULAS,
    GAINS,
    LATENT,
    LENGTHS,
    LISTS,
    NAMES,
    PARAMETERS,
    PLACES,
    SEEN,
    SERVED,
    SKIPS,
    WORDS,
    Becomes,
    Length,
    Loads,
    Lookup,
    Objects,
    Override,
    Rules,
    Score,
    Seen,
    TypeRule,
    Words,
)

ALIASES = {"mlx": "mlx-lm", "llama.cpp": "llamacpp", "transformers": "hf"}  # other names of stacks


class _Part:
    """A part of a file whose keys are taken one by one; keys that are left at the end are unknown."""

    def __init__(self, fields: Any, where: str) -> None:
        if not isinstance(fields, dict):
            raise ValueError(f"{where} must be an object; got {fields!r}.")
        self.left, self.where, self.known = dict(fields), where, list[str]()

    def take(self, key: str, kind: type | tuple[type, ...], default: Any = ..., words: tuple[str, ...] = ()) -> Any:
        """Return a value of the given type, one of the words if there are any."""
        self.known.append(key)
        if key not in self.left:
            if default is ...:
                raise ValueError(f'{self.where}: {key} is missing. Write it, or "unknown".')
            return default
        value = self.left.pop(key)
        if not isinstance(value, kind):
            raise ValueError(f"{self.where}.{key} must be {kind}; got {value!r}.")
        for word in value if isinstance(value, list) and words else [value] if words else []:
            if isinstance(word, str) and word not in words:
                raise ValueError(f"{self.where}.{key} must be one of {', '.join(words)}; got {word!r}.")
        return value

    def part(self, key: str) -> "_Part":
        """Return an inner part."""
        return _Part(self.take(key, dict), f"{self.where}.{key}")

    def note(self, seen: Seen | None = None) -> Seen:
        """Return the source of the rule, or of the surrounding part if it has none of its own."""
        default = ... if seen is None else None
        source = self.take("source", str, default)
        how = self.take("seen", str, default, SEEN)
        return Seen(source or (seen.source if seen else ""), how or (seen.seen if seen else "unknown"))

    def end(self) -> None:
        """Refuse keys that are left."""
        if self.left:
            raise ValueError(
                f"{self.where}: unknown {', '.join(map(repr, self.left))}. Known: {', '.join(self.known)}."
            )


def parse(text: str, name: str) -> Rules:
    """Return the rules of a file.

    Args:
        text: Its JSON.
        name: Its name, <stack>-<version>.json, which must agree with its content.

    Raises:
        ValueError: It is not JSON, has an unknown word or lacks one.
    """
    where = f"parity: {name}"
    try:
        whole = _Part(json.loads(text), where)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} is not JSON: {error}.") from None
    stack, version = whole.take("stack", str), whole.take("version", str)
    if name != f"{stack}-{version}.json":
        raise ValueError(f"{where}: stack and version belong to {stack}-{version}.json. Rename it or fix them.")
    lookups = {}
    parameters = whole.part("parameters")
    for key in list(parameters.left):
        if key not in PARAMETERS:
            raise ValueError(f"{parameters.where}: unknown {key!r}. Known: {', '.join(PARAMETERS)}.")
        lookups[key] = _lookup(key, _Part(parameters.left[key], f"{parameters.where}.{key}"))
    types = whole.part("types")
    rules = Rules(
        stack=stack,
        version=version,
        project=whole.take("project", str),
        objects=_objects(whole.part("objects")),
        kinds=whole.take("kinds", str, words=("own", "main")),
        loads=_loads(whole.part("loads")) if "loads" in whole.left else None,
        override=_override(whole.part("override")),
        words=_words(whole.part("type")),
        types={key: _type(key, _Part(one, f"{types.where}.{key}"), lookups) for key, one in types.left.items()},
        other_type=whole.take("other_type", str, words=("error", "plain", "unknown")),
        scores=tuple(_score(_Part(one, f"{where}.scores[{i}]")) for i, one in enumerate(whole.take("scores", list))),
        length=_length(whole.part("length")),
        notes=tuple(whole.take("notes", list, [])),
    )
    whole.end()
    return rules


def _lookup(name: str, part: _Part) -> Lookup:
    plain: Any = (int, float, bool, str, type(None))
    out = Lookup(
        keys=tuple(part.take("keys", list, [NAMES.get(name, name)])),
        at=tuple(part.take("at", list, words=PLACES)),
        skip=part.take("skip", str, "null", SKIPS),
        otherwise=part.take("else", plain, None, WORDS),
        null=part.take("null", str, None, WORDS),
        whole_fails=part.take("whole_fails", bool, False),
        said=part.take("said", str, ""),
        note=part.note(),
    )
    part.end()
    return out


def _type(name: str, part: _Part, lookups: Mapping[str, Lookup]) -> TypeRule:
    formula = part.take("formula", str, words=FORMULAS)
    note = part.note()
    wanted = part.take("reads", list, [], tuple(lookups))
    own = part.take("parameters", dict, {})
    changed = {key: _lookup(key, _Part(one, f"{part.where}.parameters.{key}")) for key, one in own.items()}
    out = TypeRule(
        formula=formula,
        gain=tuple(part.take("gain", list, ["one"], GAINS)),
        times=tuple(part.take("times", list, [], ("attn_factor",))),
        parameters={**{key: lookups[key] for key in ("theta", *wanted) if key in lookups}, **changed},
        lists=part.take("lists", str, "text>original", LISTS),
        length=part.take("length", str, "text", LENGTHS),
        trained=part.take("trained", str, "max_len", ("max_len", "max_trained_positions")),
        served=part.take("served", str, "max_len", SERVED),
        said=part.take("said", str, ""),
        note=note,
    )
    part.end()
    return out


def _models(value: Any) -> str | frozenset[str]:
    return LATENT if value == LATENT else frozenset(value)


def _words(part: _Part) -> Words:
    becomes = []
    for i, one in enumerate(part.take("becomes", list, [])):
        inner = _Part(one, f"{part.where}.becomes[{i}]")
        models = _models(inner.take("models", (str, list)))
        becomes.append(Becomes(models, frozenset(inner.take("types", list)), inner.take("name", str)))
        inner.end()
    out = Words(
        order=tuple(part.take("order", list, words=("rope_type", "type"))),
        first_by_model=MappingProxyType(dict.fromkeys(part.take("type_first_in", list, []), "type")),
        otherwise=part.take("else", str),
        conflict=part.take("conflict", str, words=("first", "error")) == "error",
        agree=frozenset((a, b) for a, b in part.take("agree", list, [])),
        aliases=MappingProxyType(part.take("aliases", dict, {})),
        becomes=tuple(becomes),
        note=part.note(),
    )
    part.end()
    return out


def _objects(part: _Part) -> Objects:
    out = Objects(
        order=tuple(part.take("order", list, words=("rope_scaling", "rope_parameters"))),
        note=part.note(),
    )
    part.end()
    return out


def _loads(part: _Part) -> Loads:
    own = part.take("parameters", dict, {})
    changed = {key: _lookup(key, _Part(one, f"{part.where}.parameters.{key}")) for key, one in own.items()}
    out = Loads(part.take("by", str), changed, part.note())
    part.end()
    return out


def _override(part: _Part) -> Override:
    joins = ("replace", "merge", "unknown")
    out = Override(
        when=part.take("when", str, words=("file", "loaded")),
        join=part.take("join", str, words=joins),
        inside=part.take("inside", str, words=joins),
        keeps=frozenset(part.take("keeps", list, [])),
        note=part.note(),
    )
    part.end()
    return out


def _score(part: _Part) -> Score:
    out = Score(
        models=_models(part.take("models", (str, list))),
        weight=part.take("weight", (str, int, float), words=("mscale", "mscale_all_dim")),
        unless=MappingProxyType(part.take("unless", dict, {})),
        unknown=part.take("unknown", bool, False),
        note=part.note(),
    )
    part.end()
    return out


def _length(part: _Part) -> Length:
    out = Length(
        take=part.take("take", str, words=("max_len", "none", "unknown")),
        times_factor=frozenset(part.take("times_factor", list, [])),
        unless_given=part.take("unless_given", str, ""),
        not_in=frozenset(part.take("not_in", list, [])),
        gate=part.take("gate", str, words=("refuses", "none", "unknown")),
        note=part.note(),
    )
    part.end()
    return out


@cache
def known() -> Mapping[str, Rules]:
    """Return the packaged rules by stack@version, sorted by stack, the newest version first."""
    folder = files("posenc.parity").joinpath("rules")
    found = [parse(one.read_text("utf-8"), one.name) for one in folder.iterdir() if one.name.endswith(".json")]
    found.sort(key=lambda rules: _order(rules.version), reverse=True)
    found.sort(key=lambda rules: rules.stack)
    return {rules.name: rules for rules in found}


def choose(names: str | None) -> list[Rules]:
    """Return the rules for a list of names: without names, the newest of each stack and major version.

    Args:
        names: Names separated by commas: a stack (its newest version), a stack with a major version (hf5), or
            stack@version.

    Raises:
        ValueError: A stack or version is unknown; the message lists the known ones.
    """
    every = list(known().values())
    if names is None:
        return list({(rules.stack, _order(rules.version)[:1]): rules for rules in reversed(every)}.values())[::-1]
    chosen = {}
    for name in filter(None, (one.strip() for one in names.split(","))):
        rules = next((rules for rules in every if _is_called(rules, name)), None)
        if rules is None:
            raise ValueError(f"parity: no rules for {name[:60]!r}. Known: {', '.join(known())}; or a stack's name.")
        chosen[rules.name] = rules
    if not chosen:
        raise ValueError(f"parity: --stack is empty. Known: {', '.join(known())}.")
    return list(chosen.values())


def _is_called(rules: Rules, name: str) -> bool:
    stack, _, version = name.partition("@")
    stack = ALIASES.get(stack, stack)
    if version:
        return stack == rules.stack and version == rules.version
    return stack in (rules.stack, f"{rules.stack}{_order(rules.version)[0]}")


def _order(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version))) or (0,)
