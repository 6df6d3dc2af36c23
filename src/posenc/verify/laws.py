"""A posenc Encoding, or a class of the user's derived from it: its laws, and what it declares of itself."""

import copy
import inspect
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from posenc import character, laws, registry
from posenc.encoding import Encoding
from posenc.laws import ways
from posenc.laws.case import TOLERANCE, Case
from posenc.verify import rules
from posenc.verify.report import Cause, Findings, first

# in this order: what an encoding computes goes before what follows from it
ORDER = (
    *("definition", "traits", "permutation", "cache", "packing", "left padding", "inverse", "no memory"),
    *("untouched inputs", "compose", "backends", "nothing there", "state", "meta", "copies", "threads", "no graph"),
    *("gradients", "padding in gradients", "half precision", "far positions", "autocast"),
)
WAYS = "ways"  # no law of the encoding alone: what else it offers next to what laws go through
_TEXT = "Score by score, head by head, in pieces and in place it gives what it gives at once."
_SAME = ("head_dim", "rotary_dim", "base", "max_distance", "bidirectional", "scale_base", "gamma")
_OTHER = {"layout": "pairing", "dim": "d_model", "heads": "n_heads", "num_buckets": "n_buckets"}
WORDS = {**dict(zip(_SAME, _SAME, strict=True)), **_OTHER}  # of a spec, and of this library's constructors


class Break(NamedTuple):
    """A law that does not hold, or WAYS, and what was seen."""

    law: str
    message: str


def check(subject: Any, convention: str, spec: Mapping[str, Any]) -> Findings:
    """Run the laws on an encoding; each law that does not hold is a cause `laws.NAME`."""
    found = Findings(definitions=["posenc.laws"])
    encoding, problem = _encoding(subject)
    if encoding is None:
        message = f"The convention 'encoding' takes a posenc Encoding, or a class of one; got {problem}."
        found.causes = [Cause("laws.no_encoding", message, 1.0, {})]
        return found
    encoding = copy.deepcopy(encoding)
    try:
        broken = list(breaks(encoding))
    except ValueError as error:  # too few positions to look at
        found.unknown = str(error)
        return found
    card = next((card for card in _cards() if card.cls is type(encoding)), None)
    found.measured = {"laws": len(_known()), "not_run": [n for n, law in laws.LAWS.items() if law.compiles]}
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
            causes.insert(0, Cause("laws.definition", message, off, case))
    elif not causes:
        found.measured["traits"] = _traits(encoding)
    found.causes = first(causes)
    return found


def breaks(encoding: Encoding) -> Iterator[Break]:
    """Yield what breaks a law, one law after another, and then what differs between ways to the same numbers.

    Raises:
        ValueError: The encoding has too few positions to look at.
    """
    for name in _known():
        for dtype in TOLERANCE if name == "definition" else (torch.float64,):
            yield from (Break(v.law, v.message) for v in laws.run(encoding, [name], dtype))
    try:
        for way, off in ways.differences(encoding):
            yield Break(WAYS, f"{way} gives other numbers: they differ by {off:.3g} of the largest")
    except Exception as error:
        yield Break(WAYS, f"raised {type(error).__name__}: {error}")


def _known() -> list[str]:
    """Return the laws that `check` runs: all but those that compile."""
    known = [name for name in ORDER if name in laws.LAWS]
    return known + [name for name, law in laws.LAWS.items() if name not in known and not law.compiles]


def _off_reference(encoding: Encoding, card: registry.Card, spec: Mapping[str, Any]) -> float | str:
    """Return how far scores are from those of the registered encoding with the same options, or why it is not known."""
    accepted = inspect.signature(card.cls).parameters
    given = {WORDS[name]: value for name, value in spec.items() if name in WORDS and value is not None}
    options = {name: value for name, value in (encoding.options() | given).items() if name in accepted}
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
    except Exception as error:  # the laws report whatever is wrong with it
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


def _one_each(broken: list[Break]) -> list[Break]:
    return list({v.law: v for v in reversed(broken)}.values())[::-1]


def _cause(violation: Break, encoding: Encoding) -> Cause:
    name = violation.law
    law = _TEXT if name == WAYS else laws.LAWS[name].text
    text = f"{encoding.name} breaks the law {name!r}: {law} Seen: {violation.message}."
    case = {"encoding": repr(encoding), "law": name, "seen": violation.message}
    code = f"laws.{name.replace(' ', '_')}"
    return Cause(code if code in rules.known() else "laws.broken", text, _number(violation.message), case)


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
