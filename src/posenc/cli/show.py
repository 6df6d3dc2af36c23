"""`posenc show`: an encoding's facts and picture, or its precision."""

import inspect
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from posenc.cli import output
from posenc.needs import lacks_torch, no_torch
from posenc.raised import describe

if TYPE_CHECKING:
    from rich.text import Text

    from posenc.cli.picture import Picture
    from posenc.declared import Declared
    from posenc.registry import Card, Trait

_ARGS = re.compile(r"^Args:\n((?:[ ]+.*\n?|\n)*)", re.MULTILINE)
_LABEL = 11  # characters of the column of labels
_TRAITS = {
    "shift_invariant": ("scores depend only on the distance", "scores depend on absolute positions"),
    "symmetric": ("the sign of the distance has no effect", "the sign of the distance matters"),
    "recency": ("scores fall with distance", "scores do not simply fall with distance"),
    "smooth": ("neighbouring positions have similar codes", "neighbouring positions may have distant codes"),
    "bounded": ("bounded at far positions", "grows with the position"),
    "linear_shift": ("a shift is one linear map", "a shift is no linear map"),
    "real_positions": ("accepts fractional positions", "whole positions only"),
    "length_dependent": ("depends on the sequence length: call resolve", "does not depend on the sequence length"),
}


@click.command()
@click.argument("name", help="A name, an alias, or package.module:Class.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print the card and the picture's numbers, or the precision, as JSON."
)
@click.option(
    "--precision",
    "precise",
    is_flag=True,
    help="Show instead, by dtype, where positions collide and how large the errors of angles are.",
)
@click.option(
    "--formula",
    help="What --precision compares with: angles computed in float32 (as most code does; the default), "
    "bfloat16 or float16, or package.module:function that takes positions (n,) and returns (cos, sin), "
    "(n, n_pairs) each.",
)
def show_encoding(name: str, as_json: bool, precise: bool, formula: str | None) -> None:
    """Show an encoding's formula, paper, options, construction and picture; or its precision."""
    card, declared = _find(name)
    if formula is not None and not precise:
        raise ValueError(f"show: --formula needs --precision; got only --formula {formula}. Give both.")
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
    """Return the text on each argument in the Args section of a docstring.

    >>> read_arguments("Add.\\n\\nArgs:\\n    base: One\\n        thing.\\n\\nRaises:\\n    ValueError: No.")
    {'base': 'One thing.'}
    """
    section = _ARGS.search(inspect.cleandoc(docstring))
    entries = re.findall(r"^ {4}(\w+): ((?:.*\n?)(?:^ {8}.*\n?)*)", section[1] if section else "", re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


def _find(name: str) -> "tuple[Card | None, Declared]":
    """Return an encoding's card, or None for a class without one, and the declarations of its class."""
    from posenc import registry
    from posenc.declared import Declared

    if ":" not in name:
        card = registry.card(name)
        return card, card.declared
    cls = registry.find_class(name)
    return registry.card_of(cls), Declared.of(cls)


def _find_example(name: str, card: "Card | None") -> tuple[Callable[[], Any], str]:
    """Return a constructor of the card's example, or of a user's class, and the same in a user's code.

    Raises:
        ValueError: A user's class needs options other than sizes.
        TypeError: As above.
    """
    from posenc import registry

    if card:
        return lambda: card.cls(**card.example), card.as_dict()["example"]
    encoding = registry.create(name, dims=registry.USUAL)
    return lambda: registry.create(name, dims=registry.USUAL), f"{encoding.name}({encoding.extra_repr()})"


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
    except Exception as error:
        if card is not None:
            raise
        return Picture("none", f"There is no picture, because {name} raised {describe(error)}.", [], [])


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
    """Map each argument of the constructor, written with its default, to its text in the docstring."""
    texts = read_arguments(declared.docstring)
    options = {}
    for option in declared.options:
        name, has_default, _ = option.partition("=")
        options[option] = " ".join(filter(None, (texts.get(name, ""), "" if has_default else "Required.")))
    return options


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
    """Write one entry a line under a label, each with its text."""
    from rich.text import Text

    lines = []
    for i, (name, text) in enumerate(entries.items()):
        first = f"{label if i == 0 else '':<{_LABEL}}{name}  "
        lines.append(Text(output.wrap(text, width, " " * (_LABEL + 4), first).rstrip() or first.rstrip()))
    return lines


def _reflow_docstring(docstring: str, width: int) -> str:
    """Wrap prose to the width; keep indented parts and examples, drop Args, which are listed as options."""
    prose = _ARGS.sub("", docstring or "It has no docstring.").strip()
    paragraphs = re.split(r"\n\s*\n", prose)
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
        "traits": "; ".join(_describe_traits(card.traits)),
        "positions": "; ".join(_describe_positions(card.traits)),
        "learned": f"{card.parameters} numbers{count}" if card.parameters != "0" else "nothing",
        "cost": card.cost,
        "used by": ", ".join(card.used_by),
        "construct": f"{card.as_dict()['example']} or posenc.create({card.name!r}{options})",
    }
    return {label: fact for label, fact in facts.items() if fact}


def _describe_traits(traits: "Mapping[str, Trait]") -> list[str]:
    """Return the phrase for each trait that applies."""
    return [words[not traits[trait]] for trait, words in _TRAITS.items() if traits.get(trait) is not None]


def _describe_positions(traits: "Mapping[str, Trait]") -> list[str]:
    """Report how many positions are distinct, and which is the last."""
    from posenc.registry import CAP

    by_dtype = traits.get("distinct")
    counts = dict(by_dtype) if isinstance(by_dtype, Mapping) else {}
    shown = {dtype: f"{'at least ' * (n == CAP)}{n:,}" for dtype, n in counts.items()}
    if len(set(shown.values())) == 1:
        shown = {"every dtype": next(iter(shown.values()))}
    distinct = [f"distinct: {', '.join(f'{count} in {dtype}' for dtype, count in shown.items())}"] if shown else []
    longest = traits.get("longest")
    return [*distinct, "no last one" if longest is None else f"the last is {longest:,}"]


def _write_picture(picture: "Picture") -> None:
    from rich.text import Text

    from posenc.cli.drawing import Page, draw

    canvas = output.console()
    page = Page(canvas.width, output.encodes("█▁░│"), canvas.color_system is not None)
    output.write_rich(Text(""), *draw(picture, page))
