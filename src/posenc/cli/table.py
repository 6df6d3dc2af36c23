"""The table of encodings: their facts, and their properties, measured on the spot."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from posenc.character import Character
    from posenc.registry import Card

NOTE = (
    "Measured now on each card's example, with learned numbers drawn from N(0, 1). "
    "docs/encodings.md and posenc.character.Character explain the columns."
)
_WIDE = 100  # from this many characters on, the family has its own column
_REACH = (
    *("distinct\nfloat32", "distinct\nbfloat16", "distinct\nfloat16"),
    *("longest\nposition", "real\npos", "learned", "computed"),
)
_FORM = ("smooth", "bounded", "shift\ninvariant", "symmetric", "recency", "linear\nshift", "by\nlength")


@dataclass(frozen=True)
class Grid:
    """A table's contents: a title for each column, and rows of cells."""

    titles: tuple[str, ...]
    rows: list[tuple[str, ...]]

    def join(self, other: "Grid") -> "Grid":
        """Append the columns of a grid that has the same first column."""
        rows = [(*mine, *theirs[1:]) for mine, theirs in zip(self.rows, other.rows, strict=True)]
        return Grid((*self.titles, *other.titles[1:]), rows)

    def columns(self) -> list[tuple[str, ...]]:
        """Return the columns, each with its title first."""
        return list(zip(self.titles, *self.rows, strict=True))


def tabulate(cards: "Sequence[Card]") -> tuple[Grid, Grid, Grid]:
    """Return three grids: the facts of each card, the reach of its positions, and their form; the last two measured."""
    characters = _measure(cards)
    facts = [_list_facts(card) for card in cards]
    reach = [(card.name, *_list_reach(found)) for card, found in zip(cards, characters, strict=True)]
    form = [(card.name, *_list_form(found)) for card, found in zip(cards, characters, strict=True)]
    return (
        Grid(("name", "family", "paper", "learned", "cost", "used by"), facts),
        Grid(("name", *_REACH), reach),
        Grid(("name", *_FORM), form),
    )


def _measure(cards: "Sequence[Card]") -> "list[Character]":
    """Measure on one thread, because threads that wait for each other make such small work many times slower."""
    from posenc.character import measure

    torch = import_module("torch")  # by name: posenc.cli itself must start without it
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [measure(card.cls(**card.example)) for card in cards]
    finally:
        torch.set_num_threads(threads)


def lay_out(cards: "Sequence[Card]", width: int) -> "list[Table]":
    """Draw the grids within a width; the two measured ones are joined if there is room."""
    facts, reach, form = tabulate(cards)
    if width < _WIDE:
        rows = [(f"{name}\n({family})", *rest) for name, family, *rest in facts.rows]
        facts = Grid(("name (family)", *facts.titles[2:]), rows)
    whole = reach.join(form)
    fits = sum(_widest(whole.columns(), "\n")) + len(whole.titles) - 1 <= width
    characters = [whole] if fits else [reach, form]
    return [_draw(facts, width, show_lines=True), *(_draw(grid, width) for grid in characters)]


def share_width(columns: Sequence[Sequence[str]], width: int) -> list[int]:
    """Divide a width among columns, each at least as wide as its longest word."""
    widths, wanted = _widest(columns, None), _widest(columns, "\n")
    while sum(widths) + len(widths) - 1 < width and widths != wanted:
        # The next character goes to the column with the most lines, where it saves the most.
        tallest = max(range(len(widths)), key=lambda i: (widths[i] < wanted[i]) * wanted[i] / widths[i])
        widths[tallest] += 1
    return widths


def _widest(columns: Iterable[Sequence[str]], separator: str | None) -> list[int]:
    return [max(len(part) for cell in column for part in cell.split(separator)) for column in columns]


def _draw(grid: Grid, width: int, *, show_lines: bool = False) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, show_lines=show_lines, padding=0, pad_edge=False)
    for title, shared in zip(grid.titles, share_width(grid.columns(), width), strict=True):
        table.add_column(title, overflow="fold", width=shared)
    for row in grid.rows:
        table.add_row(*row)
    return table


def _list_facts(card: "Card") -> tuple[str, ...]:
    authors = re.split("[,:]", card.paper)[0]
    named = card.name, card.family.replace("_", " "), f"{authors} {card.year}"
    return (*named, card.parameters, card.cost, ", ".join(card.used_by) or "-")


def _list_reach(found: "Character") -> tuple[str, ...]:
    from posenc.character import CAP, DTYPES

    counts = found.distinct or {}
    distinct = [f"{n:,}{'+' * (n == CAP)}" if (n := counts.get(name)) is not None else "-" for name in DTYPES]
    end = None if found.longest is None else found.longest + 1
    power = end is not None and end > CAP and end & (end - 1) == 0
    longest = "none" if end is None else f"2^{end.bit_length() - 1}-1" if power else f"{end - 1:,}"
    return (*distinct, longest, _yes_no(found.real_positions), f"{found.learned:,}", _work(found))


def _work(found: "Character") -> str:
    """Return how many numbers are computed: "a" per token or, with b per pair of positions, "a+b/pair"."""
    if found.per_token is None or found.per_score is None:
        return "-"
    each = [f"{found.per_token:,.0f}"] if found.per_token or not found.per_score else []
    return "+".join([*each, *([f"{found.per_score:,.0f}/pair"] if found.per_score else [])])


def _list_form(found: "Character") -> tuple[str, ...]:
    step = "" if found.step is None else f" {found.step:.2f}"
    residual = "" if found.residual is None else f" {found.residual:.2g}" if found.residual >= 1e-9 else " <1e-9"
    plain = (found.bounded, found.shift_invariant, found.symmetric, found.recency)
    linear, by_length = _yes_no(found.linear_shift) + residual, _yes_no(found.length_dependent)
    return (_yes_no(found.smooth) + step, *map(_yes_no, plain), linear, by_length)


def _yes_no(trait: Any) -> str:
    return "-" if trait is None else "yes" if trait else "no"
