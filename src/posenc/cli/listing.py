"""`posenc list`: the encodings there are."""

import shutil
import sys
from difflib import get_close_matches
from typing import TYPE_CHECKING

import click

from posenc.cli import output

if TYPE_CHECKING:
    from posenc.registry import Card

_FAMILIES = {
    "none": "position does not enter",
    "additive": "a vector is added to the token embeddings",
    "embedded": "the token embeddings are changed",
    "rotary": "queries and keys are turned",
    "piecewise": "queries and keys are turned, far pairs otherwise than near ones",
    "bias": "a term joins the scores",
    "content_bias": "a term joins the scores and looks at q and k",
    "score_map": "whole rows of scores become others",
    "values": "values are rotated, and outputs back",
}


@click.command()
@click.argument("pattern", default="*", help="A shell pattern for names, as 'ro*'; quote it.  [default: *]")
@click.option("--json", "as_json", is_flag=True, help="A JSON array of cards.")
@click.option("--table", is_flag=True, help="All facts, and the character measured now, in tables.")
def list_encodings(pattern: str, as_json: bool, table: bool) -> None:
    """List the encodings whose names match PATTERN; all of them if it is left out."""
    from posenc import registry

    if as_json and table:
        output.complain("list: --json and --table exclude each other, and both were given; give one of them.")
        raise click.exceptions.Exit(2)
    cards = []
    for name in registry.names(pattern):
        try:
            cards.append(registry.card(name))
        except ValueError as error:  # another package is broken, which hides none of the others
            output.complain(str(error))
    if as_json:
        output.write_json([card.as_dict() for card in cards])
    if not cards:
        output.complain(_explain_absence(pattern))
        raise click.exceptions.Exit(1)
    if table:
        _write_table([card for members in order_families(cards).values() for card in members])
    elif not as_json:
        _write_lines(cards)


def order_families(cards: "list[Card]") -> "dict[str, list[Card]]":
    """Group cards by family, in the order in which a model meets them."""
    found = {card.family for card in cards}
    known = [family for family in _FAMILIES if family in found]
    return {f: [c for c in cards if c.family == f] for f in [*known, *sorted(found.difference(known))]}


def _write_lines(cards: "list[Card]") -> None:
    """One line an encoding, so that grep finds it; only a terminal's edge breaks it."""
    is_terminal, width = (
        bool(sys.stdout and sys.stdout.isatty()),
        shutil.get_terminal_size().columns,
    )  # rich takes time to start
    column = max(len(card.name) for card in cards) + 4
    lines = []
    for family, members in order_families(cards).items():
        meaning = _FAMILIES.get(family)
        lines.append(f"{family}: {meaning}" if meaning else family)
        for card in members:
            first = f"  {card.name:<{column - 2}}"
            wrapped = output.wrap(card.summary, width, " " * column, first)
            lines.append(wrapped if is_terminal else first + card.summary)
    output.write("\n".join(lines))


def _write_table(cards: "list[Card]") -> None:
    from posenc.cli import table

    width = output.console().width
    tables = table.lay_out(cards, width)
    output.write_rich(*(line for drawn in tables for line in (drawn, "")), output.wrap(table.NOTE, width))


def _explain_absence(pattern: str) -> str:
    from posenc import registry

    homes = {}
    for name in registry.names():
        card = registry.card(name)
        homes.update(dict.fromkeys((*card.aliases, card.declared.cls_name.lower(), name), name))
    wanted = pattern.lower().strip("*?")
    if wanted in homes:
        return f"no encoding's name matches {pattern!r}, which is another name of {homes[wanted]}."
    nearest = list(dict.fromkeys(homes[key] for key in get_close_matches(wanted, homes, n=3)))
    hint = f"The nearest: {', '.join(nearest)}." if nearest else "`posenc list` shows all of them."
    return f"no encoding's name matches {pattern!r}. {hint}"
