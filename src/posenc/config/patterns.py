"""The kinds of layers that transformers 5.23 fills in if a file does not list them."""

from collections.abc import Callable

from posenc.config import values
from posenc.config.model import WHO, Model

MAX_LAYERS = 10_000
FULL, SLIDING, CHUNKED, LINEAR = "full_attention", "sliding_attention", "chunked_attention", "linear_attention"
# full attention to an image, which has no positions in the text, and full attention of layers that are not scaled in a
# model that scales others
CROSS, UNSCALED = "cross_attention", "unscaled_attention"
# without `layer_types`, every n-th layer has full attention, the last of each n
_EVERY = {
    **dict.fromkeys(("gemma2", "vaultgemma", "t5_gemma_module", "gpt_oss"), 2),
    **dict.fromkeys(("gemma3_text", "t5gemma2_text", "t5gemma2_decoder", "gemma4_text", "gemma4_unified_text"), 6),
    **dict.fromkeys(("diffusion_gemma_text", "embedding_gemma2_text", "beam"), 6),
    **dict.fromkeys(("gemma3n_text", "kolibri1"), 5),
    **dict.fromkeys(("cohere2", "cohere2_moe", "exaone4", "exaone_moe", "olmo3", "afmoe"), 4),
    "ultrabert": 3,
}
_FIRST_OF = {"modernbert": 3, "modernbert-decoder": 3, "granite_swa": 4, "granitemoe_swa": 4, "cwm": 4}
_LINEAR_BUT = {"qwen3_next": 4, "qwen3_5_text": 4, "qwen3_5_moe_text": 4, "olmo_hybrid": 4}
_INDEXED = {"axk2", "deepseek_v32", "glm_moe_dsa", "hy_v4", "mistral_large4_text"}
# types with one kind of layer
_ONLY = {
    **dict.fromkeys(_INDEXED, "indexed_attention"),
    **dict.fromkeys(("falcon_h1", "zaya"), "hybrid"),
    "muse_glimmer_assistant": SLIDING,
    "unlimited_ocr_text": "reference_sliding_attention",
}
_ENDS_FULL = {"beam", "gemma4_text", "gemma4_unified_text", "diffusion_gemma_text", "embedding_gemma2_text"}
_ALWAYS_WINDOW = {"mistral", "mixtral", "ministral", "phi3", "phi4_multimodal", "phimoe", "starcoder2"}
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
    if (listed := _listed(model, n)) is not None:
        return listed
    if name == "llama4_text":
        return [CHUNKED if rotates else FULL for rotates in rotating]
    if name == "recurrent_gemma":
        blocks = values.sequence(
            WHO,
            "block_types",
            model.fields.get("block_types") or ["recurrent", "recurrent", "attention"],
            longest=MAX_LAYERS,
        )
        return [SLIDING if blocks[i % len(blocks)] == "attention" else LINEAR for i in range(n)]
    if name == "minimax":
        return _each(n, lambda i: i % 2 == 0, LINEAR)
    if name in _LINEAR_BUT:
        every = _period(model, "full_attention_interval", _LINEAR_BUT[name])
        return _each(n, lambda i: (i + 1) % every == 0 or (name == "olmo_hybrid" and i == n - 1 < every), LINEAR)
    if name in _FIRST_OF:
        every = _period(model, "global_attn_every_n_layers", _FIRST_OF[name])
        return _each(n, lambda i: i % every == 0)
    if name in _EVERY or model.fields.get("sliding_window_pattern") is not None:
        return _every(model, n)
    if name in ("muse_glimmer_text", "muse_spark_text"):
        return _each(n, lambda i: (n - 1 - i) % 4 == 0)
    return _windowed(model, n, rotating)


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


def _windowed(model: Model, n: int, rotating: list[bool]) -> list[str]:
    """Return the kinds if a window applies to all layers, to those from one on, or to none."""
    fields = model.fields
    if model.name in _ONLY:
        return [_ONLY[model.name]] * n
    if not fields.get("sliding_window"):
        return [FULL] * n
    if model.name in _ALWAYS_WINDOW:
        return [SLIDING] * n
    if not fields.get("use_sliding_window"):
        return [FULL] * n
    if model.name == "smollm3":
        return [FULL if rotates else SLIDING for rotates in rotating]
    default = 28 if fields.get("max_window_layers") is None else fields["max_window_layers"]
    first = values.integer(WHO, "max_window_layers", default, low=0, high=MAX_LAYERS)
    if model.name == "qwen2_moe":
        return _each(n, lambda i: not ((i + 1) % 2 and i < first))
    return _each(n, lambda i: i < first)


def _every(model: Model, n: int) -> list[str]:
    """Return kinds in a repeating pattern: a number of layers, or letters such as LLLG."""
    letters = model.fields.get("sliding_window_pattern")
    if model.name.startswith("exaone") and model.fields.get("sliding_window", 0) is None:
        return [FULL] * n
    if isinstance(letters, str):
        if not letters or set(letters) - set("LG"):
            raise values.out_of_range(
                f"{WHO}: sliding_window_pattern must be a number or letters L and G; got {values.short(letters)}. "
                "Correct it.",
                "sliding_window_pattern",
                letters,
                "a number, or letters L and G",
            )
        return _each(n, lambda i: letters[i % len(letters)] == "G")
    key = "global_attn_every_n_layers" if model.name == "afmoe" else "sliding_window_pattern"
    every = _period(model, key, _EVERY.get(model.name, 1))
    if model.name == "cohere2_moe":  # it counts its dense layers separately
        first, own = _dense_first(model, n), _period(model, "prefix_dense_sliding_window_pattern", 1)
        return _each(n, lambda i: (i + 1) % own == 0 if i < first else (i - first + 1) % every == 0)
    return _each(n, lambda i: (i + 1) % every == 0 or (i == n - 1 and model.name in _ENDS_FULL))


def _period(model: Model, key: str, default: int) -> int:
    value = model.fields.get(key)
    return values.integer(WHO, key, default if value is None else value, high=MAX_LAYERS)


def _each(n: int, full: Callable[[int], bool], other: str = SLIDING) -> list[str]:
    return [FULL if full(i) else other for i in range(n)]
