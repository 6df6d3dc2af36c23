"""The cards of all encodings, and one way to construct any encoding by name.

An encoding registers itself with a decorator on its class. Nothing here imports torch: the cards of posenc's own
encodings are read from their files, and a class is imported on first use. So is an encoding of another package, which
has an entry point (`posenc.offered`) and registers itself under its name.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from posenc import declared, offered
from posenc.cards import TRAITS as TRAITS
from posenc.cards import Card as Card
from posenc.cards import Trait as Trait
from posenc.declared import Declared, parameters
from posenc.needs import lacks_torch, needs_torch, no_torch

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

CAP = 65_536  # the number of positions that are compared, and the largest value of "distinct"
_Class = TypeVar("_Class", bound=type)
_CARDS: dict[str, Card] = {}


@dataclass(frozen=True)
class Dims:
    """The dimensions of a host model, which `create` passes to constructors that have such arguments.

    By default n_kv_heads equals n_heads, and original_max_len equals max_len.
    """

    d_model: int | None = None
    n_heads: int | None = None
    n_kv_heads: int | None = None
    head_dim: int | None = None
    max_len: int | None = None
    original_max_len: int | None = None  # the trained length, if texts may be longer
    grid: tuple[int, int] | None = None  # rows and columns of an image, in patches

    def offer(self, required: Iterable[str]) -> dict[str, Any]:
        """Return the known dimensions by constructor argument; parts of the grid only for required arguments."""
        known = asdict(self)
        for fact, same_as in {"n_kv_heads": "n_heads", "original_max_len": "max_len"}.items():
            known[fact] = known[same_as] if known[fact] is None else known[fact]
        grid = known.pop("grid")
        if grid is not None:
            known |= {argument: grid[part] for argument, part in _parts_of_a_grid(required).items()}
        return {fact: value for fact, value in known.items() if value is not None}


USUAL = Dims(d_model=64, n_heads=4, n_kv_heads=4, head_dim=64, max_len=1024)  # of a user's class, where none are given


def register(name: str, **facts: Any) -> Callable[[_Class], _Class]:
    """Register the decorated class under `name` with the facts of its `Card`.

    Raises:
        ValueError: The name or one of the aliases is taken by another class.
    """

    def decorate(cls: _Class) -> _Class:
        card = Card(name=name, declared=Declared.of(cls), **facts)
        own = cls.__module__.startswith("posenc.encodings.")  # posenc's own cards are not compared with each other here
        others = (other for other in (_CARDS if own else _cards()).values() if other.name != name)
        taken = {key for other in others for key in other.keys}
        clash = taken.intersection(card.keys)
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
        ValueError: The name is unknown (the message suggests a similar one), its package cannot be imported or does not
            register it, or two packages have it.
    """
    if name in _names():
        return _card(name)
    cards = _cards()
    keys = {key: c for c in cards.values() for key in (*c.keys, c.declared.cls_name)}
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
    """Return the card of a class; None if the class is not registered."""
    return next((card for card in _CARDS.values() if card.cls is cls), None)


def find_class(name: str) -> type:
    """Return the class behind a registered name, an alias, or `package.module:Class`.

    Raises:
        ValueError: The name is unknown, or the module has no such class.
        TypeError: The object is not an `Encoding`.
    """
    if ":" not in name:
        return card(name).cls
    module, _, qualname = name.partition(":")
    try:
        found: Any = import_module(module)
        for part in qualname.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:  # a user's module may raise any error
        if lacks_torch(error):
            raise no_torch(name) from None
        own = isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}.")
        advice = "Write it as package.module:Class and make the module importable from here."
        if not (own or isinstance(error, (AttributeError, ValueError))):
            advice = f"Fix the error that importing {module} raises."
        raise ValueError(f"cannot load the encoding {name!r}: {type(error).__name__}: {error}. {advice}") from error
    with needs_torch(name):
        base = import_module("posenc.encoding").Encoding
    if not (isinstance(found, type) and issubclass(found, base)):
        raise TypeError(
            f"{name!r} is not a class derived from posenc.Encoding; got {found!r}. Derive it from posenc.Encoding."
        )
    return found


def create(name: str, *, dims: Dims | None = None, **options: Any) -> Any:
    """Construct an encoding by name.

    Args:
        name: A registered name or alias, the name of a plan (a paper's options of another class: `Card.plans`), or
            `package.module:Class` for a class of your own.
        dims: Dimensions of the host model. Those that are arguments of the constructor are passed to it; the grid gives
            a required size, or height and width. `options` take precedence.
        options: Arguments of the constructor; an unknown one is an error.

    Raises:
        ValueError: The name is unknown, or the constructor refuses a value.
        TypeError: An option is unknown or missing; the message has an example.

    >>> create("alibi", dims=Dims(n_heads=8))
    ALiBi(n_heads=8, slopes='authors', bias_max=8.0, sides='symmetric', scale=1.0)
    """
    plan = {} if ":" in name else card(name).plans.get(name, {})
    return construct(find_class(name), dims, {**plan, **options})


def construct(cls: type, dims: Dims | None, options: Mapping[str, Any]) -> Any:
    """Construct an encoding of a class as `create` does, and raise the same errors."""
    accepted = parameters(cls)
    for option in options:
        if option not in accepted:
            near = get_close_matches(option, accepted, n=1)
            raise TypeError(
                f"{cls.__name__}: unknown option {option!r}"
                + (f"; did you mean {near[0]!r}?" if near else ".")
                + f" Options: {', '.join(accepted) or 'none'}."
            )
    required = [p.name for p in accepted.values() if p.default is p.empty]
    known = (dims or Dims()).offer(required)
    arguments = {fact: value for fact, value in known.items() if fact in accepted} | dict(options)
    missing = [argument for argument in required if argument not in arguments]
    if missing:
        raise TypeError(_what_is_missing(cls, missing))
    return cls(**arguments)


def _parts_of_a_grid(arguments: Iterable[str]) -> dict[str, Any]:
    """Return the arguments that are a part of the grid, and the part; a width without a height is something else."""
    asked = set(arguments)
    parts: dict[str, Any] = {"size": slice(None)} if "size" in asked else {}
    return {**parts, "height": 0, "width": 1} if {"height", "width"} <= asked else parts


def _what_is_missing(cls: type, missing: list[str]) -> str:
    """Return the error for missing arguments of a constructor, with an example."""
    give = ", ".join(f"{argument}=..." for argument in missing)
    of_grid = _parts_of_a_grid(missing)
    facts = dict.fromkeys("grid" if argument in of_grid else argument for argument in missing)
    known = ", ".join(f"{fact}=..." for fact in facts if fact in asdict(Dims()))
    offer = f", or dims=Dims({known})" if known else ""
    own = card_of(cls)
    example = f" Example: {own.call}." if own else ""
    return f"{cls.__name__} needs {', '.join(missing)}; pass {give}{offer}.{example}"


def _names() -> set[str]:
    return {*declared.names(), *_CARDS}


def _cards() -> dict[str, Card]:
    return {name: _card(name) for name in sorted(_names())}


def _card(name: str) -> Card:
    """Return the card that a class has registered, or else the one in its file."""
    return _CARDS.get(name) or _shipped(name)


def _offered() -> dict[str, "EntryPoint"]:
    """Return the encodings of installed packages by name, checked against posenc's own names and aliases."""
    return offered.points(lambda: [key for card in map(_card, declared.names()) for key in card.keys])


def _loaded(point: "EntryPoint") -> Card:
    """Import an encoding of another package, and return the card that it registers."""
    cls = offered.load(point)
    card = _CARDS.get(point.name)
    if card is None or card.cls is not cls:
        raise ValueError(
            f"registry: {offered.giver(point)} must register its class as {point.name!r}, because posenc "
            f"lists encodings by cards; got no such card. Decorate it with @posenc.register({point.name!r}, ...)."
        )
    return card


@cache
def _shipped(name: str) -> Card:
    """Return the card of one of posenc's own encodings without importing it."""
    found, facts = declared.read(name)
    return Card(name=name, declared=found, **facts)
