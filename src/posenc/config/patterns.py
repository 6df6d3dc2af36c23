"""The kinds of layers that transformers 5.24 fills in if a file does not list them."""

from collections.abc import Callable

from posenc.config import values
from posenc.config.model import WHO, Model
from posenc.config.models import TYPES

MAX_LAYERS = 10_000
FULL, SLIDING, CHUNKED, LINEAR = "full_attention", "sliding_attention", "chunked_attention", "linear_attention"
# full attention to an image, which has no positions in the text, and full attention of layers that are not scaled in a
# model that scales others
CROSS, UNSCALED = "cross_attention", "unscaled_attention"
# without `layer_types`, every n-th layer has full attention, the last of each n: n, and the key for it, if there is one
_EVERY: dict[str, tuple[int, str]] = {
    **dict.fromkeys(("gemma2", "vaultgemma", "t5_gemma_module", "gpt_oss"), (2, "")),
    **dict.fromkeys(("gemma4_text", "gemma4_unified_text", "diffusion_gemma_text", "beam", "neomme"), (6, "")),
    **dict.fromkeys(("gemma3_text", "t5gemma2_text", "t5gemma2_decoder"), (6, "sliding_window_pattern")),
    "embedding_gemma2_text": (6, "sliding_window_pattern"),
    **dict.fromkeys(("gemma3n_text", "kolibri1"), (5, "")),
    **dict.fromkeys(("olmo3", "dory"), (4, "")),
    **dict.fromkeys(("cohere2", "cohere2_moe", "exaone4", "exaone_moe"), (4, "sliding_window_pattern")),
    "afmoe": (4, "global_attn_every_n_layers"),
    "ultrabert": (3, ""),
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), (4, "full_attention_interval")),
    "qwen4_exp_text": (4, "full_attention_interval"),
    "olmo_hybrid": (4, ""),
    "bailing_hybrid": (6, "layer_group_size"),
}
# of these, types whose other layers have linear attention, and types whose last layer has full attention in any case
_LINEAR_BUT = {"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "qwen4_exp_text", "olmo_hybrid", "bailing_hybrid"}
_ENDS_FULL = {"beam", "gemma4_text", "gemma4_unified_text", "diffusion_gemma_text", "embedding_gemma2_text", "neomme"}
# as `_EVERY`, but the first of each n
_FIRST_OF: dict[str, tuple[int, str]] = {
    **dict.fromkeys(("modernbert", "modernbert-decoder"), (3, "global_attn_every_n_layers")),
    **dict.fromkeys(("granite_swa", "granitemoe_swa", "cwm"), (4, "")),
}
# types with other patterns: the kind of layer i of n
_OF_LAYER: dict[str, Callable[[int, int], str]] = {
    "flint": lambda i, n: FULL if i < 2 or i % 4 == 1 or i == n - 1 else SLIDING,
    "lara_mini": lambda i, n: (LINEAR, SLIDING, LINEAR, FULL, SLIDING)[i % 5],
    "lfm3": lambda i, n: FULL if i % 4 == 2 else SLIDING if i % 4 == 0 < i else "conv",
    "mimo_v2_flash": lambda i, n: FULL if i == 0 or (i + 1) % 6 == 0 else SLIDING,
    "minimax": lambda i, n: LINEAR if i % 2 else FULL,
    **dict.fromkeys(("muse_glimmer_text", "muse_spark_text"), lambda i, n: SLIDING if (n - 1 - i) % 4 else FULL),
}
INDEXED = "indexed_attention"
_INDEXED = {"axk2", "deepseek_v32", "glm_moe_dsa", "hy_v4", "hy_v4_vl_text", "mistral_large4_text"}
# types with one kind of layer
_ONLY = {
    **dict.fromkeys(_INDEXED, INDEXED),
    **dict.fromkeys(("falcon_h1", "zaya"), "hybrid"),
    "muse_glimmer_assistant": SLIDING,
    "unlimited_ocr_text": "reference_sliding_attention",
    "granitemoehybrid": LINEAR,
}
_ALWAYS_WINDOW = {"mistral", "mixtral", "ministral", "phi3", "phi4_multimodal", "phimoe", "starcoder2"}
# types with a window from a layer on, if a flag is true: the default of max_window_layers
_WINDOW_FROM = {
    **dict.fromkeys(("qwen2", "qwen2_moe", "qwen3", "deepseek_ocr2_encoder", "qwen2_5_omni_text"), 28),
    "qwen2_5_omni_talker": 28,
    **dict.fromkeys(("qwen2_vl_text", "qwen2_5_vl_text"), 80),
}
# types that read the flag, and types that have such a window without a flag
READS_FLAG = {*_WINDOW_FROM, "qwen3_moe", "smollm3"}
_WITHOUT_FLAG = {"dots1": 62, "qwen3_omni_moe_talker_code_predictor": 28}
# types whose files list layers by number: (key, the kind of these, the kind of the others, the default list)
_LISTED: dict[str, tuple[str, str, str, list[int] | None]] = {
    "bamba": ("attn_layer_indices", FULL, LINEAR, []),
    "lfm2": ("full_attn_idxs", FULL, "conv", None),
    "mllama_text_model": ("cross_attention_layers", CROSS, FULL, list(range(3, 40, 5))),
    "molmo2_text": ("rope_scaling_layers", FULL, UNSCALED, None),
}


def pattern(model: Model, n: int, rotating: list[bool]) -> list[str]:
    """Return the kinds of n layers, first to last.

    Args:
        model: The model.
        n: The number of layers.
        rotating: Which layers rotate by the lists of the file; in some types the kind depends on it.

    Raises:
        TypeError: A number is not an integer, or a list of layers is not a list.
        ValueError: A number is out of range.
    """
    name = model.name
    if (listed := _listed(model, n) or _sparse(model, n)) is not None:
        return listed
    if name == "llama4_text":
        chunked = CHUNKED if model.fields.get("attention_chunk_size", 1) is not None else FULL
        return [chunked if rotates else FULL for rotates in rotating]
    if name == "recurrent_gemma":
        blocks = values.sequence(
            WHO,
            "block_types",
            model.fields.get("block_types") or ["recurrent", "recurrent", "attention"],
            longest=MAX_LAYERS,
        )
        return [SLIDING if blocks[i % len(blocks)] == "attention" else LINEAR for i in range(n)]
    if name == "dots3_note_text":
        return _dots3(model, n)
    if name in _OF_LAYER:
        return [_OF_LAYER[name](i, n) for i in range(n)]
    if name in _FIRST_OF:
        every = _period(model, *_FIRST_OF[name])
        return _each(n, lambda i: i % every == 0)
    if name in _EVERY or (name not in TYPES and model.fields.get("sliding_window_pattern") is not None):
        return _every(model, n)
    return _windowed(model, n, rotating)


def full_kind(model: Model) -> str:
    """Return the kind of layers that a file lists as full attention, some of which attend through an indexer."""
    dots3 = model.name == "dots3_note_text" and model.fields.get("use_dsa", "per_layer_config" not in model.fields)
    return INDEXED if dots3 or model.name == "qwen4_exp_text" else FULL


def dense(model: Model, n: int) -> list[bool]:
    """Return which layers have a dense MLP in Cohere 2 MoE, where attention differs in these."""
    if (listed := model.fields.get("mlp_layer_types")) is None:
        first = _dense_first(model, n)
        return [i < first for i in range(n)]
    if len(entries := values.sequence(WHO, "mlp_layer_types", listed, longest=MAX_LAYERS)) != n:
        raise values.out_of_range(
            f"{WHO}: mlp_layer_types must have one entry for each of the {n} layers; got {len(entries)}. Correct it.",
            "mlp_layer_types",
            listed,
            f"a list of {n} entries",
        )
    return [entry == "dense" for entry in entries]


def _dense_first(model: Model, n: int) -> int:
    given = model.fields.get("first_k_dense_replace")
    return 0 if given is None else values.integer(WHO, "first_k_dense_replace", given, low=0, high=n)


def _listed(model: Model, n: int) -> list[str] | None:
    """Return the kinds if a file lists the layers of one of two kinds, else None."""
    key, inside, outside, default = _LISTED.get(model.name, ("attn_layer_indices", FULL, LINEAR, None))
    listed = default if model.fields.get(key) is None else model.fields[key]
    if listed is None:
        return None
    entries = values.sequence(WHO, key, listed, longest=MAX_LAYERS)
    chosen = {values.integer(WHO, f"{key}'s entry", i, low=0, high=MAX_LAYERS) for i in entries}
    return [inside if i in chosen else outside for i in range(n)]


def _sparse(model: Model, n: int) -> list[str] | None:
    """Return the kinds of MiniMax-M3, whose files state which layers attend sparsely; None if a file does not."""
    around, key = "sparse_attention_config", "sparse_attention_freq"
    if model.name != "minimax_m3_vl_text" or not model.fields.get(around):
        return None
    if (listed := values.mapping(WHO, around, model.fields[around]).get(key)) is None:
        return None
    if len(entries := values.sequence(WHO, key, listed, longest=MAX_LAYERS)) != n:
        raise values.out_of_range(
            f"{WHO}: {key} must have one entry for each of the {n} layers; got {len(entries)}. Correct it.",
            key,
            entries,
            f"a list of {n} entries",
        )
    return ["minimax_m3_sparse" if entry else FULL for entry in entries]


def _dots3(model: Model, n: int) -> list[str]:
    """Return the kinds of Dots 3, whose layers of full attention have an indexer unless a file switches it off."""
    full = FULL if model.fields.get("use_dsa") is False else INDEXED
    slides = model.fields.get("use_sliding_window", True)
    return [full if not slides or i < 2 or i % 4 == 1 else SLIDING for i in range(n)]


def _windowed(model: Model, n: int, rotating: list[bool]) -> list[str]:
    """Return the kinds if a window applies to all layers, to those from one on, or to none."""
    fields, name = model.fields, model.name
    if name in _ONLY:
        return [_ONLY[name]] * n
    if not fields.get("sliding_window"):
        return [FULL] * n
    if name in _ALWAYS_WINDOW:
        return [SLIDING] * n
    if name not in _WITHOUT_FLAG and (not fields.get("use_sliding_window") or name in TYPES.keys() - READS_FLAG):
        return [FULL] * n
    if name == "qwen3_moe":
        return [SLIDING] * n
    if name == "smollm3":
        return [FULL if rotates else SLIDING for rotates in rotating]
    usual = {**_WINDOW_FROM, **_WITHOUT_FLAG}.get(name, 28)
    default = usual if fields.get("max_window_layers") is None else fields["max_window_layers"]
    first = values.integer(WHO, "max_window_layers", default, low=0, high=MAX_LAYERS)
    if name == "qwen2_moe":
        return _each(n, lambda i: not ((i + 1) % 2 and i < first))
    return _each(n, lambda i: i < first)


def _every(model: Model, n: int) -> list[str]:
    """Return kinds in a repeating pattern: a number of layers, or letters such as LLLG."""
    name = model.name
    letters = model.fields.get("sliding_window_pattern")
    if name.startswith("exaone") and model.fields.get("sliding_window", 0) is None:
        return [FULL] * n
    default, key = _EVERY.get(name, (1, "sliding_window_pattern"))
    if isinstance(letters, str) and key == "sliding_window_pattern":
        if not letters or set(letters) - set("LG"):
            raise values.out_of_range(
                f"{WHO}: sliding_window_pattern must be a number or letters L and G; got {values.short(letters)}. "
                "Correct it.",
                "sliding_window_pattern",
                letters,
                "a number, or letters L and G",
            )
        return _each(n, lambda i: letters[i % len(letters)] == "G")
    every = _period(model, default, key)
    if name == "cohere2_moe":  # it counts its dense layers separately
        first, own = _dense_first(model, n), _period(model, 1, "prefix_dense_sliding_window_pattern")
        return _each(n, lambda i: (i + 1) % own == 0 if i < first else (i - first + 1) % every == 0)
    last = n - 1 if name in _ENDS_FULL or (name == "olmo_hybrid" and n < every) else None
    full, other = full_kind(model), LINEAR if name in _LINEAR_BUT else SLIDING
    return [full if (i + 1) % every == 0 or i == last else other for i in range(n)]


def _period(model: Model, default: int, key: str) -> int:
    value = model.fields.get(key) if key else None
    return values.integer(WHO, key, default if value is None else value, high=MAX_LAYERS)


def _each(n: int, full: Callable[[int], bool]) -> list[str]:
    return [FULL if full(i) else SLIDING for i in range(n)]
