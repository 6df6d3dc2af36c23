"""The explorer's views: each answers an untrusted query with a frame whose numbers come from `posenc.measure`."""

from collections.abc import Mapping
from typing import Any

from posenc.config.values import short
from posenc.explorer.frames import Frame
from posenc.explorer.views import attending, cell, extending, model, scores, vectors, waves
from posenc.explorer.views.controls import Control
from posenc.explorer.views.subjects import allow
from posenc.explorer.views.view import View
from posenc.languages import tr

VIEWS: dict[str, View] = {
    view.id: view
    for view in (
        vectors.HEAT,
        vectors.POINTS,
        waves.WAVELENGTHS,
        scores.PROFILE,
        vectors.SIMILARITY,
        scores.BIAS,
        scores.DISTANCES,
        waves.PRECISION,
        extending.EXTENSION,
        model.MODEL,
        attending.ATTENTION,
        cell.CELL,
    )
}

__all__ = ["VIEWS", "Control", "View", "allow", "answer"]


def answer(view_id: str, query: Mapping[str, str]) -> Frame | dict[str, Any]:
    """Return a view's answer to a query: a frame, or JSON values for the view `cell`.

    Args:
        view_id: One of `VIEWS`.
        query: Keys and values from the address's query string, untrusted.

    Raises:
        ValueError: There is no such view, a value is invalid, or the view does not apply to the encoding.
        TypeError: The encoding's options are unknown or missing.

    >>> answer("wavelengths", {"a": "rope", "a.head_dim": "4"}).arrays[1].round(2).tolist()
    [6.28, 628.32]
    """
    if view_id not in VIEWS:
        raise ValueError(
            tr("explore: there is no view {name:s}; there are: {known:s}.", name=short(view_id), known=", ".join(VIEWS))
        )
    return VIEWS[view_id].answer(query)
