"""`posenc show`: one encoding, its facts and a picture, or its precision."""

import inspect
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from posenc.cli import output
from posenc.needs import lacks_torch, no_torch

if TYPE_CHECKING:
    from rich.text import Text

    from posenc.cli.picture import Picture
    from posenc.declared import Declared
    from posenc.registry import Card, Trait

_ARGS = re.compile(r"^Args:\n((?:[ ]+.*\n?|\n)*)", re.MULTILINE)
_LABEL = 11  # characters of the column of labels
_TRAITS = {
    "shift_invariant": ("scores depend on the distance alone", "scores depend on absolute positions"),
    "symmetric": ("ahead and behind are the same", "ahead and behind differ"),
    "recency": ("scores fall with distance", "scores do not simply fall with distance"),
    "smooth": ("neighbours are near each other", "neighbours may be far apart"),
    "bounded": ("far positions are no larger than near ones", "grows with the position"),
    "linear_shift": ("a shift is one linear map", "a shift is no linear map"),
    "real_positions": ("accepts fractional positions", "whole positions only"),
    "length_dependent": ("depends on the length: call resolve", "the same at any length"),
}


@click.command()
@click.argument("name", help="A name, an alias, or package.module:Class.")
@click.option("--json", "as_json", is_flag=True, help="The same as numbers: card and picture, or precision.")
@click.option(
    "--precision", "precise", is_flag=True, help="Instead: where positions collide, and how wrong angles are, by dtype."
)
@click.option(
    "--formula",
    help="What --precision compares with: float32 (angles formed in it, as most code does; the default), "
    "bfloat16, float16, or package.module:function of positions (n,) that returns (cos, sin), (n, n_pairs) "
    "each.",
)
def show_encoding(name: str, as_json: bool, precise: bool, formula: str | None) -> None:
    """Show an encoding: formula, paper, options, how to construct it, and a picture; or how precise it is."""
    card, declared = _find(name)
    if formula is not None and not precise:
        raise ValueError(f"show: --formula belongs to --precision; got --formula {formula} alone. Give both.")
    if precise:
        _show_precision(name, card, formula, as_json)
        return
    picture = _take_picture(name, card)
    if as_json:
        facts = card.as_dict() if card else _describe_class(declared)
        output.write_json(facts | {"picture": picture.as_dict()})
    else:
        _write_facts(declared, card)
        _write_picture(picture)


def read_arguments(docstring: str) -> dict[str, str]:
    """Return what the Args section of a docstring says of each argument.

    >>> read_arguments("Add.\\n\\nArgs:\\n    base: One\\n        thing.\\n\\nRaises:\\n    ValueError: No.")
    {'base': 'One thing.'}
    """
    section = _ARGS.search(inspect.cleandoc(docstring))
    entries = re.findall(r"^ {4}(\w+): ((?:.*\n?)(?:^ {8}.*\n?)*)", section[1] if section else "", re.MULTILINE)
    return {name: " ".join(said.split()) for name, said in entries}


def _find(name: str) -> "tuple[Card | None, Declared]":
    """Return the card of an encoding, however it was named, and what its class declares; some have no card."""
    from posenc import registry
    from posenc.declared import Declared

    if ":" not in name:
        card = registry.card(name)
        return card, card.declared
    cls = registry.find_class(name)
    return registry.card_of(cls), Declared.of(cls)


def _find_example(name: str, card: "Card | None") -> tuple[Callable[[], Any], str]:
    """Return what constructs the card's example, or a class of one's own, and how a user writes that.

    Raises:
        ValueError: A class of one's own wants what nobody can guess.
        TypeError: So it does.
    """
    from posenc import registry

    if card:
        return lambda: card.cls(**card.example), card.as_dict()["example"]
    dims = registry.Dims(d_model=32, n_heads=4, n_kv_heads=4, head_dim=64, max_len=64)
    encoding = registry.create(name, dims=dims)
    return lambda: registry.create(name, dims=dims), f"{encoding.name}({encoding.extra_repr()})"


def _take_picture(name: str, card: "Card | None") -> "Picture":
    from posenc.cli.picture import Picture, define, measure

    if card is not None and (picture := define(card)) is not None:
        return picture
    try:
        construct, spelling = _find_example(name, card)
    except (TypeError, ValueError) as error:
        return Picture("none", f"There is no picture, because it could not be constructed: {error}", [], [])
    try:
        return measure(construct, spelling)
    except ModuleNotFoundError as error:
        if not lacks_torch(error):
            raise
        return Picture("none", str(no_torch("The picture, whose numbers are learned,")), [], [])


def _show_precision(name: str, card: "Card | None", formula: str | None, as_json: bool) -> None:
    from posenc.cli import precision

    try:
        construct, spelling = _find_example(name, card)
    except (TypeError, ValueError) as error:
        raise ValueError(f"show: {name} cannot be measured, because it could not be constructed: {error}") from error
    found = precision.measure(construct, formula)
    if as_json:
        output.write_json(found)
    else:
        precision.write(found, spelling, formula)


def _describe_class(declared: "Declared") -> dict[str, Any]:
    return {
        "name": f"{declared.module}:{declared.cls_name}",
        "cls": declared.cls_name,
        "family": declared.family,
        "docstring": declared.docstring,
        "options": list(declared.options),
    }


def _list_options(declared: "Declared") -> dict[str, str]:
    """Map each argument of the constructor, spelt with its default, to what the docstring says of it."""
    said = read_arguments(declared.docstring)
    spelt = {}
    for option in declared.options:
        name, has_default, _ = option.partition("=")
        spelt[option] = " ".join(filter(None, (said.get(name, ""), "" if has_default else "Required.")))
    return spelt


def _write_facts(declared: "Declared", card: "Card | None") -> None:
    from rich.text import Text

    width = output.console().width
    title = Text(declared.cls_name, "bold").append(f"  {declared.family}", "not bold")
    lines = [title]
    if card is None:
        lines += [Text(text) for text in ("", _reflow_docstring(declared.docstring, width), "")]
        facts = {"class": f"{declared.module}:{declared.cls_name}"}
    else:
        lines += [Text(output.wrap(card.summary, width)), Text("")]
        facts = _list_facts(card)
    for label, fact in facts.items():
        lines.append(Text(output.wrap(fact, width, " " * _LABEL, f"{label:<{_LABEL}}")))
    lines += _lay_out("plans", card.plan_calls if card else {}, width)
    lines += _lay_out("options", _list_options(declared), width)
    output.write_rich(*lines)


def _lay_out(label: str, entries: Mapping[str, str], width: int) -> "list[Text]":
    """Write one entry a line under a label, each with what there is to say about it."""
    from rich.text import Text

    lines = []
    for i, (name, said) in enumerate(entries.items()):
        first = f"{label if i == 0 else '':<{_LABEL}}{name}  "
        lines.append(Text(output.wrap(said, width, " " * (_LABEL + 4), first).rstrip() or first.rstrip()))
    return lines


def _reflow_docstring(docstring: str, width: int) -> str:
    """Fit prose to the width; indented parts and examples stay, and arguments are shown as options."""
    said = _ARGS.sub("", docstring or "It has no docstring.").strip()
    paragraphs = re.split(r"\n\s*\n", said)
    fixed = re.compile(r"^( |>>>)", re.MULTILINE)
    return "\n\n".join(p if fixed.search(p) else output.wrap(p, width) for p in paragraphs)


def _list_facts(card: "Card") -> dict[str, str]:
    options = "".join(f", {option}={value!r}" for option, value in card.example.items())
    where = f", arXiv:{card.arxiv}" if card.arxiv else ""
    count = f" ({card.traits['learned']:,} in this example)" if card.traits.get("learned") else ""
    facts = {
        "name": ", also ".join([card.name, *([", ".join(card.aliases)] if card.aliases else [])]),
        "formula": card.formula,
        "paper": f"{card.paper}, {card.year}{where}",
        "traits": "; ".join(_tell_traits(card.traits)),
        "positions": "; ".join(_tell_positions(card.traits)),
        "learned": f"{card.parameters} numbers{count}" if card.parameters != "0" else "nothing",
        "cost": card.cost,
        "used by": ", ".join(card.used_by),
        "construct": f"{card.as_dict()['example']} or posenc.create({card.name!r}{options})",
    }
    return {label: fact for label, fact in facts.items() if fact}


def _tell_traits(traits: "Mapping[str, Trait]") -> list[str]:
    """Say which of its two words each trait deserves; nothing of those that do not apply."""
    return [words[not traits[trait]] for trait, words in _TRAITS.items() if traits.get(trait) is not None]


def _tell_positions(traits: "Mapping[str, Trait]") -> list[str]:
    """Say how many positions are told apart, and which is the last."""
    from posenc.registry import CAP

    by_dtype = traits.get("distinct")
    counts = dict(by_dtype) if isinstance(by_dtype, Mapping) else {}
    said = {dtype: f"{'at least ' * (n == CAP)}{n:,}" for dtype, n in counts.items()}
    if len(set(said.values())) == 1:  # the same in all, so it is said once
        said = {"every dtype": next(iter(said.values()))}
    told = [f"told apart: {', '.join(f'{count} in {dtype}' for dtype, count in said.items())}"] if said else []
    longest = traits.get("longest")
    return [*told, "no last one" if longest is None else f"the last is {longest:,}"]


def _write_picture(picture: "Picture") -> None:
    from rich.text import Text

    from posenc.cli.drawing import Page, draw

    canvas = output.console()
    page = Page(canvas.width, output.encodes("█▁░│"), canvas.color_system is not None)
    output.write_rich(Text(""), *draw(picture, page))
