"""`posenc list`: the registered encodings."""

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
    "rotary": "queries and keys are rotated",
    "piecewise": "queries and keys are rotated, far pairs differently from near ones",
    "bias": "a term is added to the scores",
    "content_bias": "a term that depends on q and k is added to the scores",
    "score_map": "whole rows of scores are transformed",
    "values": "values are rotated, and outputs are rotated back",
}

NEEDS = {
    "text": "text and other sequences",
    "long": "texts longer than the training texts",
    "image": "the patches of an image",
    "video": "frames of a video, and text among pictures",
    "graph": "the nodes of a graph",
    "camera": "points in space, and the rays of cameras",
    "textbook": "teaching examples that no model uses",
}


@click.command()
@click.argument("pattern", default="*", help="A shell pattern for names, such as 'ro*'; quote it.  [default: *]")
@click.option("--for", "need", metavar="NEED", help=f"List only encodings for: {', '.join(NEEDS)}.", show_default="all")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array of cards.")
@click.option("--table", is_flag=True, help="Print all facts, and properties measured now, in tables.")
def list_encodings(pattern: str, need: str | None, as_json: bool, table: bool) -> None:
    """List the encodings whose names match PATTERN, or all of them."""
    from posenc import registry

    if need is not None and need not in NEEDS:
        raise ValueError(f"list: --for must be one of {', '.join(NEEDS)}; got {need}.")
    if as_json and table:
        output.complain("list: --json and --table exclude each other; got both. Give one of them.")
        raise click.exceptions.Exit(2)
    cards = []
    for name in registry.names(pattern):
        try:
            cards.append(registry.card(name))
        except ValueError as error:  # one broken package must not hide the others
            output.complain(str(error))
    if need is not None:
        cards = [card for card in cards if need in card.serves]
    if as_json:
        output.write_json([card.as_dict() for card in cards])
    if not cards:
        output.complain(_explain_absence(pattern, need))
        raise click.exceptions.Exit(1)
    if table:
        _write_table([card for members in order_families(cards).values() for card in members])
    elif not as_json:
        _write_lines(order_needs(cards) if need is None else order_families(cards))


def order_families(cards: "list[Card]") -> "dict[str, list[Card]]":
    """Group cards by family, in the order in which a model applies them."""
    found = {card.family for card in cards}
    known = [family for family in _FAMILIES if family in found]
    return {f: [c for c in cards if c.family == f] for f in [*known, *sorted(found.difference(known))]}


def order_needs(cards: "list[Card]") -> "dict[str, list[Card]]":
    """Group cards by the first need that they serve; those that declare none come last."""
    grouped: dict[str, list[Card]] = {need: [] for need in NEEDS}
    for card in cards:
        grouped.setdefault(card.serves[0] if card.serves else "other", []).append(card)
    return {need: members for need, members in grouped.items() if members}


def _write_lines(groups: "dict[str, list[Card]]") -> None:
    """Print one line per encoding, for grep; wrap lines only on a terminal."""
    is_terminal, width = (
        bool(sys.stdout and sys.stdout.isatty()),
        shutil.get_terminal_size().columns,
    )  # rich takes time to start
    column = max(len(card.name) for members in groups.values() for card in members) + 4
    lines = []
    for group, members in groups.items():
        meaning = NEEDS.get(group) or _FAMILIES.get(group)
        lines.append(f"{group}: {meaning}" if meaning else group)
        for card in members:
            first = f"  {card.name:<{column - 2}}"
            said = card.summary + (f" Plans: {', '.join(card.plans)}." if card.plans else "")
            wrapped = output.wrap(said, width, " " * column, first)
            lines.append(wrapped if is_terminal else first + said)
    output.write("\n".join(lines))


def _write_table(cards: "list[Card]") -> None:
    from posenc.cli import table

    width = output.console().width
    tables = table.lay_out(cards, width)
    output.write_rich(*(line for drawn in tables for line in (drawn, "")), output.wrap(table.NOTE, width))


def _explain_absence(pattern: str, need: str | None) -> str:
    from posenc import registry

    homes, plans = {}, {}
    for name in registry.names():
        card = registry.card(name)
        plans.update(dict.fromkeys(card.plans, name))
        homes.update(dict.fromkeys((*card.keys, card.declared.cls_name.lower()), name))
    wanted = pattern.lower().strip("*?")
    if need is not None and registry.names(pattern):
        return f"no encoding whose name matches {pattern!r} is for {need} ({NEEDS[need]})."
    if wanted in plans:
        return (
            f"no encoding's name matches {pattern!r}, which is a plan of {plans[wanted]}: "
            f"`posenc show {plans[wanted]}` has the line that creates it."
        )
    if wanted in homes:
        return f"no encoding's name matches {pattern!r}, which is another name of {homes[wanted]}."
    nearest = list(dict.fromkeys(homes[key] for key in get_close_matches(wanted, homes, n=3)))
    hint = f"The nearest: {', '.join(nearest)}." if nearest else "`posenc list` shows all of them."
    return f"no encoding's name matches {pattern!r}. {hint}"
