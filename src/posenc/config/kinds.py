"""The kinds of layers that a model has: full, with a window, in chunks, without position."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from posenc.config import values
from posenc.config.model import WHO, Model, open_model
from posenc.config.models import FILLS_IN, ROTATES_IF, ROTATES_IN_WINDOWS_ONLY
from posenc.config.reading import Source

MAX_LAYERS = 10_000
NOPE = "nope"
FULL, SLIDING, CHUNKED, LINEAR = "full_attention", "sliding_attention", "chunked_attention", "linear_attention"
# kinds that turn nothing: they mix positions by recurrence, convolution or not at all
_STILL = {NOPE, LINEAR, "conv", "mamba", "mamba2", "recurrent", "moe", "mlp"}
_LEGACY = {"attention": FULL, "mamba": LINEAR, "recurrent": LINEAR, "global": FULL, "local": SLIDING}
# where `layer_types` is left out, every n-th layer is of full attention: (n, counted from the end of each n)
_EVERY = {
    **dict.fromkeys(("gemma2", "vaultgemma", "t5_gemma_module", "gpt_oss"), 2),
    **dict.fromkeys(("gemma3_text", "t5gemma2_text", "t5gemma2_decoder", "gemma4_text", "gemma4_unified_text"), 6),
    **dict.fromkeys(("diffusion_gemma_text", "embedding_gemma2_text", "beam"), 6),
    **dict.fromkeys(("gemma3n_text", "kolibri1"), 5),
    **dict.fromkeys(("cohere2", "cohere2_moe", "exaone4", "exaone_moe", "olmo3", "afmoe"), 4),
    "ultrabert": 3,
}
_FIRST_OF = {"modernbert": 3, "modernbert-decoder": 3, "granite_swa": 4, "granitemoe_swa": 4, "cwm": 4}
_LINEAR_BUT = {"qwen3_next": 4, "qwen3_5_text": 4, "qwen3_5_moe_text": 4, "olmo_hybrid": 4, "minimax": 2}
_INDEXED = {"axk2", "deepseek_v32", "glm_moe_dsa", "hy_v4", "mistral_large4_text"}
# one kind throughout
_ONLY = {
    **dict.fromkeys(_INDEXED, "indexed_attention"),
    **dict.fromkeys(("falcon_h1", "zaya"), "hybrid"),
    "muse_glimmer_assistant": SLIDING,
    "unlimited_ocr_text": "reference_sliding_attention",
}
# several kinds, whose order transformers fills in by a rule that is not repeated here
UNTOLD = {
    *("bailing_hybrid", "cohere_compass_text", "deepseek_v4", "dots3_note_text", "flint", "granitemoehybrid", "lfm3"),
    *("mimo_v2_flash", "neomme", "qwen4_exp_text", "recurrent_gemma", "zamba2"),
}
_ENDS_FULL = {"beam", "gemma4_text", "gemma4_unified_text", "diffusion_gemma_text", "embedding_gemma2_text"}
_ALWAYS_WINDOW = {"mistral", "mixtral", "ministral", "phi3", "phi4_multimodal", "phimoe", "starcoder2"}
_NO_ROPE_LISTS = {"llama4_text", "smollm3", "mistral_large4_text"}


def layer_types(source: Source) -> Mapping[str, int]:
    """Return how many layers of each kind a model has, in the order of their first layers.

    Kinds are those of `layer_types` in transformers; "nope" are layers of attention without position, whatever the
    file calls them. What the file leaves out is filled in as transformers 5.23 does for the model's type.

    Args:
        source: A configuration, as for `read`.

    Raises:
        ValueError: The number of layers is missing or beyond 10,000, or lists do not agree with it.
        TypeError: A value is of a wrong kind.

    >>> layer_types({"model_type": "smollm3", "num_hidden_layers": 8})
    {'full_attention': 6, 'nope': 2}
    """
    return dict(Counter(layers(open_model(source))))


def layers(model: Model, *, unknown: int | None = None) -> list[str]:
    """Return the kind of each layer, first to last.

    With `unknown`, a file may leave their number or order out: that many are taken then, of full attention where
    nothing says otherwise.
    """
    named = _named(model)
    if named is None and unknown is None and model.name in UNTOLD:
        raise ValueError(f"{WHO}: layer_types is missing, so kinds of layers of {model.name} are unknown. Add it.")
    n = len(named) if named is not None else (model.size("n_layers") or unknown)
    if n is None:
        raise ValueError(f"{WHO}: num_hidden_layers is missing, so layers cannot be counted; got None. Add it.")
    turning = _turning(model, n)
    kinds = named if named is not None else _pattern(model, n, turning)
    bare = without_rotation(model)
    if not _rotates(model):
        turning = [False] * n
    elif model.name in ROTATES_IN_WINDOWS_ONLY and (SLIDING in kinds or model.fields.get("sliding_window")):
        turning = [kind != FULL for kind in kinds]
    turning = [turn and kind not in bare for kind, turn in zip(kinds, turning, strict=True)]
    return [kind if turn or kind in _STILL else NOPE for kind, turn in zip(kinds, turning, strict=True)]


def without_rotation(model: Model) -> set[str]:
    """Return the kinds whose own parameters are null, which is how a file says that they do not rotate."""
    own = model.fields.get("rope_parameters")
    if not isinstance(own, dict) or model.name in FILLS_IN:
        return set()
    nested = any(isinstance(value, dict) for value in own.values())
    return {key for key, value in own.items() if value is None and nested}


def turns(kind: str) -> bool:
    """Return whether layers of a kind rotate."""
    return kind not in _STILL


def window(model: Model, kind: str) -> int | None:
    """Return how many positions a layer sees as the file writes it, None for all before it."""
    if kind == CHUNKED and model.fields.get("attention_chunk_size") is not None:
        return values.integer(WHO, "attention_chunk_size", model.fields["attention_chunk_size"])
    unset = model.fields.get("sliding_window") == 0  # Qwen2-MoE writes 0 where others write null
    return None if unset or "sliding" not in kind else model.size("window")


def thetas(model: Model, n: int) -> list[Any] | None:
    """Return the base of each layer where a file lists them; 0 means no rotation."""
    if (listed := model.fields.get("layer_rope_theta")) is None:
        return None
    return _one_each("layer_rope_theta", listed, n)


def _named(model: Model) -> list[str] | None:
    """Return the kinds that the file lists, in the words of transformers 5."""
    key = "layer_types" if model.fields.get("layer_types") is not None else "layers_block_type"
    if model.fields.get(key) is None:
        return None
    listed = values.sequence(WHO, key, model.fields[key], longest=MAX_LAYERS)
    if not listed:
        raise ValueError(f"{WHO}: {key} must name the kind of each layer; got an empty list. Remove it.")
    for kind in listed:
        if len(values.text(WHO, f"{key}'s entry", kind)) > 64:
            raise ValueError(f"{WHO}: {key} must hold names of kinds; got {values.short(kind)}. Correct the file.")
    n = model.size("n_layers")
    if n is not None and n != len(listed):
        raise ValueError(f"{WHO}: {key} must have one entry a layer, of {n}; got {len(listed)}. Correct the file.")
    return [_LEGACY.get(kind, kind) for kind in listed]


def _one_each(key: str, listed: object, n: int) -> list[Any]:
    """Return a list with a number for each layer."""
    if len(entries := values.sequence(WHO, key, listed, longest=MAX_LAYERS)) != n:
        raise ValueError(f"{WHO}: {key} must have one entry a layer, of {n}; got {len(entries)}. Correct the file.")
    for entry in entries:
        values.number(WHO, f"{key}'s entry", entry, low=0.0, high=1e12)
    return entries


def _turning(model: Model, n: int) -> list[bool]:
    """Return for each layer whether lists of the file let it rotate: in all of them 0 says that it does not."""
    listed = model.fields.get("no_rope_layers")
    if model.name in _NO_ROPE_LISTS and not listed:
        every = values.integer(
            WHO, "no_rope_layer_interval", model.fields.get("no_rope_layer_interval", 4), high=MAX_LAYERS
        )
        return [(i + 1) % every != 0 for i in range(n)]
    if listed:
        return [entry != 0 for entry in _one_each("no_rope_layers", listed, n)]
    if (bases := thetas(model, n)) is not None:
        return [base != 0 for base in bases]
    if model.name in ("muse_glimmer_text", "muse_spark_text"):
        return [(n - 1 - i) % 4 != 0 for i in range(n)]
    return [True] * n


def _rotates(model: Model) -> bool:
    """Return False for a model that can leave rotation out, and does."""
    if model.name not in ROTATES_IF:
        return True
    key, value = ROTATES_IF[model.name]
    return bool(model.fields.get(key, False) == value)


def _pattern(model: Model, n: int, turning: list[bool]) -> list[str]:
    """Return the kinds that transformers fills in where the file has no list."""
    name, fields = model.name, model.fields
    full = fields.get("attn_layer_indices", fields.get("full_attn_idxs"))
    if full is not None or name == "bamba":
        listed = values.sequence(WHO, "attn_layer_indices", [] if full is None else full, longest=MAX_LAYERS)
        chosen = {values.integer(WHO, "attn_layer_indices's entry", i, low=0, high=MAX_LAYERS) for i in listed}
        return [FULL if i in chosen else LINEAR for i in range(n)]
    if name == "llama4_text":
        return [CHUNKED if turn else FULL for turn in turning]
    if name in _LINEAR_BUT:
        every = _period(model, "full_attention_interval", _LINEAR_BUT[name])
        return _each(n, lambda i: (i + 1) % every == 0, LINEAR)
    if name in _FIRST_OF:
        every = _period(model, "global_attn_every_n_layers", _FIRST_OF[name])
        return _each(n, lambda i: i % every == 0)
    if name in _EVERY or fields.get("sliding_window_pattern") is not None:
        return _every(model, n)
    if name in ("muse_glimmer_text", "muse_spark_text"):
        return _each(n, lambda i: (n - 1 - i) % 4 == 0)
    return _windowed(model, n, turning)


def _windowed(model: Model, n: int, turning: list[bool]) -> list[str]:
    """Return kinds where a window, if any, holds for all layers or from one on."""
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
        return [FULL if turn else SLIDING for turn in turning]
    default = 28 if fields.get("max_window_layers") is None else fields["max_window_layers"]
    first = values.integer(WHO, "max_window_layers", default, low=0, high=MAX_LAYERS)
    if model.name == "qwen2_moe":
        return _each(n, lambda i: not ((i + 1) % 2 and i < first))
    return _each(n, lambda i: i < first)


def _every(model: Model, n: int) -> list[str]:
    """Return kinds that repeat: a number of layers, or letters such as LLLG."""
    pattern = model.fields.get("sliding_window_pattern")
    if model.name.startswith("exaone") and model.fields.get("sliding_window", 0) is None:
        return [FULL] * n
    if isinstance(pattern, str):
        if not pattern or set(pattern) - set("LG"):
            raise ValueError(
                f"{WHO}: sliding_window_pattern must be a number or letters L and G; got {values.short(pattern)}."
            )
        return _each(n, lambda i: pattern[i % len(pattern)] == "G")
    key = "global_attn_every_n_layers" if model.name == "afmoe" else "sliding_window_pattern"
    every = _period(model, key, _EVERY.get(model.name, 1))
    return _each(n, lambda i: (i + 1) % every == 0 or (i == n - 1 and model.name in _ENDS_FULL))


def _period(model: Model, key: str, default: int) -> int:
    value = model.fields.get(key)
    return values.integer(WHO, key, default if value is None else value, high=MAX_LAYERS)


def _each(n: int, full: Callable[[int], bool], other: str = SLIDING) -> list[str]:
    return [FULL if full(i) else other for i in range(n)]
