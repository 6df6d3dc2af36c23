"""The encoding of a query: checked and constructed by name and options, with the Python lines that do the same."""

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
    WIDEST,
    read_flag,
    read_integer,
    read_list,
    read_number,
    read_word,
)
from posenc.languages import tr
from posenc.probe import Probe

MOST_LEARNED = 2**25  # numbers, 128 MiB
MOST_TABLES = 2**30  # bytes of position tables
SEARCHED = 4096  # positions searched for collisions
_SIZES = {  # options that increase work or memory
    **dict.fromkeys(("d_model", "head_dim", "rotary_dim", "width", "hidden", "n_features"), WIDEST),
    **dict.fromkeys(("n_heads", "n_kv_heads", "n_buckets"), 1024),
    **dict.fromkeys(("n_axes", "n_planes", "n_layers", "depth"), 64),
}
_own: set[str] = set()


@dataclass(frozen=True)
class Subject:
    """An encoding and how it was constructed.

    Args:
        encoding: The encoding in evaluation mode; learned parameters are freshly initialised from the seed.
        card: Its registry card; None for a user class.
        name: The name in the query.
        options: The constructor's arguments.
        seed: The seed of the initialisation; None if there are no parameters.
        length: The length that it is resolved for; None if it does not depend on the length.
    """

    encoding: Encoding
    card: registry.Card | None
    name: str
    options: Mapping[str, Any]
    seed: int | None
    length: int | None = None

    @property
    def python(self) -> list[str]:
        """The Python lines that construct it."""
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
        """Return the command that draws it; or one that opens the explorer, if the options need Python."""
        if not fits or not all(value is None or _is_literal(value) for value in self.options.values()):
            return shlex.join(["posenc", "explore", self.name])
        plain = {name: value for name, value in self.options.items() if _is_literal(value)}
        given = [word for name, value in plain.items() for word in ("--with", f"{name}={_written(value)}")]
        return shlex.join(["posenc", "plot", self.name, "--kind", kind, *given, "-o", f"{kind}.svg"])

    @cached_property
    def notes(self) -> list[str]:
        """The notes for every picture of it."""
        if self.seed is None:
            return []
        if any(bool(p.any()) for p in self.encoding.parameters()):
            return [
                tr(
                    "Learned parameters are shown freshly initialised (seed {seed:d}); training changes them.",
                    seed=self.seed,
                )
            ]
        return [
            tr(
                "Learned parameters are shown freshly initialised (seed {seed:d}), all zero; training changes them.",
                seed=self.seed,
            )
        ]

    @cached_property
    def longest(self) -> int | None:
        """The largest position along axis 0 that the encoding accepts; None if there is no limit."""
        return Probe(self.encoding, torch.float64).longest

    @cached_property
    def precise(self) -> precision.Subject:
        """The parts whose precision can be measured; for an encoding that does not depend on the length."""
        return precision.find_subject(self.encoding)

    @cached_property
    def collisions(self) -> tuple[dict[str, Any], int]:
        """The first collision of two positions by dtype, and the number of positions searched."""
        searched = SEARCHED if self.longest is None else min(self.longest + 1, SEARCHED)
        return measure.collisions(self.encoding, searched), searched

    def of_length(self, length: int) -> "Subject":
        """Return the subject resolved for a length; only a few encodings depend on it."""
        resolved = self.encoding.resolve(length)
        return self if resolved is self.encoding else replace(self, encoding=resolved, length=length)


def _is_literal(value: Any) -> bool:
    """Return whether a command line can express the value."""
    inside = value if isinstance(value, tuple | list) else [value]
    return value is not None and all(isinstance(one, int | float | str) for one in inside)


def _written(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


def allow(name: str) -> None:
    """Let queries name the user class `package.module:Class` that was given on the command line.

    Raises:
        ValueError: The class cannot be loaded.
        TypeError: The class is not an `Encoding`.
    """
    registry.find_class(name)
    _own.add(name)


def read_subject(query: Mapping[str, str], seed: int, prefix: str = "a") -> Subject:
    """Construct the encoding that a query names: `a=NAME` and `a.OPTION=VALUE`.

    Missing options get the constructor's default, or the value in the card's example if there is no default.

    Raises:
        ValueError: The name is unknown, or a value is invalid.
        TypeError: An option is unknown or missing.
    """
    if prefix not in query:
        raise ValueError(tr("explore: {key:s} must name an encoding; got nothing. Add {key:s}=rope.", key=prefix))
    name = query[prefix]
    if ":" in name and name not in _own:
        raise ValueError(
            tr(
                "explore: a user class is loaded only if it is named on the command line; got {got:s}. Run posenc "
                "explore with that name.",
                got=short(name),
            )
        )
    given = {key[len(prefix) + 1 :]: text for key, text in query.items() if key.startswith(f"{prefix}.")}
    cls = registry.find_class(name)
    card = None if ":" in name else registry.card(name)
    return _make(name if card is None else card.name, _fill_in(cls, card, _read_options(cls, given)), seed)


def _fill_in(cls: type, card: registry.Card | None, given: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return the options, with the page's defaults for those that are missing."""
    accepted = inspect.signature(cls).parameters
    chosen = {**_defaults(cls, None if card is None else card.name), **given}
    known = [name for name in accepted if name in chosen]
    return tuple((name, chosen[name]) for name in (*known, *(n for n in given if n not in accepted)))


@lru_cache(maxsize=256)
def _defaults(cls: type, name: str | None) -> Mapping[str, Any]:
    with torch.random.fork_rng(devices=[]):  # may construct an encoding, to check the options
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
            vars(part)["table_budget"] = MOST_TABLES  # for this instance, not its class
    learned = any(True for _ in encoding.parameters())
    return Subject(encoding, card, name, given, seed if learned else None)


def _check_memory(name: str, options: Mapping[str, Any]) -> None:
    """Raise a ValueError if the learned parameters would not fit into memory, before they are allocated."""
    sizes = sorted((v for v in options.values() if isinstance(v, int) and v > 64), reverse=True)
    if len(sizes) < 2 or sizes[0] * sizes[1] <= MOST_LEARNED:
        return
    with torch.device("meta"):
        try:
            planned = registry.create(name, **options)
        except (RuntimeError, NotImplementedError):  # its constructor computes with values, which meta tensors lack
            return
    if (n := sum(p.numel() for p in planned.parameters())) > MOST_LEARNED:
        raise ValueError(
            tr(
                "explore: {name:s} would learn {n:,} numbers; at most {most:,} are shown. Choose smaller options.",
                name=name,
                n=n,
                most=MOST_LEARNED,
            )
        )


def _read_options(cls: type, given: Mapping[str, str]) -> dict[str, Any]:
    """Read options by the constructor's annotations; `create` refuses unknown ones."""
    accepted = inspect.signature(cls).parameters
    hints = {name: p.annotation for name, p in accepted.items()}
    return {name: _read_option(name, text, hints[name]) if name in hints else text for name, text in given.items()}


def _read_option(name: str, text: str, kind: Any) -> Any:
    """Return the value of one option.

    Raises:
        ValueError: The text is not a value of that kind.
    """
    if ":" in text or len(text) > 2**16:
        raise ValueError(
            tr(
                "explore: {name:s} may not be {got:s}: classes can be named on the command line only.",
                name=name,
                got=short(text),
            )
        )
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
    raise ValueError(
        tr(
            "explore: {name:s} takes neither numbers nor words, so it can be set in Python only; got {got:s}.",
            name=name,
            got=short(text),
        )
    )


def _read_entry(name: str, text: str, kind: Any) -> Any:
    inner = [k for part in typing.get_args(kind) for k in options.alternatives(part)]
    if float in inner:
        return read_number(name, text)
    if int in inner:
        return _sized(name, read_integer(name, text))
    if str in inner:
        return text
    raise ValueError(
        tr(
            "explore: {name:s} has entries that are neither numbers nor words, so it can be set in Python only. "
            "Got {got:s}.",
            name=name,
            got=short(text),
        )
    )


def _sized(name: str, value: int) -> int:
    if value > (most := _SIZES.get(name, 10**12)):
        raise ValueError(
            tr(
                "explore: {name:s} must be at most {most:,} here; got {got:,}. Choose a smaller one.",
                name=name,
                most=most,
                got=value,
            )
        )
    return value
