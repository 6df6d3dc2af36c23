"""`posenc list`: the encodings there are."""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated

import typer

from posenc.cli import output

if TYPE_CHECKING:
    from rich.table import Table

    from posenc.registry import Card

_WIDE = 100  # characters from which on the table has room for the family's own column
_FAMILIES = {
    "none": "position does not enter",
    "additive": "a vector is added to the token embeddings",
    "rotary": "queries and keys are turned",
    "bias": "a term joins the scores",
    "content_bias": "a term joins the scores and looks at q and k",
}


def list_encodings(
    pattern: Annotated[
        str, typer.Argument(metavar="PATTERN", help="A shell pattern for names, as 'ro*'; quote it.")
    ] = "*",
    as_json: Annotated[bool, typer.Option("--json", help="A JSON array of cards.")] = False,
    table: Annotated[bool, typer.Option("--table", help="All facts in a table.")] = False,
) -> None:
    """List the encodings whose names match PATTERN; all of them if it is left out."""
    from posenc import registry

    if as_json and table:
        output.complain("list: --json and --table exclude each other, and both were given; give one of them.")
        raise typer.Exit(2)
    cards = [registry.card(name) for name in registry.names(pattern)]
    if as_json:
        output.write_json([card.as_dict() for card in cards])
    if not cards:
        output.complain(_explain_absence(pattern))
        raise typer.Exit(1)
    if table:
        output.write_rich(_tabulate(cards))
    elif not as_json:
        _write_lines(cards)


def order_families(cards: "list[Card]") -> "dict[str, list[Card]]":
    """Group cards by family, in the order in which a model meets them."""
    found = {card.family for card in cards}
    known = [family for family in _FAMILIES if family in found]
    return {f: [c for c in cards if c.family == f] for f in [*known, *sorted(found.difference(known))]}


def _write_lines(cards: "list[Card]") -> None:
    """One line an encoding, so that grep finds it; only a terminal's edge breaks it."""
    canvas = output.console()
    column = max(len(card.name) for card in cards) + 4
    lines = []
    for family, members in order_families(cards).items():
        meaning = _FAMILIES.get(family)
        lines.append(f"{family}: {meaning}" if meaning else family)
        for card in members:
            first = f"  {card.name:<{column - 2}}"
            wrapped = output.wrap(card.summary, canvas.width, " " * column, first)
            lines.append(wrapped if canvas.is_terminal else first + card.summary)
    output.write("\n".join(lines))


def _tabulate(cards: "list[Card]") -> "Table":
    from rich import box
    from rich.table import Table

    width = output.console().width
    titles: tuple[str, ...] = ("name", "family", "paper", "learned", "cost", "traits", "used by")
    rows = [_tabulate_card(card) for members in order_families(cards).values() for card in members]
    if width < _WIDE:
        titles = ("name (family)", *titles[2:])
        rows = [(f"{name}\n({family})", *rest) for name, family, *rest in rows]
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, show_lines=True, padding=0, pad_edge=False)
    columns = list(zip(titles, *rows, strict=True))
    for title, shared in zip(titles, share_width(columns, width), strict=True):
        table.add_column(title, overflow="fold", width=shared)
    for row in rows:
        table.add_row(*row)
    return table


def share_width(columns: Sequence[Sequence[str]], width: int) -> list[int]:
    """Share a width among columns, none narrower than its longest word."""
    widths = [max(len(word) for cell in column for word in cell.split()) for column in columns]
    wanted = [max(len(line) for cell in column for line in cell.split("\n")) for column in columns]
    while sum(widths) + len(widths) - 1 < width and widths != wanted:
        # The next character goes where it saves the most: to the column that would be the tallest.
        tallest = max(range(len(widths)), key=lambda i: (widths[i] < wanted[i]) * wanted[i] / widths[i])
        widths[tallest] += 1
    return widths


def _tabulate_card(card: "Card") -> tuple[str, ...]:
    authors = re.split("[,:]", card.paper)[0]
    traits = [trait.replace("_", " ") for trait, holds in card.traits.items() if holds]
    family = card.family.replace("_", " ")
    named = (card.name, family, f"{authors} {card.year}", card.parameters, card.cost)
    return (*named, ", ".join(traits) or "-", ", ".join(card.used_by) or "-")


def _explain_absence(pattern: str) -> str:
    from posenc import registry

    homes = {}
    for name in registry.names():
        card = registry.card(name)
        homes.update(dict.fromkeys((*card.aliases, card.cls.__name__.lower(), name), name))
    wanted = pattern.lower().strip("*?")
    if wanted in homes:
        return f"no encoding's name matches {pattern!r}, which is another name of {homes[wanted]}."
    nearest = list(dict.fromkeys(homes[key] for key in get_close_matches(wanted, homes, n=3)))
    hint = f"The nearest: {', '.join(nearest)}." if nearest else "`posenc list` shows all of them."
    return f"no encoding's name matches {pattern!r}. {hint}"
