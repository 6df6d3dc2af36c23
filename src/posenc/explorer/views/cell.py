"""The view that explains the value of a cell of another view."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from posenc.explorer import cells
from posenc.explorer.views import scores, vectors, waves
from posenc.explorer.views.controls import Control, read_number, read_word
from posenc.explorer.views.view import View, read_view
from posenc.languages import tr

_OF = {
    view.id: view
    for view in (
        vectors.HEAT,
        vectors.SIMILARITY,
        scores.DISTANCES,
        scores.BIAS,
        scores.PROFILE,
        waves.WAVELENGTHS,
    )
}


@dataclass(frozen=True)
class CellView(View):
    """The view that explains a cell of another view; it takes that view's options in addition to its own."""

    def answer(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return formula, steps and value.

        Raises:
            ValueError: The view does not explain its cells, there is no such cell, or a value is invalid.
            TypeError: An option is unknown or missing.
        """
        for name in ("view", "row", "column"):
            if name not in query:
                raise ValueError(
                    tr(
                        "explore: {name:s} is missing; a cell is given by view, row and column. Add {name:s}=...",
                        name=name,
                    )
                )
        view = _OF[read_word("view", query["view"], tuple(_OF))]
        row, column = read_number("row", query["row"]), read_number("column", query["column"])
        rest = {key: text for key, text in query.items() if key not in ("view", "row", "column")}
        subject, asked = read_view(view, rest)
        asked = scores.settle(view.id, subject, asked)
        formula = subject.card.formula if subject.card else f"the formula of {subject.encoding.name}"
        why = cells.explain(view.id, subject.encoding, formula, asked, row, column)
        return {
            "view": "cell",
            "of_view": view.id,
            "subject": subject.encoding.name,
            "row": row,
            "column": column,
            "notes": subject.notes,
            **why.as_dict(),
        }


CELL = CellView(
    "cell",
    "Why this value",
    "The formula behind one value, with the numbers substituted, step by step.",
    (
        Control("view", "choice", "heat", "The view that the cell belongs to.", tuple(_OF)),
        Control("row", "float", 0.0, "The cell's row: a position, or the index of a curve."),
        Control("column", "float", 0.0, "The cell's column: a lane, a pair, a position or a distance."),
    ),
    lambda values: None,  # type: ignore[arg-type, return-value]
    None,
)
