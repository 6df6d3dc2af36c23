"""Models that do not rotate: what brings positions in instead, by model type, as transformers 5.23 has it."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from posenc.config import values
from posenc.config.model import WHO, Model

_MOST = 1 << 24


@dataclass(frozen=True)
class Way:
    """What layers one after the other do with positions.

    Args:
        part: "layers", or the stack that they are of: "encoder", "decoder".
        count: How many they are.
        encoding: Its name in the registry; an additive one works before the first layer.
        options: What it is constructed with.
    """

    part: str
    count: int
    encoding: str
    options: Mapping[str, Any]


def ways(model: Model) -> list[Way] | None:
    """Return what the layers of a model do, None where the type rotates or is not known.

    Raises:
        ValueError: A size is missing or beyond what any model has.
        TypeError: A size is no integer.
    """
    name = model.model_type or ""
    if name == "falcon" and model.fields.get("alibi") is not True:
        return None
    return _READERS[name](model.fields) if name in _READERS else None


def _whole(fields: Mapping[str, Any], *keys: str, default: int | None = None, high: int = _MOST) -> int:
    """Return a whole number under the first of several names that is there."""
    for key in keys:
        if fields.get(key) is not None:
            return values.integer(WHO, key, fields[key], high=high)
    if default is not None:
        return default
    raise values.missing(
        f"{WHO}: {keys[0]} must stand in the file, because positions of this model type depend on it; it is missing. "
        f"Add {keys[0]}.",
        keys[0],
        None,
        f"from 1 to {high}",
    )


def _depth(fields: Mapping[str, Any]) -> int:
    return _whole(fields, "num_hidden_layers", "n_layer", "n_layers", "num_layers", high=10_000)


def _heads(fields: Mapping[str, Any]) -> int:
    return _whole(fields, "num_attention_heads", "n_head", "n_heads", "num_heads", high=1 << 16)


def _alibi(fields: Mapping[str, Any]) -> list[Way]:
    return [Way("layers", _depth(fields), "alibi", {"n_heads": _heads(fields)})]


def _falcon(fields: Mapping[str, Any]) -> list[Way]:
    n_heads = _heads(fields)
    root = math.sqrt(_whole(fields, "hidden_size") // n_heads)
    low = 1 << (n_heads.bit_length() - 1)
    exponents = [8 * (h + 1) / low for h in range(low)] + [4 * (2 * h + 1) / low for h in range(n_heads - low)]
    slopes = [2.0**-exponent / root for exponent in exponents]  # the bias is divided as the scores are
    options = {"n_heads": n_heads, "slopes": slopes, "sides": "key", "precision": "falcon-bfloat16"}
    return [Way("layers", _depth(fields), "alibi", options)]


def _t5(fields: Mapping[str, Any]) -> list[Way]:
    options = {
        "n_heads": _heads(fields),
        "n_buckets": _whole(fields, "relative_attention_num_buckets", default=32, high=4096),
        "max_distance": _whole(fields, "relative_attention_max_distance", default=128),
        "score_scale": 1.0,
    }
    depth = _whole(fields, "num_layers", high=10_000)
    found = [Way("encoder", depth, "t5", options | {"bidirectional": True})]
    if fields.get("is_encoder_decoder", True):
        behind = _whole(fields, "num_decoder_layers", default=depth, high=10_000)
        found.append(Way("decoder", behind, "t5", options | {"bidirectional": False}))
    return found


def _deberta(fields: Mapping[str, Any]) -> list[Way]:
    said = fields.get("pos_att_type") or []
    given = said.split("|") if isinstance(said, str) else values.sequence(WHO, "pos_att_type", said, longest=3)
    words = [str(word).strip().lower() for word in given]
    terms = tuple(term for term in ("c2p", "p2c") if term in words)
    if not fields.get("relative_attention") or not terms:
        return [Way("layers", _depth(fields), "nope", {})]
    n_heads, (clipped, bucketed) = (
        _heads(fields),
        (
            values.integer(WHO, key, fields.get(key, -1), low=-1, high=_MOST) > 0
            for key in ("max_relative_positions", "position_buckets")
        ),
    )
    far = _whole(fields, "max_relative_positions" if clipped else "max_position_embeddings", default=512)
    n_buckets = _whole(fields, "position_buckets", high=4096) if bucketed else 2 * far
    options = {
        "n_heads": n_heads,
        "head_dim": _whole(fields, "attention_head_size", default=_whole(fields, "hidden_size") // n_heads),
        "n_buckets": n_buckets,
        "max_distance": far if bucketed else far + 2,  # exact at every distance up to its end
        "terms": terms,
    }
    return [Way("layers", _depth(fields), "deberta", options)]


def _table(offset: int = 0, padded: bool = False) -> Callable[[Mapping[str, Any]], list[Way]]:
    """Return a reader of a learned table.

    Args:
        offset: Rows before that of position 0.
        padded: Whether those are counted by max_position_embeddings, and reach to that of the padding token.
    """

    def read(fields: Mapping[str, Any]) -> list[Way]:
        d_model = _whole(fields, "embedding_size", "hidden_size", "n_embd", "dim", "d_model")
        n_rows = _whole(fields, "max_position_embeddings", "n_positions")
        before = _whole(fields, "pad_token_id", default=1) + 1 if padded else offset
        options = {"d_model": d_model, "max_len": n_rows - (before if padded else 0), "offset": before}
        return [Way("layers", _depth(fields), "learned", options)]

    return read


def _vit(fields: Mapping[str, Any]) -> list[Way]:
    side = _whole(fields, "image_size", default=224) // _whole(fields, "patch_size", default=16)
    first = 2 if fields.get("model_type") == "deit" else 1  # tokens before those of patches
    options = {"d_model": _whole(fields, "hidden_size"), "max_len": side**2 + first}
    return [Way("layers", _depth(fields), "learned", options)]


def _none(fields: Mapping[str, Any]) -> list[Way]:
    return [Way("layers", _depth(fields), "nope", {})]


_READERS: dict[str, Callable[[Mapping[str, Any]], list[Way]]] = {
    "bloom": _alibi,
    "mpt": _alibi,  # transformers leaves attn_config's alibi and alibi_bias_max unread
    "falcon": _falcon,
    **dict.fromkeys(("t5", "mt5", "umt5", "switch_transformers"), _t5),
    "deberta-v2": _deberta,
    **dict.fromkeys(("gpt2", "openai-gpt", "gpt_neo", "gpt_bigcode"), _table()),
    **dict.fromkeys(("bert", "electra", "distilbert", "albert", "clip_text_model"), _table()),
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), _table(padded=True)),
    **dict.fromkeys(("biogpt", "opt"), _table(offset=2)),
    **dict.fromkeys(("vit", "deit"), _vit),
    **dict.fromkeys(("jamba", "mamba", "mamba2", "falcon_mamba"), _none),
}
TYPES = tuple(_READERS)
