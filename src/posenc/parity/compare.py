"""Compare how each stack reads a configuration with the meaning of the configuration."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from posenc import config, frequencies
from posenc.config import kinds
from posenc.config.model import open_model
from posenc.config.models import TYPES
from posenc.config.reading import Checked
from posenc.config.rotation import Rotary
from posenc.parity.evaluate import mean_cos, same
from posenc.parity.flags import meant
from posenc.parity.read import Key, Reading, merged, read
from posenc.parity.rules import Rules

DISTANCES = (100, 1000, 8000)
_ORDER = ("same", "unknown", "differs", "error")
_OBJECTS = ("rope_scaling", "rope_parameters")


@dataclass(frozen=True)
class Meaning:
    """The meaning of a configuration for one kind of layer, as posenc and transformers 5.23 read it."""

    rotary: Rotary
    source: Checked
    pairing: config.Pairing | None
    by_text: dict[int, frequencies.Frequencies] = field(default_factory=dict, compare=False, repr=False)

    def at(self, text: int) -> frequencies.Frequencies:
        """Return frequencies, gain and score factor for a text length, read once for all stacks."""
        if text not in self.by_text:
            kind = self.rotary.layer_type
            self.by_text[text] = frequencies.from_config(self.source, kind, pairing=self.pairing, seq_len=text)
        return self.by_text[text]

    def logits(self, text: int) -> float:
        """Return the factor of the scores."""
        found = self.at(text)
        return found.gain**2 * found.score_factor


@dataclass(frozen=True)
class Compared:
    """One stack, compared with the meaning.

    `mean_cos` has, by distance, the mean over pairs of the cosine of the angle between the two rotations, None if a
    stack's reading is unknown or an error; `logits` is the stack's factor of the scores relative to the right one.
    """

    rules: Rules
    status: str
    gain: float | None
    score_factor: float | None
    max_len: int | None
    mean_cos: Mapping[int, float | None]
    logits: float | None
    keys: tuple[Key, ...]


@dataclass(frozen=True)
class Parity:
    """A configuration's meaning by kind of layer, and the comparison of every stack."""

    target: str
    meanings: tuple[Meaning, ...]
    stacks: tuple[Compared, ...]
    length: int | None


def compare(
    source: config.Source,
    stacks: Sequence[Rules],
    *,
    override: Mapping[str, Any] | None = None,
    flags: Mapping[str, Any] | None = None,
    distances: Sequence[int] = DISTANCES,
    length: int | None = None,
    target: str = "",
) -> Parity:
    """Compare how stacks read a configuration with its meaning.

    Args:
        source: A configuration, as for `config.read`.
        stacks: The rules of stacks, from `loading.choose`.
        override: Fields that join the configuration: key by key for its meaning, and for each stack as it joins them.
        flags: The stack's own flags, as `flags.Given` holds them; for the meaning they join the configuration.
        distances: The distances in positions of `mean_cos`.
        length: The length of the text in positions that the stacks must serve; also a distance. None uses, for each
            distance, the shortest text that has it.
        target: The name of the configuration.

    Raises:
        ValueError: The configuration has no meaning: a value is missing or out of range, or no layer rotates.
        TypeError: A value has the wrong type.

    >>> from posenc.parity.loading import choose
    >>> qwen = {"model_type": "qwen3", "head_dim": 128, "max_position_embeddings": 32768, "rope_theta": 1e6,
    ...         "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}
    >>> [(found.rules.stack, round(found.mean_cos[1000], 4)) for found in
    ...  compare(qwen, choose("hf,mlx-lm,tensorrt-llm")).stacks]
    [('hf', 1.0), ('mlx-lm', 0.6437), ('tensorrt-llm', 0.6101)]
    """
    fields, override = Checked(config.read(source)), dict(override or {})
    given = override
    if flags:
        given = merged(override, meant(fields, mean(fields)[0].rotary.layer_type, flags))
    meanings = mean(Checked(joined(fields.fields, given)))
    at = sorted({*distances, *([length] if length else [])})
    rows = []
    for rules in stacks:
        found = [
            _compare(
                one, read(fields, override, rules, one.rotary, main=i == 0, length=length, flags=flags), at, length
            )
            for i, one in enumerate(meanings)
        ]
        rows.append(_worst(found))
    return Parity(target, tuple(meanings), tuple(rows), length)


def mean(source: Checked) -> list[Meaning]:
    """Return the meaning of a configuration for each kind of layer with its own rotation."""
    model = open_model(source)
    pairing: config.Pairing | None = None if model.name in TYPES else "half"  # frequencies do not depend on it
    order = dict.fromkeys(kind for kind in kinds.layers(model, unknown=24) if kinds.rotates(kind))
    found = dict[str, Meaning]()
    for kind in sorted(order, key=lambda kind: (kind != kinds.FULL, "sliding" in kind)):
        rotary = config.rotary(source, kind, pairing=pairing)
        same_in_all = replace(rotary, layer_type="", window=None, warnings=())
        found.setdefault(repr(same_in_all), Meaning(rotary, source, pairing))
    return list(found.values()) or [Meaning(config.rotary(source, pairing=pairing), source, pairing)]


def joined(fields: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields with an override joined key by key; both names of the object of parameters count as one key."""
    out, given = dict(fields), dict(override)
    present = [key for key in _OBJECTS if out.get(key)]
    for key in _OBJECTS:
        if isinstance(given.get(key), dict) and present and key not in present:
            given[present[0]] = given.pop(key)
    out = merged(out, given)
    for key in _OBJECTS:
        if isinstance(given.get(key), dict) and "rope_type" in given[key] and "type" not in given[key]:
            out[key].pop("type", None)
    return out


def _compare(meaning: Meaning, found: Reading, at: Sequence[int], length: int | None) -> Compared:
    """Return one kind of layer of one stack, compared with the meaning."""
    texts = {distance: length or distance + 1 for distance in at}
    whole, rotation = length or meaning.rotary.max_len or max(texts.values()), found.rotation
    if rotation is None:
        nothing = dict.fromkeys(at)
        return Compared(found.rules, found.state, None, None, found.max_len, nothing, None, found.keys)
    gain, score = rotation.gains(whole), found.score
    logits = None if score is None else gain * gain * score / meaning.logits(whole)
    alike = (logits is None or same([logits], [1.0])) and all(
        same(rotation.inv_freq(text), meaning.at(text).inv_freq) for text in {*texts.values(), whole}
    )
    status = "error" if found.state == "error" else "differs" if not alike else found.state.replace("read", "same")
    angles = {d: mean_cos(rotation.inv_freq(text), meaning.at(text).inv_freq, d) for d, text in texts.items()}
    return Compared(found.rules, status, gain, score, found.max_len, angles, logits, found.keys)


def _worst(found: Sequence[Compared]) -> Compared:
    """Return the kind of layer that differs most from its meaning, with the keys of all."""
    worst = min(found, key=lambda one: (-_ORDER.index(one.status), _least(one.mean_cos)))
    keys = {key.key: key for one in reversed(found) for key in one.keys}
    for one in found:
        keys |= {key.key: key for key in one.keys if key.use != "ignored"}
    return Compared(
        *(worst.rules, worst.status, worst.gain, worst.score_factor, found[0].max_len, worst.mean_cos, worst.logits),
        tuple(keys.values()),
    )


def _least(angles: Mapping[int, float | None]) -> float:
    return min((value for value in angles.values() if value is not None), default=1.0)
