"""Ways to make a model's context longer, next to each other: what each does to pairs, neighbours and short texts."""

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
        parameters: Its parameters, in the words of transformers 5 or of the encoding's constructor.
        stretched: The configuration; None where no configuration can say it.
        effect: What it does; None where it cannot be computed.
        refused: Why it cannot be, with what is needed; None where it can.
        published: What is published about it.
    """

    method: Method
    parameters: Mapping[str, Any] = field(hash=False)
    stretched: Stretched | None
    effect: Effect | None
    refused: str | None
    published: Published

    @cached_property
    def stacks(self) -> Mapping[str, str]:
        """For each stack "" where it can run it, or else why it cannot; without a configuration how it runs it."""
        return self.published.runs if self.stretched is None else can_run(self.stretched)

    def reached(self, train: bool) -> float:
        """Return how many times longer the longest published text is that it reached, with or without training."""
        return self.published.trained if train else self.published.untrained


@dataclass(frozen=True)
class Plan:
    """Candidates for a model and a length, the most promising first; lengths in positions.

    Args:
        before: What the configuration means for the kind of layer that is stretched.
        trained_len: The length of the texts of training.
        now_len: The longest text that the model reads now, with the scaling that its file ships.
        target_len: The length wanted.
        factor: How many times longer that is.
        train: Whether the model is trained on.
        n_pairs: How many pairs of dimensions rotate.
        full_turns: How many of them made a full turn in training.
        unseen: How many would see angles that training did not show, were nothing changed.
        candidates: In order.
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
        """How many times longer the wanted length is than what the model reads now."""
        return max(self.target_len / self.now_len, 1.0)

    @property
    def settled(self) -> str:
        """Why nothing needs to change; empty where something does."""
        window = self.before.rotary.window
        if window and window <= self.trained_len:
            return f"the layers that rotate see {window:,} positions at most, so no distance grows"
        if self.target_len <= self.now_len:
            return f"the model reads {self.now_len:,} positions already"
        said = "no pair reaches new angles as it is, and no configuration scales this rotation: only declare the length"
        return said if not self.unseen and self.candidates[0].stretched is None else ""

    @property
    def recommended(self) -> Candidate | None:
        """The first candidate; None where nothing needs to change."""
        return None if self.settled else self.candidates[0]

    @property
    def reason(self) -> str:
        """Why the first candidate is recommended, with what speaks for caution, or why none is."""
        if self.settled:
            return f"{self.settled}."
        best, how = self.candidates[0], "with" if self.train else "without"
        effect, reached = best.effect, best.reached(self.train)
        if effect is None:
            return f"{best.refused}"
        said = ["no pair reaches new angles" if not effect.unseen else f"{effect.unseen} pairs reach new angles"]
        said += ["the fastest pair keeps its angle between neighbours"] if effect.fastest > 1 - SAME else []
        said += ["angles do not depend on the length of the text"] if effect.fixed else []
        distance, cos = min(effect.cos.items(), key=lambda item: item[1])
        most = f"change most at distance {distance:,}, to cos {cos:.4f}" if cos < 1 - SAME else "rotate as they do"
        said += [f"texts that the model reads now {most}"]
        if is_shipped(best, self.before.rotary.rope_type):
            return "; ".join(["the file ships it", *said]) + "."
        said += [f"published {how} training for {reached:g} times" if reached else f"nothing published {how} training"]
        if reached >= self.step:
            return "; ".join(said) + "."
        others = [f"{one.method.name} for {one.reached(self.train):g}" for one in self.candidates
                  if one.effect and one.reached(self.train) >= self.step]  # fmt: skip
        found = f" ({', '.join(others)} times)" if others else ""
        remedy = "expect to adapt it" if self.train else "train"
        return f"{'; '.join(said)}, {self.step:.4g} are wanted{found}: {remedy}, or ask for less."


def plan(
    source: config.Source,
    target_len: int,
    *,
    trained_len: int | None = None,
    train: bool = False,
    options: Mapping[str, Any] | None = None,
) -> Plan:
    """Return the ways to make a model's context longer, in order, with what each of them does.

    docs/planning.md says how the order comes about. Parameters that are not given: the factor is the wanted over the
    trained length; a larger base is that of `frequencies.larger_base`; chunks hold three quarters of the length that
    the model reads now and a sixteenth is local, as in their authors' code (An 2024); Self-Extend's window is a
    quarter of it, and the group the smallest that reaches the length (Jin 2024).

    Args:
        source: A configuration, as for `config.read`.
        target_len: The length wanted, in positions.
        trained_len: The length of the texts of training; None takes what the configuration says.
        train: Whether the model is to be trained on longer texts.
        options: Parameters, each for the methods that have it: beta_fast, rope_theta, long_factor, window, ...

    Raises:
        ValueError: The length is below the trained one, no layer rotates, no method has an option, or a value is out
            of range.
        TypeError: A value is of a wrong kind.

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
            parameters, effect = _unsaid(method.name, model, own)
            return Candidate(method, parameters, None, effect, None, published)
        own = _chosen(method.name, model, own)
        if lacking := [key for key in method.needs if key not in own]:
            said = f"it needs {' and '.join(lacking)}, which nothing but a search on the model gives"
            return Candidate(method, own, None, None, said, published)
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
    """Return the options of a method with those that are chosen for the length."""
    out, rotary = dict(own), model.before.rotary
    if name == "base" and "rope_theta" not in out:
        found = frequencies.larger_base(plain_base(rotary), original_max_len=model.trained, target_len=model.target)
        out["rope_theta"] = float(math.ceil(found))
    if name == rotary.rope_type == "longrope":  # the lists that the file ships
        out = {key: list(rotary.parameters[key]) for key in METHODS[name].needs if key in rotary.parameters} | out
    return out


def _unsaid(name: str, model: Model, own: Mapping[str, Any]) -> tuple[dict[str, int], Effect]:
    """Return parameters and effect of a method that no configuration can say."""
    gain, now = model.before.at(model.trained).gain, model.now
    if name == "drope":
        return {}, model.effect(lambda distance, text: 0.0 * model.angles(distance, text), None, None)
    if name == "dual-chunk":
        parameters = {"chunk": max(3 * now // 4, 1), "local": now // 16}
    else:
        window = integer(WHO, "window", own.get("window", max(now // 4, 1)), high=now - 1)
        left = now - window  # places for groups
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
    """Return whether the file has a candidate's scaling already, if with another factor."""
    return one.method.rope_type == rope_type and rope_type in SCALED


def _rank(one: Candidate, rope_type: str, step: float, train: bool) -> tuple[Any, ...]:
    reached, effect = one.reached(train), one.effect
    if effect is None:
        return (1,)
    enough = 0 if is_shipped(one, rope_type) or reached >= step else 1 if reached else 2
    change = -min(effect.cos.values())
    return (0, one.stretched is None, enough, effect.unseen > 0, not effect.fixed, effect.fastest < 1 - SAME, change)
