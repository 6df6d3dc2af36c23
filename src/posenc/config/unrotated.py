"""Model types that do not rotate by one position, and their position encodings in transformers 5.24."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from posenc.config import values
from posenc.config.model import WHO, Model

_MOST = 1 << 24
_MOST_NUMBERS = 1 << 30  # in learned tables; the largest known have 1 << 25


@dataclass(frozen=True)
class Way:
    """The encoding of consecutive layers.

    Args:
        part: "layers", or the stack of the layers: "encoder", "decoder", "stage 0".
        count: The number of layers.
        encoding: The encoding's name in the registry; an additive one applies before the first layer.
        options: Its constructor arguments.
        shared: Whether the layers share one learned table.
        also: Other encodings in the same layers, by name, with their options.
    """

    part: str
    count: int
    encoding: str
    options: Mapping[str, Any]
    shared: bool = True
    also: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


Reader = Callable[[Mapping[str, Any]], list[Way]]


@dataclass(frozen=True)
class Kind:
    """A description of how positions enter in a type, and its reader; None if posenc has no such encoding."""

    means: str
    read: Reader | None


def kind(model: Model) -> Kind | None:
    """Return how positions enter, None if the type rotates by one position or is unknown."""
    name = model.model_type or ""
    rotates = name == "falcon" and model.fields.get("alibi") is not True
    return None if rotates else KINDS.get(name)


def ways(model: Model) -> list[Way] | None:
    """Return the encodings of a model's layers, None if the type rotates by one position or is unknown.

    Raises:
        ValueError: A size is missing or larger than in any model, or posenc does not have the encoding of the type.
        TypeError: A size is not an integer.
    """
    if (found := kind(model)) is None:
        return None
    if found.read is None:
        raise values.elsewhere(f"{WHO}: positions of {model.model_type} enter by {found.means}.", model.model_type)
    read = found.read(model.fields)
    for way in read:
        _check_table(way.encoding, _sizes(way))
    return read


def _sizes(way: Way) -> dict[str, int]:
    """Return the sizes of the tables that layers learn; Inkling's reader checks its own."""
    keys = ("max_len", "d_model") if way.encoding == "learned" else ("n_buckets", "n_heads", "head_dim")
    return {key: way.options[key] for key in keys if key in way.options} | ({} if way.shared else {"layers": way.count})


def _check_table(encoding: str, sizes: Mapping[str, int]) -> None:
    """Raise an error for tables larger than in any model, since a file must not be able to exhaust the memory."""
    if math.prod(sizes.values()) > _MOST_NUMBERS:
        given = ", ".join(f"{key}={size}" for key, size in sizes.items())
        raise values.out_of_range(
            f"{WHO}: learned tables of {encoding} must have at most {_MOST_NUMBERS:,} numbers; got {given}. "
            "Correct the file.",
            *(next(iter(sizes)), next(iter(sizes.values())), f"tables of at most {_MOST_NUMBERS:,} numbers"),
        )


def _whole(fields: Mapping[str, Any], *keys: str, default: int | None = None, high: int = _MOST) -> int:
    """Return an integer under the first of several keys that is present."""
    for key in keys:
        if fields.get(key) is not None:
            return values.integer(WHO, key, fields[key], high=high)
    if default is not None:
        return default
    raise values.missing(
        f"{WHO}: {keys[0]} is missing, and the position encoding of this model type depends on it; got None. "
        f"Add {keys[0]}.",
        keys[0],
        None,
        f"from 1 to {high}",
    )


def _depth(fields: Mapping[str, Any]) -> int:
    keys = ("layer_types", "layers_block_type", "hybrid_override_pattern")  # Nemotron-H's, without a number
    listed = next((fields[key] for key in keys if fields.get(key)), None)
    n = len(listed) if isinstance(listed, list | str) else None
    return _whole(fields, "num_hidden_layers", "n_layer", "n_layers", "num_layers", default=n, high=10_000)


def _heads(fields: Mapping[str, Any]) -> int:
    return _whole(fields, "num_attention_heads", "n_head", "n_heads", "num_heads", high=1 << 16)


def _head_dim(fields: Mapping[str, Any], *keys: str) -> int:
    return _whole(fields, *keys, default=max(_whole(fields, "hidden_size") // _heads(fields), 1), high=8192)


def _alibi(fields: Mapping[str, Any]) -> list[Way]:
    return [Way("layers", _depth(fields), "alibi", {"n_heads": _heads(fields)})]


def _falcon(fields: Mapping[str, Any]) -> list[Way]:
    n_heads = _heads(fields)
    scale = _head_dim(fields) ** -0.5  # the bias is divided as the scores are
    options = {"n_heads": n_heads, "sides": "key", "precision": "falcon-bfloat16", "scale": scale}
    return [Way("layers", _depth(fields), "alibi", options)]


def _t5(fields: Mapping[str, Any]) -> list[Way]:
    options = {
        "n_heads": _heads(fields),
        "n_buckets": _whole(fields, "relative_attention_num_buckets", default=32, high=4096),
        "max_distance": _whole(fields, "relative_attention_max_distance", default=128),
        "score_scale": 1.0,
    }
    depth, shared = _depth(fields), fields["model_type"] != "umt5"
    found = [Way("encoder", depth, "t5", options | {"bidirectional": True}, shared)]
    if fields.get("is_encoder_decoder", True):
        behind = _whole(fields, "num_decoder_layers", default=depth, high=10_000)
        found.append(Way("decoder", behind, "t5", options | {"bidirectional": False}, shared))
    return found


def _deberta(fields: Mapping[str, Any]) -> list[Way]:
    stated = fields.get("pos_att_type") or []
    given = stated.split("|") if isinstance(stated, str) else values.sequence(WHO, "pos_att_type", stated, longest=3)
    words = [str(word).strip().lower() for word in given]
    terms = tuple(term for term in ("c2p", "p2c") if term in words)
    if not fields.get("relative_attention") or not terms:
        return [Way("layers", _depth(fields), "nope", {})]
    clipped, bucketed = (
        values.integer(WHO, key, fields.get(key, -1), low=-1, high=_MOST) > 0
        for key in ("max_relative_positions", "position_buckets")
    )
    far = _whole(fields, "max_relative_positions" if clipped else "max_position_embeddings", default=512)
    n_buckets = _whole(fields, "position_buckets", high=4096) if bucketed else 2 * far
    options = {
        "n_heads": _heads(fields),
        "head_dim": _head_dim(fields, "attention_head_size"),
        "n_buckets": n_buckets,
        "max_distance": far if bucketed else far + 2,  # exact at every distance up to its end
        "terms": terms,
    }
    return [Way("layers", _depth(fields), "deberta", options, shared=False)]


def _swin(fields: Mapping[str, Any]) -> list[Way]:
    window = _whole(fields, "window_size", high=256)
    own = "num_heads" if fields.get("num_heads") is not None else "num_attention_heads"
    depths, heads = (values.sequence(WHO, key, fields.get(key), longest=64) for key in ("depths", own))
    if len(depths) != len(heads):
        raise ValueError(
            f"{WHO}: depths and num_heads must both have one entry for each stage; got {len(depths)} and "
            f"{len(heads)}. Correct the file."
        )
    found = []
    for stage, (depth, n) in enumerate(zip(depths, heads, strict=True)):
        options = {
            "n_heads": values.integer(WHO, f"num_heads[{stage}]", n, high=1 << 16),
            "window": (window, window),
        }
        count = values.integer(WHO, f"depths[{stage}]", depth, high=10_000)
        found.append(Way(f"stage {stage}", count, "swin", options, shared=False))
    return found


def _inkling(fields: Mapping[str, Any]) -> list[Way]:
    """Return the runs of layers with a window and without; those without one grow, where the file has a length."""
    n, shared = _depth(fields), {"d_model": _whole(fields, "hidden_size"), "d_rel": _whole(fields, "d_rel", default=16)}
    window = {
        "n_heads": _whole(fields, "swa_num_attention_heads", default=64, high=1 << 16),
        "extent": _whole(fields, "sliding_window_size", "sliding_window", default=512),
    }
    full = {"n_heads": _heads(fields), "extent": _whole(fields, "rel_extent", default=1024)}
    for widths in (window, full):
        _check_table("inkling", {"layers": n, **shared, "n_heads": widths["n_heads"]})
        _check_table("inkling", {"layers": n, "d_rel": shared["d_rel"], "extent": widths["extent"]})
    grown, also = dict[str, Any](), dict[str, Any]()
    if fields.get("log_scaling_n_floor") is not None:
        weight = values.number(WHO, "log_scaling_alpha", fields.get("log_scaling_alpha", 0.1), low=0.0, high=1e4)
        length = values.integer(WHO, "log_scaling_n_floor", fields["log_scaling_n_floor"], low=2)
        grown = {"temperature": weight, "original_max_len": length}
        also = {"query_temperature": {"law": "inkling", "original_max_len": length, "weight": weight}}
    found, first = list[Way](), 0
    for slides, run in groupby(_slides(fields, n)):
        count = len(list(run))
        part = f"layers {first} to {first + count - 1}" if count > 1 else f"layer {first}"
        options = shared | (window if slides else full | grown)
        found.append(Way(part, count, "inkling", options, shared=False, also={} if slides else also))
        first += count
    return found


def _slides(fields: Mapping[str, Any], n: int) -> list[bool]:
    """Return which of Inkling's layers have a window."""
    if fields.get("layer_types") is not None:
        listed = values.sequence(WHO, "layer_types", fields["layer_types"], longest=10_000)
        if len(listed) == n and all(kind in ("hybrid", "hybrid_sliding") for kind in listed):
            return [kind == "hybrid_sliding" for kind in listed]
        raise values.out_of_range(
            f"{WHO}: layer_types must have hybrid or hybrid_sliding for each of {n} layers; got "
            f"{values.short(listed)}. Correct the file.",
            "layer_types",
            listed,
            f"a list of {n} entries",
        )
    if fields.get("local_layer_ids") is not None:
        local = values.sequence(WHO, "local_layer_ids", fields["local_layer_ids"], longest=10_000)
        return [i in local for i in range(n)]
    return [(i + 1) % 6 != 0 for i in range(n)]


def _table(offset: int = 0, padded: bool = False) -> Callable[[Mapping[str, Any]], list[Way]]:
    """Return a reader of a learned table.

    Args:
        offset: The number of rows before position 0.
        padded: Whether max_position_embeddings includes these rows, which end with that of the padding token.
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
    first = 2 if fields.get("model_type") == "deit" else 1  # tokens before the patches
    options = {"d_model": _whole(fields, "hidden_size"), "max_len": side**2 + first}
    return [Way("layers", _depth(fields), "learned", options)]


def _none(fields: Mapping[str, Any]) -> list[Way]:
    return [Way("layers", _depth(fields), "nope", {})]


def _base(fields: Mapping[str, Any], default: float) -> float:
    own = values.mapping(WHO, "rope_parameters", fields.get("rope_parameters") or {})
    given = own.get("rope_theta", fields.get("rope_theta", default))
    return values.number(WHO, "rope_theta", given, low=1.0, high=1e12, above=True)


def _pixtral(fields: Mapping[str, Any]) -> list[Way]:
    options = {"head_dim": _head_dim(fields, "head_dim"), "base": _base(fields, 1e4), "spectrum": "dealt"}
    return [Way("layers", _depth(fields), "axial_rope", options)]


def _dinov3(fields: Mapping[str, Any]) -> list[Way]:
    head_dim, base = _head_dim(fields), _base(fields, 100.0)
    inv_freq = [math.tau * base ** (-4 * k / head_dim) for k in range(head_dim // 4)]  # an image spans -1 to 1
    return [Way("layers", _depth(fields), "axial_rope", {"head_dim": head_dim, "inv_freq": inv_freq})]


LEARNED = "a learned table"
_ALIBI, _T5 = Kind("ALiBi", _alibi), Kind("T5's buckets of distances", _t5)
_NONE = Kind("no encoding: its layers have none", _none)
_AXIAL = "a rotation by rows and columns of an image (posenc.AxialRoPE)"
_VALUES = Kind(
    "a rotation of values as well as of queries and keys, after which outputs are not rotated back, as posenc.VORoPE "
    "would. Construct posenc.RoPE, and rotate values by its rotate_k",
    None,
)
KINDS: dict[str, Kind] = {
    "bloom": _ALIBI,
    "mpt": _ALIBI,  # transformers ignores alibi and alibi_bias_max of attn_config
    "falcon": Kind("ALiBi", _falcon),  # only if its alibi is true
    **dict.fromkeys(("t5", "mt5", "umt5", "switch_transformers"), _T5),
    "deberta-v2": Kind("DeBERTa's products with tables of distances", _deberta),
    "inkling_text": Kind("Inkling's curves over the distance", _inkling),
    **dict.fromkeys(
        ("inkling2_text", "inkling2_loop_text"),
        Kind(
            "Inkling's curves over the distance, with mixes whose length is clipped, which no encoding does. Construct "
            "posenc.Inkling, and clip what it places",
            None,
        ),
    ),
    "swin": Kind("a learned table of distances in a window", _swin),
    **dict.fromkeys(("gpt2", "openai-gpt", "gpt_neo", "gpt_bigcode", "clvp_decoder"), Kind(LEARNED, _table())),
    **dict.fromkeys(("bert", "electra", "distilbert", "albert", "clip_text_model"), Kind(LEARNED, _table())),
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert", "longformer"), Kind(LEARNED, _table(padded=True))),
    **dict.fromkeys(("biogpt", "opt"), Kind(LEARNED, _table(offset=2))),
    **dict.fromkeys(("vit", "deit"), Kind(LEARNED, _vit)),
    **dict.fromkeys(("jamba", "kimi_linear", "mamba", "mamba2", "falcon_mamba", "nemotron_h"), _NONE),
    "pixtral": Kind(_AXIAL, _pixtral),
    "dinov3_vit": Kind(_AXIAL, _dinov3),
    "clvp_encoder": _VALUES,
    "whisper": Kind("sinusoids in the encoder (posenc.Sinusoidal), and a learned table in the decoder", None),
    "wav2vec2-conformer": Kind("Transformer-XL's distances, or a rotation of the input of each attention", None),
}
