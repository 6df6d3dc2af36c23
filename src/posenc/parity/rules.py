"""The rules: which words of a configuration a stack reads, in one data file for each stack and version.

A file in `rules/` is named <stack>-<version>.json. docs/stacks.md explains its words; an unknown word is an error
that names the file and the place. A part of a stack's source that was not read is written as "unknown", and its
result is unknown.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PLACES = ("own", "around", "top", "parameters", "ratio", "flags")
SKIPS = ("absent", "null", "falsy")
WORDS = ("max_len", "max_len/original", "class", "error", "unknown")
FORMULAS = (
    *("plain", "linear", "ntk", "ntk_slowed", "dynamic", "yarn", "llama3", "longrope", "proportional"),
    *("unknown", "error"),
)
GAINS = (
    *("attention_factor", "ratio_if_truthy", "ratio_if_given", "ratio", "mscale", "longrope_factor", "longrope_ratio"),
    *("longrope_stated", "list_mscale", "all_dim_ratio", "one"),
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
    """The place of a rule in a stack's source, and whether it was read there, run, or only reported."""

    source: str
    seen: str


@dataclass(frozen=True)
class Lookup:
    """Where to look up one parameter.

    Args:
        keys: Its names in a file, in order of precedence.
        at: The places in order: own (the parameters of the kind of layer), around (next to the kinds of layers), top
            (the model's fields), parameters (own, if the object is called rope_parameters), ratio (the longest length
            divided by the trained one, if the file has it), flags (the stack's own flags).
        skip: Values that are skipped: an absent key, an absent or null one, or any falsy value.
        otherwise: The value if nothing is found, or one of WORDS.
        null: The meaning of an explicit null that is not skipped: None (as if absent), or one of WORDS.
        whole_fails: Whether a number without a decimal point raises an error.
        said: The error that the stack raises.
        note: The source of the rule.
    """

    keys: tuple[str, ...]
    at: tuple[str, ...]
    skip: str
    otherwise: Any
    null: str | None
    whole_fails: bool
    said: str
    note: Seen


@dataclass(frozen=True)
class TypeRule:
    """The computation of a stack for a type of rotation.

    `lists`: when LongRoPE uses its long list; `served`: the length for which a server allocates memory if none is
    given; `length` and `trained`: the lengths between which dynamic NTK computes its base.
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
    """A type that replaces another in models of some types ("latent": all with latent attention)."""

    models: str | frozenset[str]
    types: frozenset[str]
    name: str


@dataclass(frozen=True)
class Score:
    """The factor of all scores in models of some types: mscale(factor, weight) squared."""

    models: str | frozenset[str]
    weight: str | float
    unless: Mapping[str, Any]
    unknown: bool
    note: Seen


@dataclass(frozen=True)
class Length:
    """The longest text that a stack admits: max_position_embeddings, for some types of rotation times the factor.

    `unless_given`: a key among the parameters that prevents this; `not_in`: model types without it.
    """

    take: str
    times_factor: frozenset[str]
    unless_given: str
    not_in: frozenset[str]
    gate: str
    note: Seen


@dataclass(frozen=True)
class Objects:
    """The objects of a file that hold the parameters, the first nonempty one."""

    order: tuple[str, ...]
    note: Seen


@dataclass(frozen=True)
class Words:
    """The words that name the type, in order; `conflict`: the result if two disagree."""

    order: tuple[str, ...]
    first_by_model: Mapping[str, str]
    otherwise: str
    conflict: bool
    agree: frozenset[tuple[str, str]]
    aliases: Mapping[str, str]
    becomes: tuple[Becomes, ...]
    note: Seen


@dataclass(frozen=True)
class Loads:
    """The rules of the library that loads a file before a stack reads it, with lookups in which it differs."""

    by: str
    parameters: Mapping[str, Lookup]
    note: Seen


@dataclass(frozen=True)
class Override:
    """How parameters on the command line join those of the file, before or after it is loaded.

    `inside`: how they join within text_config; `keeps`: types whose factors no flag of the stack changes.
    """

    when: str
    join: str
    inside: str
    keeps: frozenset[str]
    note: Seen


@dataclass(frozen=True)
class Rules:
    """The rules of one version of a stack.

    `kinds`: whether each kind of layer has its own parameters.
    """

    stack: str
    version: str
    project: str
    objects: Objects
    kinds: str
    loads: Loads | None
    override: Override
    words: Words
    types: Mapping[str, TypeRule]
    other_type: str
    scores: tuple[Score, ...]
    length: Length
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        """The stack with its version, in the form of `--stack`."""
        return f"{self.stack}@{self.version}"

    def every_note(self) -> list[Seen]:
        """Return the source of each rule, once."""
        types = [note for rule in self.types.values() for note in (rule.note, *_notes(rule.parameters))]
        parts = [self.objects.note, self.words.note, self.override.note, self.length.note]
        loads = [] if self.loads is None else [self.loads.note, *_notes(self.loads.parameters)]
        return list(dict.fromkeys([*parts, *(score.note for score in self.scores), *loads, *types]))

    def source(self, note: Seen) -> str:
        """Return the source of a rule, with the project and version, and how it is known."""
        return f"{self.project} {self.version}: {note.source} [{note.seen}]"


def _notes(lookups: Mapping[str, Lookup]) -> list[Seen]:
    return [lookup.note for lookup in lookups.values()]
