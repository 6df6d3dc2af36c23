"""The rules: which words of a configuration a stack reads, one file of data for each stack and version.

A file in `rules/` is named <stack>-<version>.json. docs/stacks.md says what its words mean; a word that is not known
is an error that names the file and the place. What nobody has read in a stack's source stands there as "unknown", and
comes out as unknown.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PLACES = ("own", "around", "top", "parameters", "ratio", "flags")
SKIPS = ("absent", "null", "falsy")
WORDS = ("max_len", "max_len/original", "class", "error", "unknown")
FORMULAS = ("plain", "linear", "ntk", "dynamic", "yarn", "llama3", "longrope", "proportional", "unknown", "error")
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
    """Where a rule stands in a stack's source, and whether it was read there, run, or only reported."""

    source: str
    seen: str


@dataclass(frozen=True)
class Lookup:
    """Where one parameter is looked up.

    Args:
        keys: Its names in a file, the first before the others.
        at: The places in order: own (the parameters of the kind of layer), around (next to the kinds of layers), top
            (the model's fields), parameters (own, where the object is called rope_parameters), ratio (the longest
            length over the trained one, where the file has that), flags (what the stack's own flags give).
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
class Loads:
    """The rules of the library that loads a file before a stack reads it, and lookups in which it departs from them."""

    by: str
    parameters: Mapping[str, Lookup]
    note: Seen


@dataclass(frozen=True)
class Override:
    """How parameters given on the command line join those of the file, before or after it is loaded.

    `inside` is how they join within text_config; `keeps` names types whose factors no flag of the stack changes.
    """

    when: str
    join: str
    inside: str
    keeps: frozenset[str]
    note: Seen


@dataclass(frozen=True)
class Rules:
    """What one version of a stack reads.

    `kinds` says whether each kind of layer has parameters of its own.
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
        """The stack with its version, as `--stack` takes it."""
        return f"{self.stack}@{self.version}"

    def every_note(self) -> list[Seen]:
        """Return where each rule stands, once."""
        types = [note for rule in self.types.values() for note in (rule.note, *_notes(rule.parameters))]
        parts = [self.objects.note, self.words.note, self.override.note, self.length.note]
        loads = [] if self.loads is None else [self.loads.note, *_notes(self.loads.parameters)]
        return list(dict.fromkeys([*parts, *(score.note for score in self.scores), *loads, *types]))

    def source(self, note: Seen) -> str:
        """Return where a rule stands, with the project and version, and how it is known."""
        return f"{self.project} {self.version}: {note.source} [{note.seen}]"


def _notes(lookups: Mapping[str, Lookup]) -> list[Seen]:
    return [lookup.note for lookup in lookups.values()]
