"""The factor of queries in layers where it grows with their position, as in Llama 4 and Ministral 3."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posenc.definitions.rotary import query_temperature

Array = NDArray[Any]
MEANINGS = {"query_scale": "multiplies q after any rotation, but not k; without unit (seq,)"}
LAWS = {
    "llama4": "query_scale = 1 + weight * ln(1 + floor((position + 1) / original_max_len))",
    "ministral": "query_scale = 1 + weight * ln(1 + floor(position / original_max_len))",
    "beam": "query_scale = (1 + (position + 1) / original_max_len) ** weight",
}


def arrays(law: Mapping[str, Any] | None, positions: Array) -> dict[str, Array]:
    """Return the factor of the query at each position (seq,); nothing if queries are not scaled.

    Args:
        law: The law of `posenc.config.growth`; None if queries are not scaled.
        positions: (seq,).

    Raises:
        ValueError: Positions have several axes, which no model's law supports.
    """
    if law is None:
        return {}
    if positions.ndim > 1:
        raise ValueError(
            f"golden: the query scale {law['law']!r} needs positions with one axis; got several. Remove "
            "mrope_section or the keys of that law."
        )
    return {"query_scale": np.array([query_temperature(int(p), head_dim=1, **law)[0].item() for p in positions])}
