"""The law by which the queries of a kind of layer grow with their position, if they do."""

from typing import Any

from posenc.config import kinds, values
from posenc.config.model import WHO, open_model
from posenc.config.models import TYPES, Pairing
from posenc.config.reading import Source
from posenc.config.rotation import rotary
from posenc.config.spelling import spelled


def growth(source: Source, layer_type: str, *, pairing: Pairing | None = None) -> dict[str, Any] | None:
    """Return the law by which the queries of one kind of layer grow with their position; None if they do not.

    Args:
        source: A configuration, as for `read`.
        layer_type: The kind of layer, as in `layer_types`.
        pairing: The pairing of head dimensions, for an unknown model type.

    Returns:
        The options of `posenc.QueryTemperature`: `law`, `original_max_len` in positions, and `weight`.

    Raises:
        ValueError: A number is out of range.
        TypeError: A value has a wrong type.

    >>> growth({"model_type": "llama4_text"}, "nope")
    {'law': 'llama4', 'original_max_len': 8192, 'weight': 0.1}
    """
    model = open_model(source)
    if model.name == "beam" and layer_type == kinds.NOPE:  # these numbers are in its code
        return {"law": "beam", "original_max_len": 2048, "weight": 0.1}
    if model.name == "llama4_text" and layer_type == kinds.NOPE:
        given = model.fields.get("attn_temperature_tuning", True)
        on = given != 0 if isinstance(given, int) else values.flag(WHO, "attn_temperature_tuning", given)  # 4 is true
        law, keys = "llama4", ("floor_scale", "attn_scale")
        length, weight = model.fields.get(keys[0], 8192), model.fields.get(keys[1], 0.1) if on else None
    elif kinds.rotates(layer_type) and (model.name in ("ministral3", "mistral4") or model.name not in TYPES):
        law, keys = "ministral", ("original_max_position_embeddings", "llama_4_scaling_beta")
        length = rotary(source, layer_type, pairing=pairing).original_max_len
        weight = spelled(model, layer_type).own.get(keys[1])
    else:
        return None
    if weight is None:
        return None
    length = values.integer(WHO, keys[0], length, low=2)
    weight = values.number(WHO, keys[1], weight, low=0.0, high=1e4)
    return {"law": law, "original_max_len": length, "weight": weight} if weight else None
