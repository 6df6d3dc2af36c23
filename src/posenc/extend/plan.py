"""The comparison of context extension methods: the effects of each on pairs, neighbours and short texts."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from posenc import config, frequencies
from posenc.config.reading import Checked
from posenc.config.values import integer
from posenc.definitions.distances import dual_chunk_distance, self_extend_distance
from posenc.extend.effect import SAME, SCALED, Array, Effect, Model
from posenc.extend.published import PUBLISHED, Published
from posenc.extend.stretch import METHODS, WHO, Method, Stretched, lengths, plain_base, stretch, trained_length
from posenc.extend.write import can_run
from posenc.parity.compare import Meaning, mean

_DISTANCES: Mapping[str, Callable[..., Array]] = {
    "dual-chunk": dual_chunk_distance,
    "self-extend": self_extend_distance,
}
_MAPPED = {"dual-chunk": ("chunk", "local"), "self-extend": ("window", "group")}


@dataclass(frozen=True)
class Candidate:
    """A method with its parameters for a model and a length.

    Args:
        method: The method.
        parameters: Its parameters, named as in transformers 5 or in the encoding's constructor.
        stretched: The configuration; None if no configuration can express the method.
        effect: Its effects; None if they cannot be computed.
        refused: Why they cannot be computed, and what is needed; else None.
        published: Published results.
    """

    method: Method
    parameters: Mapping[str, Any] = field(hash=False)
    stretched: Stretched | None
    effect: Effect | None
    refused: str | None
    published: Published

    @cached_property
    def stacks(self) -> Mapping[str, str]:
        """For each stack "" if it can run the method, else the reason; for a method without a configuration, how."""
        return self.published.runs if self.stretched is None else can_run(self.stretched)

    def reached(self, train: bool) -> float:
        """Return the largest published factor, with or without training."""
        return self.published.trained if train else self.published.untrained


@dataclass(frozen=True)
class Plan:
    """Candidates for a model and a length, the most promising first; lengths in positions.

    Args:
        before: The meaning of the configuration for the kind of layer that is extended.
        trained_len: The trained length.
        now_len: Today's longest text, with the scaling in the file.
        target_len: The wanted length.
        factor: The wanted length / the trained length.
        train: Whether the model will be trained further.
        n_pairs: How many pairs of dimensions rotate.
        full_turns: How many of them complete a period in training.
        unseen: How many would reach angles absent from training without a change.
        candidates: The candidates in order.
    """

    before: Meaning
    trained_len: int
    now_len: int
    target_len: int
    factor: float
    train: bool
    n_pairs: int
    full_turns: int
    unseen: int
    candidates: tuple[Candidate, ...]

    @property
    def step(self) -> float:
        """The wanted length / today's longest length, at least 1."""
        return max(self.target_len / self.now_len, 1.0)

    @property
    def settled(self) -> str:
        """Why nothing needs to change; empty if something does."""
        window = self.before.rotary.window
        if window and window <= self.trained_len:
            return f"the layers that rotate have a window of {window:,} positions, so no distance grows"
        if self.target_len <= self.now_len:
            return f"the model already handles {self.now_len:,} positions"
        why = "no pair reaches new angles, and no configuration scales this rotation: only declare the length"
        return why if not self.unseen and self.candidates[0].stretched is None else ""

    @property
    def recommended(self) -> Candidate | None:
        """The first candidate; None if nothing needs to change."""
        return None if self.settled else self.candidates[0]

    @property
    def reason(self) -> str:
        """Why the first candidate is recommended, with warnings, or why none is."""
        if self.settled:
            return f"{self.settled}."
        best, how = self.candidates[0], "with" if self.train else "without"
        effect, reached = best.effect, best.reached(self.train)
        if effect is None:
            return f"{best.refused}"
        facts = ["no pair reaches new angles" if not effect.unseen else f"{effect.unseen} pairs reach new angles"]
        facts += ["the fastest pair keeps its angle between neighbours"] if effect.fastest > 1 - SAME else []
        facts += ["angles do not depend on the length of the text"] if effect.fixed else []
        distance, cos = min(effect.cos.items(), key=lambda item: item[1])
        most = f"change most at distance {distance:,}, to cos {cos:.4f}" if cos < 1 - SAME else "rotate as today"
        facts += [f"texts of today's lengths {most}"]
        if is_shipped(best, self.before.rotary.rope_type):
            return "; ".join(["the file already has it", *facts]) + "."
        facts += [
            f"published {how} training up to factor {reached:g}" if reached else f"no published result {how} training"
        ]
        if reached >= self.step:
            return "; ".join(facts) + "."
        others = [f"{one.method.name} up to {one.reached(self.train):g}" for one in self.candidates
                  if one.effect and one.reached(self.train) >= self.step]  # fmt: skip
        found = f" ({', '.join(others)})" if others else ""
        remedy = "expect to tune it" if self.train else "train the model"
        return f"{'; '.join(facts)}, but {self.step:.4g} is wanted{found}: {remedy}, or choose a shorter length."


def plan(
    source: config.Source,
    target_len: int,
    *,
    trained_len: int | None = None,
    train: bool = False,
    options: Mapping[str, Any] | None = None,
) -> Plan:
    """Return the methods that extend a model's context, in order, with their effects.

    docs/planning.md explains the order. Defaults of parameters: the factor is the wanted / the trained length; a larger
    base is that of `frequencies.larger_base`; chunks hold three quarters of today's longest text and a sixteenth is
    local, as in the authors' code (An 2024); Self-Extend's window is a quarter of it, and its group the smallest that
    reaches the length (Jin 2024).

    Args:
        source: A configuration, as for `config.read`.
        target_len: The wanted length, in positions.
        trained_len: The trained length; None takes that of the configuration.
        train: Whether the model will be trained on longer texts.
        options: Parameters, passed to the methods that have them: beta_fast, rope_theta, long_factor, window, ...

    Raises:
        ValueError: The length is below the trained one, no layer rotates, no method has an option, or a value is out
            of range.
        TypeError: A value has a wrong type.

    >>> found = plan({"model_type": "llama", "head_dim": 128, "max_position_embeddings": 4096, "rope_theta": 1e4}, 8192)
    >>> found.recommended.method.name, found.full_turns, found.n_pairs, found.unseen
    ('yarn', 46, 64, 18)
    """
    given = dict(options or {})
    _check_options(given)
    fields = Checked(config.read(source))
    before = mean(fields)[0]
    trained = trained_length(before, trained_len)
    factor, target = lengths(None, integer(WHO, "target_len", target_len), trained)
    model = Model(fields, before, trained, target)
    found = [_candidate(method, model, given) for method in METHODS.values()]
    step = target / model.now
    found.sort(key=lambda one: _rank(one, before.rotary.rope_type, step, train))
    seen = model.seen
    full, unseen = int((seen >= math.tau).sum()), len(model.unseen_pairs(model.angles(model.far(target), target)))
    return Plan(before, trained, model.now, target, factor, train, len(seen), full, unseen, tuple(found))


def _check_options(given: Mapping[str, Any]) -> None:
    known = {key for name in METHODS for key in _takes(name)}
    if unknown := sorted(given.keys() - known):
        raise ValueError(
            f"{WHO}: no method has a parameter {', '.join(unknown)[:200]}. Known: {', '.join(sorted(known))}."
        )


def _takes(name: str) -> tuple[str, ...]:
    return (*METHODS[name].needs, *METHODS[name].takes, *_MAPPED.get(name, ()))


def _candidate(method: Method, model: Model, given: Mapping[str, Any]) -> Candidate:
    own = {key: given[key] for key in _takes(method.name) if key in given}
    published = PUBLISHED[method.name]
    try:
        if method.rope_type is None:
            parameters, effect = _unconfigured(method.name, model, own)
            return Candidate(method, parameters, None, effect, None, published)
        own = _chosen(method.name, model, own)
        if missing := [key for key in method.needs if key not in own]:
            why = f"it needs {' and '.join(missing)}, which only a search on the model can provide"
            return Candidate(method, own, None, None, why, published)
        found = stretch(model.source, method.name, target_len=model.target, trained_len=model.trained, options=own)
    except ValueError as error:
        if own.keys() & given.keys():
            raise
        return Candidate(method, own, None, None, str(error).removeprefix(f"{WHO}: "), published)
    after = found.after[0]
    gain = after.at(model.target).gain
    effect = model.effect(lambda distance, text: after.at(text).inv_freq * distance, after.logits, gain)
    return Candidate(method, found.parameters, found, effect, None, published)


def _chosen(name: str, model: Model, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a method, with defaults for the length."""
    out, rotary = dict(own), model.before.rotary
    if name == "base" and "rope_theta" not in out:
        found = frequencies.larger_base(plain_base(rotary), original_max_len=model.trained, target_len=model.target)
        out["rope_theta"] = float(math.ceil(found))
    if name == rotary.rope_type == "longrope":  # the lists in the file
        out = {key: list(rotary.parameters[key]) for key in METHODS[name].needs if key in rotary.parameters} | out
    return out


def _unconfigured(name: str, model: Model, own: Mapping[str, Any]) -> tuple[dict[str, int], Effect]:
    """Return the parameters and effects of a method that no configuration can express."""
    gain, now = model.before.at(model.trained).gain, model.now
    if name == "drope":
        return {}, model.effect(lambda distance, text: 0.0 * model.angles(distance, text), None, None)
    if name == "dual-chunk":
        parameters = {"chunk": max(3 * now // 4, 1), "local": now // 16}
    else:
        window = integer(WHO, "window", own.get("window", max(now // 4, 1)), high=now - 1)
        left = now - window  # positions for groups
        parameters = {"window": window, "group": max(math.ceil((model.target - window) / left), 1)}
    for key, value in own.items():
        low = 0 if key == "local" else 1
        parameters[key] = integer(WHO, key, value, low=low, high=model.target)
    if name == "dual-chunk" and parameters["local"] >= parameters["chunk"]:
        raise ValueError(f"{WHO}: local must be below chunk={parameters['chunk']}; got {parameters['local']}.")

    def angles(distance: int, text: int) -> Array:
        last = max(text, distance)
        apart = _DISTANCES[name](np.array([last]), np.array([last - distance]), **parameters)
        return np.asarray(model.angles(1, model.trained) * float(apart[0, 0]))

    return parameters, model.effect(angles, lambda text: model.before.logits(model.trained), gain)


def is_shipped(one: Candidate, rope_type: str) -> bool:
    """Return whether the file already has a candidate's scaling, perhaps with another factor."""
    return one.method.rope_type == rope_type and rope_type in SCALED


def _rank(one: Candidate, rope_type: str, step: float, train: bool) -> tuple[Any, ...]:
    reached, effect = one.reached(train), one.effect
    if effect is None:
        return (1,)
    enough = 0 if is_shipped(one, rope_type) or reached >= step else 1 if reached else 2
    change = -min(effect.cos.values())
    return (0, one.stretched is None, enough, effect.unseen > 0, not effect.fixed, effect.fastest < 1 - SAME, change)
