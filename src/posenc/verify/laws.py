"""A posenc Encoding, or a class of the user's derived from it: its laws, and what it declares of itself."""

import copy
import inspect
from collections.abc import Mapping
from typing import Any

import torch

from posenc import character, laws, registry
from posenc.encoding import Encoding
from posenc.laws.case import TOLERANCE, Case
from posenc.verify.report import Cause, Findings, first

# in this order: what an encoding computes goes before what follows from it
ORDER = (
    "definition",
    "traits",
    "permutation",
    "cache",
    "packing",
    "left padding",
    "inverse",
    "no memory",
    "untouched inputs",
    "compose",
    "backends",
    "nothing there",
    "state",
    "meta",
    "copies",
    "threads",
    "no graph",
    "gradients",
    "padding in gradients",
    "half precision",
    "far positions",
    "autocast",
)
WORDS = {  # of a spec, and of this library's constructors
    "head_dim": "head_dim",
    "rotary_dim": "rotary_dim",
    "base": "base",
    "layout": "pairing",
    "dim": "d_model",
    "heads": "n_heads",
    "num_buckets": "n_buckets",
    "max_distance": "max_distance",
    "bidirectional": "bidirectional",
    "scale_base": "scale_base",
    "gamma": "gamma",
}
_MEND = {
    "definition": "Compare with the formula in posenc.definitions, one token at a time.",
    "traits": "Declare what posenc.character.measure finds, or mend the encoding.",
    "cache": "Let everything depend on the position that is given, never on the length or the index of the call.",
    "permutation": "Read pos, not the index in the sequence.",
    "packing": "Read pos, not the index in the sequence.",
    "left padding": "Let NaN in padded slots stay there: mask before sums, and divide by nothing that they are in.",
    "no memory": "Keep no table that grows: compute parts in place().",
    "state": "Hold learned tensors only, as nn.Parameter.",
    "untouched inputs": "Write into new tensors.",
    "far positions": "Form angles in float64, or float32 at least, and cast what comes out.",
    "half precision": "Form angles in float64, or float32 at least, and cast what comes out.",
}


def check(subject: Any, convention: str, spec: Mapping[str, Any]) -> Findings:
    """Run the laws on an encoding; each law that does not hold is a cause `laws.NAME`."""
    found = Findings(definitions=["posenc.laws"])
    encoding, problem = _encoding(subject)
    if encoding is None:
        message = f"The convention 'encoding' takes a posenc Encoding, or a class of one; got {problem}."
        found.causes = [Cause("laws.no_encoding", message, 1.0, {}, "Derive the class from posenc.encoding.Encoding.")]
        return found
    encoding = copy.deepcopy(encoding)
    known = [name for name in ORDER if name in laws.LAWS]
    known += [name for name, law in laws.LAWS.items() if name not in known and not law.compiles]
    try:
        broken = [v for name in known for v in laws.run(encoding, [name])]
    except ValueError as error:  # too few positions to look at
        found.unknown = str(error)
        return found
    card = next((card for card in _cards() if card.cls is type(encoding)), None)
    found.measured = {"laws": len(known), "not_run": [n for n, law in laws.LAWS.items() if law.compiles]}
    causes = [_cause(v, encoding) for v in _one_each(broken)]
    if card is not None:
        found.definitions.append(f"{card.name}@posenc")
    elif spec.get("encoding") in registry.names():
        off = _off_reference(encoding, registry.card(spec["encoding"]), spec)
        found.definitions.append(f"{spec['encoding']}@posenc")
        if isinstance(off, str):
            found.unknown = off
        elif off > TOLERANCE[torch.float64]:
            message = (
                f"{encoding.name} gives other scores than {spec['encoding']!r} with the same options: they differ by "
                f"{off:.3g} of the largest."
            )
            case = {"encoding": repr(encoding), "reference": spec["encoding"], "tokens": 2}
            causes.insert(0, Cause("laws.definition", message, off, case, _MEND["definition"]))
    elif not causes:
        found.measured["traits"] = _traits(encoding)
    found.causes = first(causes)
    return found


def _off_reference(encoding: Encoding, card: registry.Card, spec: Mapping[str, Any]) -> float | str:
    """Return how far scores are from those of the registered encoding with the same options, or why it is not known."""
    accepted = inspect.signature(card.cls).parameters
    told = {WORDS[name]: value for name, value in spec.items() if name in WORDS and value is not None}
    options = {name: value for name, value in (encoding.options() | told).items() if name in accepted}
    try:
        mine, other = Case(encoding, torch.float64), Case(card.cls(**options), torch.float64)
        other.encoding.load_state_dict(mine.encoding.state_dict())
        other.projections = mine.projections
        pos = mine.positions(19)
        x, found = mine.tokens(19), []
        for case in (mine, other):
            placed = case.place(pos, x)
            q, k, _ = case.project(x, placed)
            found.append(case.scores(q, k, placed).detach())
    except Exception as error:  # whatever is wrong with it, the laws have told
        return f"It could not be held against the definition of {card.name!r}: {type(error).__name__}: {error}"
    if found[0].shape != found[1].shape:
        return f"Its scores have shape {tuple(found[0].shape)}, those of {card.name!r} {tuple(found[1].shape)}."
    return float((found[0] - found[1]).abs().max() / found[1].abs().max().clamp(min=1.0))


def _encoding(subject: Any) -> tuple[Encoding | None, str]:
    """Return the encoding, made from its class where that needs nothing."""
    if isinstance(subject, Encoding):
        return subject, ""
    if inspect.isclass(subject) and issubclass(subject, Encoding):
        try:
            return subject(), ""
        except TypeError as error:
            card = next((card for card in _cards() if card.cls is subject), None)
            if card is not None:
                return subject(**card.example), ""
            return None, f"class {subject.__name__}, which cannot be made without arguments ({error})"
    return None, type(subject).__name__


def _cards() -> list[registry.Card]:
    return [registry.card(name) for name in registry.names()]


def _one_each(broken: list[laws.Violation]) -> list[laws.Violation]:
    return list({v.law: v for v in reversed(broken)}.values())[::-1]


def _cause(violation: laws.Violation, encoding: Encoding) -> Cause:
    name = violation.law
    text = f"{encoding.name} breaks the law {name!r}: {laws.LAWS[name].text} Seen: {violation.message}."
    case = {"encoding": repr(encoding), "law": name, "seen": violation.message}
    help_ = _MEND.get(name, "Hold the encoding against posenc.laws.run(encoding, [NAME]) while mending it.")
    return Cause(f"laws.{name.replace(' ', '_')}", text, _number(violation.message), case, help_)


def _number(message: str) -> float:
    """Return the first number that a message says is wrong, or 1."""
    for word in message.replace(",", " ").replace(":", " ").split():
        if "e-" in word or "." in word.strip("."):
            try:
                return float(word)
            except ValueError:
                continue
    return 1.0


def _traits(encoding: Encoding) -> dict[str, Any]:
    return {k: v for k, v in character.measure(encoding).traits().items() if k in ("shift_invariant", "symmetric")}
