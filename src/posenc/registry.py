"""Every encoding's card, and one way to construct any of them by name.

An encoding registers itself where its class stands. Nothing here imports torch: cards of the encodings that come with
posenc are read from their files, and a class is imported when it is asked for. So is an encoding of another package,
which has an entry point (`posenc.offered`) and registers itself under its name.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from posenc import declared, offered
from posenc.declared import Declared, parameters
from posenc.needs import lacks_torch, needs_torch, no_torch

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

# What a card declares of an encoding's character; `posenc.character` measures each of them.
TRAITS = [
    "distinct",
    "longest",
    "real_positions",
    "smooth",
    "bounded",
    "shift_invariant",
    "symmetric",
    "recency",
    "linear_shift",
    "length_dependent",
    "learned",
    "cost",
]
CAP = 65_536  # positions that are compared; "distinct" ends here
Trait = bool | int | str | None | Mapping[str, int]
_Class = TypeVar("_Class", bound=type)
_CARDS: dict[str, "Card"] = {}


@dataclass(frozen=True)
class Dims:
    """What a host model knows of itself; `create` offers it to constructors that ask for it.

    Left out, there are as many key heads as heads, and the trained length is the longest.
    """

    d_model: int | None = None
    n_heads: int | None = None
    n_kv_heads: int | None = None
    head_dim: int | None = None
    max_len: int | None = None
    original_max_len: int | None = None  # the trained length, where texts may be longer


@dataclass(frozen=True)
class Card:
    """What is known of an encoding before it runs.

    Args:
        name: The registry key; equals the file's name in `encodings/`.
        declared: What the class declares of itself; `cls` is the class, which needs torch.
        paper: Authors and title; `year` and `arxiv` (an id, or None) stand apart.
        formula: The mathematics in one line.
        parameters: How many numbers are learned, as a formula of the dimensions.
        cost: What it costs at run time, in words.
        example: Arguments that construct a small one; the laws run on it.
        variants: Changes to `example` that the laws run as well.
        traits: What the author declares of the example, and `posenc.character` measures; None where a trait does
            not apply. `distinct`: how many positions have signatures that all differ, by dtype (65,536 means that or
            more). `longest`: the largest position that is not refused, or None. `real_positions`: fractional ones are
            accepted. `smooth`: neighbours are near each other. `bounded`: what is far is no larger than what is near.
            `shift_invariant`: scores depend on distances alone. `symmetric`: they are blind to direction. `recency`:
            they fall with distance. `linear_shift`: a shift is one linear map of what is added or turned.
            `length_dependent`: it must be resolved for a length. `learned`: how many numbers are learned.
            `cost`: the work grows with "token" or "score", or there is "nothing" of it.
        used_by: Models that shipped with it.
    """

    name: str
    declared: Declared
    paper: str
    year: int
    formula: str
    parameters: str
    cost: str
    example: Mapping[str, Any]
    traits: Mapping[str, Trait]
    arxiv: str | None = None
    aliases: tuple[str, ...] = ()
    used_by: tuple[str, ...] = ()
    variants: tuple[Mapping[str, Any], ...] = ()

    @property
    def cls(self) -> type:
        """The class.

        Raises:
            ModuleNotFoundError: There is no torch.
        """
        return self.declared.load()

    @property
    def options(self) -> tuple[str, ...]:
        """The arguments of the constructor, each with its default."""
        return self.declared.options

    @property
    def family(self) -> str:
        """The hook that the encoding uses.

        One of none, additive, embedded, rotary, piecewise, bias, content_bias, score_map and values.
        """
        return self.declared.family

    @property
    def summary(self) -> str:
        """The first line of the class's docstring."""
        return self.declared.docstring.partition("\n")[0]

    def examples(self) -> list[Any]:
        """Construct the example and each of its variants."""
        return [self.cls(**{**self.example, **variant}) for variant in ({}, *self.variants)]

    def as_dict(self) -> dict[str, Any]:
        """Return the card as plain JSON values."""
        home = "posenc" if self.declared.module.startswith("posenc.") else self.declared.module
        plain = {k: v for k, v in asdict(self).items() if k not in {"declared", "example", "variants"}}
        name = self.declared.cls_name
        return plain | {
            "options": self.options,
            "cls": name,
            "family": self.family,
            "summary": self.summary,
            "example": f"{home}.{name}({', '.join(f'{k}={v!r}' for k, v in self.example.items())})",
        }


def register(name: str, **facts: Any) -> Callable[[_Class], _Class]:
    """Register the decorated class under `name` with the facts of its `Card`.

    Raises:
        ValueError: The name or one of the aliases is taken by another class.
    """

    def decorate(cls: _Class) -> _Class:
        card = Card(name=name, declared=Declared.of(cls), **facts)
        own = cls.__module__.startswith("posenc.encodings.")  # whose cards need not be read to compare
        others = (other for other in (_CARDS if own else _cards()).values() if other.name != name)
        taken = {key for other in others for key in (other.name, *other.aliases)}
        clash = taken.intersection((name, *card.aliases))
        home = cls.__module__, cls.__qualname__
        old = _CARDS.get(name)
        shipped = name in declared.names() and home[0] != f"posenc.encodings.{name}"
        if clash or shipped or (old and (old.cls.__module__, old.cls.__qualname__) != home):
            raise ValueError(
                f"register: {sorted(clash) or name!r} is already the name of another encoding; "
                f"got it again for {cls.__name__}. Choose another name."
            )
        _CARDS[name] = card
        return cls

    return decorate


def names(pattern: str = "*") -> list[str]:
    """List the names that match a shell pattern, those of installed packages included, in alphabetical order.

    Raises:
        ValueError: Two packages give the same name.

    >>> names("sinus*")
    ['sinusoidal', 'sinusoidal_nd']
    """
    return sorted(name for name in {*_names(), *_offered()} if fnmatchcase(name, pattern))


def card(name: str) -> Card:
    """Return the card of a registered name or alias, or of the name that another package gives its encoding.

    Raises:
        ValueError: Nothing has that name; the nearest known names are given. Or the package that has it cannot be
            imported, or does not register it, or two packages give it.
    """
    if name in _names():
        return _card(name)
    cards = _cards()
    keys = {key: c for c in cards.values() for key in (c.name, *c.aliases, c.declared.cls_name)}
    if name in keys:
        return keys[name]
    offered = _offered()
    if name in offered:
        return _loaded(offered[name])
    near = get_close_matches(name.lower(), [k for k in (*keys, *offered) if k.islower()], n=1, cutoff=0.5)
    raise ValueError(
        f"unknown encoding {name!r}"
        + (f": did you mean {near[0]!r}?" if near else ".")
        + f" Known: {', '.join(names())}; or your own class as package.module:Class."
    )


def card_of(cls: type) -> Card | None:
    """Return the card of a class; None where the class is not registered."""
    return next((card for card in _CARDS.values() if card.cls is cls), None)


def find_class(name: str) -> type:
    """Return the class behind a registered name, an alias, or `package.module:Class`.

    Raises:
        ValueError: The name is unknown, or the module has no such class.
        TypeError: The object is no `Encoding`.
    """
    if ":" not in name:
        return card(name).cls
    module, _, qualname = name.partition(":")
    try:
        found: Any = import_module(module)
        for part in qualname.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        if lacks_torch(error):
            raise no_torch(name) from None
        own = isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}.")
        advice = "Write it as package.module:Class and make the module importable from here."
        if not (own or isinstance(error, (AttributeError, ValueError))):
            advice = f"Mend what importing {module} raises."
        raise ValueError(f"cannot load the encoding {name!r}: {type(error).__name__}: {error}. {advice}") from error
    with needs_torch(name):
        base = import_module("posenc.encoding").Encoding
    if not (isinstance(found, type) and issubclass(found, base)):
        raise TypeError(f"{name!r} is not a class derived from posenc.Encoding; got {found!r}. Derive it.")
    return found


def create(name: str, *, dims: Dims | None = None, **options: Any) -> Any:
    """Construct an encoding by name.

    Args:
        name: A registered name or alias, or `package.module:Class` for a class of your own.
        dims: Facts of the host model. A constructor takes from them what it has arguments for;
            an option given by name wins.
        options: Arguments of the constructor, strict: an unknown one is an error.

    Raises:
        ValueError: Unknown name, or the constructor refuses a value.
        TypeError: Unknown or missing option.

    >>> create("alibi", dims=Dims(n_heads=8))
    ALiBi(n_heads=8, slopes='authors', bias_max=8.0, sides='symmetric', scale=1.0)
    """
    cls = find_class(name)
    accepted = parameters(cls)
    for option in options:
        if option not in accepted:
            near = get_close_matches(option, accepted, n=1)
            raise TypeError(
                f"{cls.__name__}: unknown option {option!r}"
                + (f"; did you mean {near[0]!r}?" if near else ";")
                + f" It takes: {', '.join(accepted) or 'no options'}."
            )
    facts = asdict(dims or Dims())
    for fact, same_as in {"n_kv_heads": "n_heads", "original_max_len": "max_len"}.items():
        facts[fact] = facts[same_as] if facts[fact] is None else facts[fact]
    offered = {k: v for k, v in facts.items() if v is not None and k in accepted}
    arguments = offered | options
    missing = [p.name for p in accepted.values() if p.default is p.empty and p.name not in arguments]
    if missing:
        give = ", ".join(f"{m}=..." for m in missing)
        known = ", ".join(f"{m}=..." for m in missing if m in asdict(Dims()))
        offer = f", or dims=Dims({known})" if known else ""
        raise TypeError(f"{cls.__name__} needs {', '.join(missing)}; pass {give}{offer}.")
    return cls(**arguments)


def _names() -> set[str]:
    return {*declared.names(), *_CARDS}


def _cards() -> dict[str, Card]:
    return {name: _card(name) for name in sorted(_names())}


def _card(name: str) -> Card:
    """Return the card that a class has registered, or else the one that its file declares."""
    return _CARDS.get(name) or _shipped(name)


def _offered() -> dict[str, "EntryPoint"]:
    """Return the encodings of installed packages by name; posenc's own names and aliases are taken."""
    return offered.points(lambda: [key for card in map(_card, declared.names()) for key in (card.name, *card.aliases)])


def _loaded(point: "EntryPoint") -> Card:
    """Import an encoding of another package, and return the card that it registers."""
    cls = offered.load(point)
    card = _CARDS.get(point.name)
    if card is None or card.cls is not cls:
        raise ValueError(
            f"registry: {offered.giver(point)} must register its class as {point.name!r}, because a card has what "
            f"posenc lists; got no such card. Decorate the class with @posenc.register({point.name!r}, ...)."
        )
    return card


@cache
def _shipped(name: str) -> Card:
    """Return the card of an encoding that comes with posenc, without importing it."""
    found, facts = declared.read(name)
    return Card(name=name, declared=found, **facts)
