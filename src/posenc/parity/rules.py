"""The rules: which words of a configuration a stack reads, one file of data for each stack and version.

A file in `rules/` is named <stack>-<version>.json. docs/stacks.md says what its words mean; a word that is not known
is an error that names the file and the place. What nobody has read in a stack's source stands there as "unknown", and
comes out as unknown.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

PLACES = ("own", "around", "top", "parameters", "ratio")
SKIPS = ("absent", "null", "falsy")
WORDS = ("max_len", "max_len/original", "class", "error", "unknown")
FORMULAS = ("plain", "linear", "ntk", "dynamic", "yarn", "llama3", "longrope", "proportional", "unknown", "error")
GAINS = (
    *("attention_factor", "ratio_if_truthy", "ratio_if_given", "ratio", "mscale", "longrope_factor", "longrope_ratio"),
    *("list_mscale", "all_dim_ratio", "one"),
)
LISTS = ("text>original", "text>original+1", "served>original", "long")
LENGTHS = ("text", "max_len", "max_len*factor")
SERVED = ("max_len", "original")
LATENT = "latent"  # models with multi-head latent attention, whose code multiplies all scores
SEEN = ("read", "run", "issue", "unknown")
NAMES = {
    "theta": "rope_theta",
    "original": "original_max_position_embeddings",
    "partial": "partial_rotary_factor",
}
PARAMETERS = (
    *("theta", "partial", "original", "factor", "attention_factor", "attn_factor", "beta_fast", "beta_slow"),
    *("truncate", "mscale", "mscale_all_dim", "extrapolation_factor", "low_freq_factor", "high_freq_factor"),
    *("short_factor", "long_factor", "short_mscale", "long_mscale", "alpha", "max_trained_positions"),
)


@dataclass(frozen=True)
class Seen:
    """Where a rule stands in a stack's source, and whether it was read there, run, or only reported."""

    source: str
    seen: str


@dataclass(frozen=True)
class Lookup:
    """Where one parameter is looked up.

    Args:
        keys: Its names in a file, the first before the others.
        at: The places in order: own (the parameters of the kind of layer), around (next to the kinds of layers), top
            (the model's fields), parameters (own, where the object is called rope_parameters), ratio (max_position_embeddings
            over the trained length, where the file has one).
        skip: What is passed over: a key that is absent, one that is absent or null, or any falsy value.
        otherwise: What is taken where nothing is found: a value, or one of WORDS.
        null: What an explicit null means where it is not passed over: None (as if not given), or one of WORDS.
        whole_fails: Whether a number without a decimal point raises.
        by_model: `otherwise` by model type.
        said: The error that the stack raises.
        note: Where the rule stands.
    """

    keys: tuple[str, ...]
    at: tuple[str, ...]
    skip: str
    otherwise: Any
    null: str | None
    whole_fails: bool
    by_model: Mapping[str, Any]
    said: str
    note: Seen


@dataclass(frozen=True)
class TypeRule:
    """What a stack computes for a type of rotation.

    `lists` says when LongRoPE takes its long list, `served` for which length a server allocates where none is given,
    `length` and `trained` between which lengths dynamic NTK computes its base.
    """

    formula: str
    gain: tuple[str, ...]
    times: tuple[str, ...]
    parameters: Mapping[str, Lookup]
    lists: str
    length: str
    trained: str
    served: str
    said: str
    note: Seen


@dataclass(frozen=True)
class Becomes:
    """A type that another takes the place of, in models of some types ("latent": all with latent attention)."""

    models: str | frozenset[str]
    types: frozenset[str]
    name: str


@dataclass(frozen=True)
class Score:
    """What multiplies all scores in models of some types: mscale(factor, weight) squared."""

    models: str | frozenset[str]
    weight: str | float
    unless: Mapping[str, Any]
    unknown: bool
    note: Seen


@dataclass(frozen=True)
class Length:
    """The longest text that a stack admits: max_position_embeddings, for some types of rotation times the factor.

    `unless_given` is a key among the parameters that prevents that, `not_in` model types in which it is not done.
    """

    take: str
    times_factor: frozenset[str]
    unless_given: str
    not_in: frozenset[str]
    gate: str
    note: Seen


@dataclass(frozen=True)
class Objects:
    """Which objects of a file hold the parameters, the first that is not empty; and who reads the new one."""

    order: tuple[str, ...]
    read_by: frozenset[str] | None
    ignored_by: frozenset[str]
    note: Seen


@dataclass(frozen=True)
class Words:
    """Which word names the type, in order; `conflict` says that two that disagree are an error."""

    order: tuple[str, ...]
    first_by_model: Mapping[str, str]
    otherwise: str
    conflict: bool
    agree: frozenset[tuple[str, str]]
    aliases: Mapping[str, str]
    becomes: tuple[Becomes, ...]
    note: Seen


@dataclass(frozen=True)
class Override:
    """How parameters given on the command line join those of the file, before or after it is loaded.

    `inside` is how they join within text_config.
    """

    when: str
    join: str
    inside: str
    note: Seen


@dataclass(frozen=True)
class Rules:
    """What one version of a stack reads.

    `kinds` says whether each kind of layer has parameters of its own; `loads_as` names the rules by which a library
    fills in a file before the stack reads it.
    """

    stack: str
    version: str
    project: str
    objects: Objects
    kinds: str
    loads_as: str | None
    override: Override
    words: Words
    types: Mapping[str, TypeRule]
    other_type: str
    scores: tuple[Score, ...]
    length: Length
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        """The stack with its version, as `--stack` takes it."""
        return f"{self.stack}@{self.version}"

    def source(self, note: Seen) -> str:
        """Return where a rule stands, with the project and version, and how it is known."""
        return f"{self.project} {self.version}: {note.source} [{note.seen}]"


class _Part:
    """A part of a file whose keys are taken one by one; what is left at the end is a word that is not known."""

    def __init__(self, fields: Any, where: str) -> None:
        if not isinstance(fields, dict):
            raise ValueError(f"{where} must be an object; got {fields!r}.")
        self.left, self.where, self.known = dict(fields), where, list[str]()

    def take(self, key: str, kind: type | tuple[type, ...], default: Any = ..., words: tuple[str, ...] = ()) -> Any:
        """Return a value of a kind, one of the words where these are given."""
        self.known.append(key)
        if key not in self.left:
            if default is ...:
                raise ValueError(f'{self.where}: {key} is missing. Write it, or "unknown" where nothing is known.')
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
        """Return where the rule stands, that of the part around it where it has none of its own."""
        default = ... if seen is None else None
        source = self.take("source", str, default)
        how = self.take("seen", str, default, SEEN)
        return Seen(source or (seen.source if seen else ""), how or (seen.seen if seen else "unknown"))

    def end(self) -> None:
        """Refuse what is left."""
        if self.left:
            raise ValueError(
                f"{self.where}: unknown {', '.join(map(repr, self.left))}. Known: {', '.join(self.known)}."
            )


def parse(text: str, name: str) -> Rules:
    """Return the rules of a file.

    Args:
        text: Its JSON.
        name: Its name, <stack>-<version>.json, which must agree with what stands in it.

    Raises:
        ValueError: It is no JSON, has an unknown word or lacks one.
    """
    where = f"parity: {name}"
    try:
        whole = _Part(json.loads(text), where)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} is not JSON: {error}.") from None
    stack, version = whole.take("stack", str), whole.take("version", str)
    if name != f"{stack}-{version}.json":
        raise ValueError(f"{where}: stack and version are of {stack}-{version}.json. Rename the file or correct them.")
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
        kinds=whole.take("kinds", str, words=("own", "main", "given")),
        loads_as=whole.take("loads_as", str, None),
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
        by_model=MappingProxyType(part.take("by_model", dict, {})),
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
    read_by = part.take("rope_parameters_read_by", list, None)
    out = Objects(
        order=tuple(part.take("order", list, words=("rope_scaling", "rope_parameters"))),
        read_by=None if read_by is None else frozenset(read_by),
        ignored_by=frozenset(part.take("rope_parameters_ignored_by", list, [])),
        note=part.note(),
    )
    part.end()
    return out


def _override(part: _Part) -> Override:
    joins = ("replace", "merge", "unknown")
    out = Override(
        when=part.take("when", str, words=("file", "loaded")),
        join=part.take("join", str, words=joins),
        inside=part.take("inside", str, words=joins),
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
    """Return the rules that come with the package by stack@version, by stack and the newest version first."""
    folder = files("posenc.parity").joinpath("rules")
    found = [parse(one.read_text("utf-8"), one.name) for one in folder.iterdir() if one.name.endswith(".json")]
    found.sort(key=lambda rules: _order(rules.version), reverse=True)
    found.sort(key=lambda rules: rules.stack)
    return {rules.name: rules for rules in found}


def choose(names: str | None) -> list[Rules]:
    """Return the rules that a list of names asks for, the newest of each stack and major version without one.

    Args:
        names: Names with commas between: a stack (its newest version), a stack with a major version (hf5), or
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
        raise ValueError(f"parity: --stack names none. Known: {', '.join(known())}.")
    return list(chosen.values())


def _is_called(rules: Rules, name: str) -> bool:
    stack, _, version = name.partition("@")
    if version:
        return stack == rules.stack and version == rules.version
    return name in (rules.stack, f"{rules.stack}{_order(rules.version)[0]}")


def _order(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version))) or (0,)
