"""The encoding that a question is about: constructed by name and options, checked, and how to do so in Python."""

import inspect
import shlex
import typing
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal

import torch

from posenc import measure, precision, registry
from posenc.config.values import short
from posenc.encoding import Encoding
from posenc.explorer import options
from posenc.explorer.views.controls import (
    WHO,
    WIDEST,
    read_flag,
    read_integer,
    read_list,
    read_number,
    read_word,
)
from posenc.probe import Probe

MOST_LEARNED = 2**25  # numbers, 128 MiB
MOST_TABLES = 2**30  # bytes of tables of positions
SEARCHED = 4096  # positions in which two that collide are sought
_SIZES = {  # numbers of which work or memory grow
    **dict.fromkeys(("d_model", "head_dim", "rotary_dim", "width", "hidden", "n_features"), WIDEST),
    **dict.fromkeys(("n_heads", "n_kv_heads", "n_buckets"), 1024),
    **dict.fromkeys(("n_axes", "n_planes", "n_layers", "depth"), 64),
}
_own: set[str] = set()


@dataclass(frozen=True)
class Subject:
    """An encoding, and how it was made.

    Args:
        encoding: In evaluation, with what is learned as a seed draws it.
        card: What the registry knows of it; None for a class of one's own.
        name: By which it was asked for.
        options: What the constructor was given.
        seed: Of the draw; None where nothing is learned.
        length: What it is resolved for, where it depends on that.
    """

    encoding: Encoding
    card: registry.Card | None
    name: str
    options: Mapping[str, Any]
    seed: int | None
    length: int | None = None

    @property
    def python(self) -> list[str]:
        """The lines that make it."""
        given = "".join(f", {name}={value!r}" for name, value in self.options.items())
        draw = [] if self.seed is None else [f"torch.manual_seed({self.seed})"]
        imports = [
            "import numpy as np",
            *(["import torch"] if draw else []),
            "import posenc",
            "from posenc import measure",
        ]
        length = "" if self.length is None else f".resolve({self.length})"
        return [*imports, "", *draw, f"encoding = posenc.create({self.name!r}{given}).eval(){length}"]

    def plot(self, kind: str, *, fits: bool = True) -> str:
        """The command line that draws it, or the one that opens it here where that has no such figure or option."""
        if not fits or not all(value is None or _is_literal(value) for value in self.options.values()):
            return shlex.join(["posenc", "explore", self.name])
        plain = {name: value for name, value in self.options.items() if _is_literal(value)}
        given = [word for name, value in plain.items() for word in ("--with", f"{name}={_written(value)}")]
        return shlex.join(["posenc", "plot", self.name, "--kind", kind, *given, "-o", f"{kind}.svg"])

    @cached_property
    def notes(self) -> list[str]:
        """What is to be said with every picture of it."""
        if self.seed is None:
            return []
        zeros = "" if any(bool(p.any()) for p in self.encoding.parameters()) else ", which is zero"
        return [f"Learned: shown as freshly initialised (seed {self.seed}){zeros}; training changes it."]

    @cached_property
    def longest(self) -> int | None:
        """The largest position along axis 0 that is not refused; None where there is none."""
        return Probe(self.encoding, torch.float64).longest

    @cached_property
    def precise(self) -> precision.Subject:
        """What of it can be measured for its precision; of one that does not depend on the length."""
        return precision.find_subject(self.encoding)

    @cached_property
    def collisions(self) -> tuple[dict[str, Any], int]:
        """The first positions that have the numbers of others, by dtype, and how many were searched."""
        searched = SEARCHED if self.longest is None else min(self.longest + 1, SEARCHED)
        return measure.collisions(self.encoding, searched), searched

    def of_length(self, length: int) -> "Subject":
        """Return the same for one length, on which a few depend."""
        resolved = self.encoding.resolve(length)
        return self if resolved is self.encoding else replace(self, encoding=resolved, length=length)


def _is_literal(value: Any) -> bool:
    """Whether a command line can say it."""
    inside = value if isinstance(value, tuple | list) else [value]
    return value is not None and all(isinstance(one, int | float | str) for one in inside)


def _written(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


def allow(name: str) -> None:
    """Let questions name a class of one's own, `package.module:Class`, because it stood on the command line.

    Raises:
        ValueError: It cannot be loaded.
        TypeError: It is no `Encoding`.
    """
    registry.find_class(name)
    _own.add(name)


def read_subject(query: Mapping[str, str], seed: int, prefix: str = "a") -> Subject:
    """Construct the encoding that a query names: `a=NAME` and `a.OPTION=VALUE`.

    What the query leaves out is as the constructor has it, or as in the card's example where that must be given.

    Raises:
        ValueError: The name is unknown, or a value is refused.
        TypeError: An option is unknown or missing.
    """
    if prefix not in query:
        raise ValueError(f"{WHO}: {prefix} must name an encoding; got nothing. Add {prefix}=rope.")
    name = query[prefix]
    if ":" in name and name not in _own:
        raise ValueError(
            f"{WHO}: a class of one's own is loaded only if it is named on the command line; got {short(name)}. "
            "Start posenc explore with it."
        )
    given = {key[len(prefix) + 1 :]: text for key, text in query.items() if key.startswith(f"{prefix}.")}
    cls = registry.find_class(name)
    card = None if ":" in name else registry.card(name)
    return _make(name if card is None else card.name, _fill_in(cls, card, _read_options(cls, given)), seed)


def _fill_in(cls: type, card: registry.Card | None, given: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return the options with what the page's controls show in the place of those that are left out."""
    accepted = inspect.signature(cls).parameters
    chosen = {**_defaults(cls, None if card is None else card.name), **given}
    known = [name for name in accepted if name in chosen]
    return tuple((name, chosen[name]) for name in (*known, *(n for n in given if n not in accepted)))


@lru_cache(maxsize=256)
def _defaults(cls: type, name: str | None) -> Mapping[str, Any]:
    with torch.random.fork_rng(devices=[]):  # it may construct one, to see whether the options fit
        return options.defaults(cls, options.EXAMPLE if name is None else registry.card(name).example)


@lru_cache(maxsize=64)
def _make(name: str, options: tuple[tuple[str, Any], ...], seed: int) -> Subject:
    given, card = dict(options), None if ":" in name else registry.card(name)
    _check_memory(name, given)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoding: Encoding = registry.create(name, **given).eval()
    for part in encoding.modules():
        if hasattr(part, "table_budget"):
            vars(part)["table_budget"] = MOST_TABLES  # of this one, and not of its class
    learned = any(True for _ in encoding.parameters())
    return Subject(encoding, card, name, given, seed if learned else None)


def _check_memory(name: str, options: Mapping[str, Any]) -> None:
    """Raise where what is learned would fill the memory, before it does."""
    sizes = sorted((v for v in options.values() if isinstance(v, int) and v > 64), reverse=True)
    if len(sizes) < 2 or sizes[0] * sizes[1] <= MOST_LEARNED:
        return
    with torch.device("meta"):
        try:
            planned = registry.create(name, **options)
        except (RuntimeError, NotImplementedError):  # it computes while it is made, which nothing does without numbers
            return
    if (n := sum(p.numel() for p in planned.parameters())) > MOST_LEARNED:
        raise ValueError(
            f"{WHO}: {name} would learn {n:,} numbers, and {MOST_LEARNED:,} are shown at most. Choose smaller options."
        )


def _read_options(cls: type, given: Mapping[str, str]) -> dict[str, Any]:
    """Read options by what the constructor says of their kinds; `create` refuses those that it does not know."""
    accepted = inspect.signature(cls).parameters
    hints = {name: p.annotation for name, p in accepted.items()}
    return {name: _read_option(name, text, hints[name]) if name in hints else text for name, text in given.items()}


def _read_option(name: str, text: str, kind: Any) -> Any:
    """Return the value of one option.

    Raises:
        ValueError: The text stands for nothing of that kind.
    """
    if ":" in text or len(text) > 2**16:
        raise ValueError(f"{WHO}: {name} may not be {short(text)}: classes are named on the command line only.")
    kinds = options.alternatives(kind)
    words = tuple(word for k in kinds if typing.get_origin(k) is Literal for word in typing.get_args(k))
    if type(None) in kinds and text in ("", "none", "None"):
        return None
    if words and (text in words or not any(options.is_list(k) for k in kinds)):
        return read_word(name, text, tuple(map(str, words)))
    for k in kinds:
        if k is bool:
            return read_flag(name, text)
        if k is int and not (any(options.is_list(other) for other in kinds) and "," in text):
            return _sized(name, read_integer(name, text))
        if k is float:
            return read_number(name, text)
        if options.is_list(k):
            return tuple(_read_entry(name, part, k) for part in read_list(name, text))
    if str in kinds:
        return text
    raise ValueError(f"{WHO}: {name} is no number and no word, so it is set in Python only; got {short(text)}.")


def _read_entry(name: str, text: str, kind: Any) -> Any:
    inner = [k for part in typing.get_args(kind) for k in options.alternatives(part)]
    if float in inner:
        return read_number(name, text)
    if int in inner:
        return _sized(name, read_integer(name, text))
    if str in inner:
        return text
    raise ValueError(f"{WHO}: {name} holds what is no number and no word, so it is set in Python only.")


def _sized(name: str, value: int) -> int:
    if value > (most := _SIZES.get(name, 10**12)):
        raise ValueError(f"{WHO}: {name} must be at most {most:,} here; got {value:,}. Choose a smaller one.")
    return value
