"""Check a posenc Encoding, or a user's subclass: the properties that every encoding must have, and its traits."""

import copy
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from posenc import character, laws, registry
from posenc.encoding import Encoding
from posenc.laws import ways
from posenc.laws.case import TOLERANCE, Case
from posenc.raised import describe
from posenc.verify import rules
from posenc.verify.report import Cause, Findings, Report

# in this order: the numbers of an encoding come before properties that follow from them
ORDER = (
    *("definition", "traits", "permutation", "cache", "packing", "left padding", "inverse", "values", "no memory"),
    *("untouched inputs", "compose", "backends", "nothing there", "state", "meta", "copies", "threads", "no graph"),
    *("gradients", "padding in gradients", "half precision", "far positions", "autocast"),
)
WAYS = "ways"  # not in posenc.laws: the alternative ways to compute the same numbers
_TEXT = "Score by score, head by head, in chunks and in place it gives the same numbers as in one call."
_SAME = ("head_dim", "rotary_dim", "base", "max_distance", "bidirectional", "scale_base", "gamma")
_OTHER = {"layout": "pairing", "dim": "d_model", "heads": "n_heads", "num_buckets": "n_buckets"}
WORDS = {**dict(zip(_SAME, _SAME, strict=True)), **_OTHER}  # word of a spec: argument of this library's constructors
_NUMBER = re.compile(r"(?<![\w.])(?:\d+\.\d+(?:e[-+]?\d+)?|\d+e-\d+)(?![\w.])")


def check(subject: Any, convention: str, spec: Mapping[str, Any]) -> Report:
    """Run the laws on an encoding or on an instance of a class; each law that fails is a cause `laws.NAME`."""
    card = registry.card_of(subject if inspect.isclass(subject) else type(subject))
    found = Findings(definitions=["posenc.laws"])
    try:
        made: Any = subject
        if inspect.isclass(subject):
            made = subject(**card.example) if card else registry.construct(subject, registry.USUAL, {})
    except TypeError as error:
        why = str(error).rstrip(".")
        message = f"The laws need an encoding, or a class whose constructor needs only sizes of a model; got {why}."
        found.causes = [Cause("laws.no_encoding", message, 1.0)]
        return found.report(convention)
    encoding: Encoding = copy.deepcopy(made)
    try:
        broken = dict(reversed([*_breaks(encoding)]))  # the first violation of each law
    except ValueError as error:  # too few positions for a check
        found.unknown = str(error)
        return found.report(convention)
    found.measured = {"laws": len(_known()), "not_run": [n for n, law in laws.LAWS.items() if law.compiles]}
    causes = [_cause(law, seen, encoding) for law, seen in reversed(broken.items())]
    if card is not None:
        found.definitions.append(f"{card.name}@posenc")
    elif (name := spec.get("encoding")) in registry.names():
        found.definitions.append(f"{name}@posenc")
        off = _off_reference(encoding, registry.card(name), spec)
        if isinstance(off, str):
            found.unknown = off
        elif off > TOLERANCE[torch.float64]:
            own = f"{encoding.name} gives other scores or values than {name!r} with the same options"
            case = {"encoding": repr(encoding), "reference": name, "tokens": 2}
            message = f"{own}: they differ by up to {off:.3g}, relative to the largest."
            causes.insert(0, Cause("laws.definition", message, off, case))
    elif not causes:
        traits = character.measure(encoding).traits()
        found.measured["traits"] = {name: traits[name] for name in ("shift_invariant", "symmetric") if name in traits}
    consequences = tuple(dict.fromkeys(c.code for c in causes[1:] if c.code != causes[0].code))
    found.causes = [replace(cause, consequences=consequences) for cause in causes[:1]]
    return found.report(convention)


def _breaks(encoding: Encoding) -> Iterator[tuple[str, str]]:
    """Yield each law that fails with its violation, and then the differences between ways to the same numbers.

    Raises:
        ValueError: The encoding has too few positions for a check.
    """
    for name in _known():
        for dtype in TOLERANCE if name == "definition" else (torch.float64,):
            yield from ((v.law, v.message) for v in laws.run(encoding, [name], dtype))
    try:
        for way, off in ways.differences(encoding):
            yield WAYS, f"{way} gives other numbers: they differ by up to {off:.3g}, relative to the largest"
    except Exception as error:
        yield WAYS, f"raised {describe(error)}"


def _known() -> list[str]:
    """Return the laws that `check` runs: all but those that compile."""
    known = [name for name in ORDER if name in laws.LAWS]
    return known + [name for name, law in laws.LAWS.items() if name not in known and not law.compiles]


def _off_reference(encoding: Encoding, card: registry.Card, spec: Mapping[str, Any]) -> float | str:
    """Return how far scores and values are from those of the registered encoding with the same options, or why not."""
    accepted = inspect.signature(card.cls).parameters
    given = {WORDS[name]: value for name, value in spec.items() if name in WORDS}
    options = {name: value for name, value in (encoding.options() | given).items() if name in accepted}
    try:
        mine, other = Case(encoding, torch.float64), Case(card.cls(**options), torch.float64)
        other.encoding.load_state_dict(mine.encoding.state_dict())
        other.projections = mine.projections
        pos = mine.positions(19)
        x, found = mine.tokens(19), []
        for case in (mine, other):
            placed = case.place(pos, x)
            q, k, v = case.project(x, placed)
            inner, part = case.encoding.layer(case.index, placed)
            seen = case.scores(q, k, placed), inner.rotate_v(v, part), inner.unrotate_out(v, part)
            found.append([t.detach() for t in seen])
    except Exception as error:  # the laws report its faults
        return f"It could not be compared with the definition of {card.name!r}: {type(error).__name__}: {error}"
    scores, theirs = found[0][0], found[1][0]
    if scores.shape != theirs.shape:
        return f"Its scores have shape {tuple(scores.shape)}, but those of {card.name!r} {tuple(theirs.shape)}."
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1.0)) for a, b in zip(*found, strict=True))


def _cause(law: str, seen: str, encoding: Encoding) -> Cause:
    """Return the cause of a law that fails, with the first number of its violation as evidence."""
    code = "laws.raised" if seen.startswith("raised ") else f"laws.{law.replace(' ', '_')}"
    text = _TEXT if law == WAYS else laws.LAWS[law].text
    message = f"{encoding.name} breaks the law {law!r}: {text} Found: {seen.rstrip('.')}."
    number = _NUMBER.search(seen)
    case = {"encoding": repr(encoding), "law": law, "seen": seen}
    return Cause(code if code in rules.known() else "laws.broken", message, float(number[0]) if number else 1.0, case)
