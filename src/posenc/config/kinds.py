"""The kinds of layers in a model: full attention, with a window, in chunks, without position."""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, TypeVar

from posenc.config import values
from posenc.config.defaults import parameters
from posenc.config.model import WHO, Model, open_model
from posenc.config.models import FILLS_IN, N_LAYERS, ROTATES_IF, ROTATES_IN_WINDOWS_ONLY
from posenc.config.patterns import (
    CHUNKED,
    CROSS,
    FULL,
    INDEXED,
    LINEAR,
    MAX_LAYERS,
    READS_FLAG,
    SLIDING,
    dense,
    full_kind,
    pattern,
)
from posenc.config.reading import Source

NOPE = "nope"
MAX_KINDS = 64  # each kind is read and constructed on its own; no model has ten
# kinds that do not rotate: recurrence, convolution, no attention, or attention to an image
_STILL = {NOPE, LINEAR, CROSS, "conv", "mamba", "mamba2", "recurrent", "moe", "mlp"}
_LEGACY = {
    **{"attention": FULL, "mamba": LINEAR, "recurrent": LINEAR, "global": FULL, "local": SLIDING},
    **{"m": LINEAR, "g": "hybrid"},  # Zamba 2, as first published
    **dict.fromkeys(("deepseek_sparse_attention", "qwen_sparse_attention"), INDEXED),
}
_NO_ROPE_LISTS = {"llama4_text", "smollm3", "mistral_large4_text"}
# types whose files list the attention and the MLP of a layer as two layers
_PAIRED = {"dory"}
_Kind = TypeVar("_Kind", bound=Hashable)


def layer_types(source: Source) -> Mapping[str, int]:
    """Return the number of layers of each kind in a model, in the order of their first layers.

    Kinds are those of `layer_types` in transformers. Layers of attention without position are always "nope", layers
    that attend only to an image "cross_attention", and layers that a file does not scale, while it scales others,
    "unscaled_attention". Missing entries are filled in as in transformers 5.24 for the model's type. A layer with
    several attention modules counts that many times, as in its cache.

    Args:
        source: A configuration, as for `read`.

    Raises:
        ValueError: The number of layers is missing or above 10,000, lists contradict it, or there are more than 64
            kinds.
        TypeError: A value has a wrong type.

    >>> layer_types({"model_type": "smollm3", "num_hidden_layers": 8})
    {'full_attention': 6, 'nope': 2}
    """
    return dict(Counter(layers(open_model(source))))


def layers(model: Model, *, unknown: int | None = None) -> list[str]:
    """Return the kind of each layer, first to last.

    If `unknown` is given, a file may leave out their number or order: then it has that many layers, of full attention
    by default.
    """
    named = _named(model)
    n = len(named) if named is not None else (_count(model) or unknown)
    if n is None:
        raise values.missing(
            f"{WHO}: num_hidden_layers is missing, so layers cannot be counted; got None. Add it.",
            "num_hidden_layers",
            None,
            f"from 1 to {MAX_LAYERS}",
        )
    rotating = _rotating(model, n)
    kinds = named if named is not None else pattern(model, n, rotating)
    distinct(kinds)
    bare = without_rotation(model)
    if not _rotates(model):
        rotating = [False] * n
    elif model.name in ROTATES_IN_WINDOWS_ONLY:
        rotating = _rotating_in_windows(model, kinds)
    rotating = [rotates and kind not in bare for kind, rotates in zip(kinds, rotating, strict=True)]
    return [kind if rotates or kind in _STILL else NOPE for kind, rotates in zip(kinds, rotating, strict=True)]


def distinct(kinds: Iterable[_Kind]) -> list[_Kind]:
    """Return the distinct kinds of layers, in the order of their first layers.

    Raises:
        ValueError: There are more than 64, which no model has and which would take long to read.
    """
    found = list(dict.fromkeys(kinds))
    if len(found) > MAX_KINDS:
        raise values.out_of_range(
            f"{WHO}: a model has at most {MAX_KINDS} kinds of layers; got {len(found)}. Correct the file.",
            "layer_types",
            found,
            f"at most {MAX_KINDS} kinds",
        )
    return found


def without_rotation(model: Model) -> set[str]:
    """Return the kinds whose own parameters are null: by this a file states that they do not rotate."""
    own = parameters(model.fields, model.name)
    if not isinstance(own, dict) or model.name in FILLS_IN:
        return set()
    nested = any(isinstance(value, dict) for value in own.values())
    return {key for key, value in own.items() if value is None and nested}


def rotates(kind: str) -> bool:
    """Return whether layers of a kind rotate."""
    return kind not in _STILL


def window(model: Model, kind: str) -> int | None:
    """Return the number of positions that a layer sees, as in the file; None for all before it."""
    if kind == CHUNKED and model.fields.get("attention_chunk_size") is not None:
        return values.integer(WHO, "attention_chunk_size", model.fields["attention_chunk_size"])
    if model.name == "mimo_v2_flash" and "sliding" in kind and model.fields.get("sliding_window_size") is not None:
        return values.integer(WHO, "sliding_window_size", model.fields["sliding_window_size"]) + 1  # without itself
    unset = model.fields.get("sliding_window") == 0  # Qwen2-MoE writes 0 where others write null
    unset |= model.name in READS_FLAG and not model.fields.get("use_sliding_window", False)
    return None if unset or "sliding" not in kind else model.size("window")


def thetas(model: Model, n: int) -> list[Any] | None:
    """Return the base of each layer if a file lists them; 0 means no rotation."""
    if (listed := model.fields.get("layer_rope_theta")) is None:
        return None
    return _one_each("layer_rope_theta", listed, n)


def _named(model: Model) -> list[str] | None:
    """Return the kinds that the file lists, with the names of transformers 5."""
    key = "layer_types" if model.fields.get("layer_types") is not None else "layers_block_type"
    if model.fields.get(key) is None:
        return None
    listed = values.sequence(WHO, key, model.fields[key], longest=MAX_LAYERS)
    if not listed:
        raise values.out_of_range(
            f"{WHO}: {key} must have the kind of each layer; got an empty list. Remove it.",
            key,
            [],
            "one entry for each layer",
            fix=f"Remove {key}: then the model type's own pattern is used.",
        )
    for kind in listed:
        if len(values.text(WHO, f"{key}'s entry", kind)) > 64:
            raise values.out_of_range(
                f"{WHO}: {key} must have names of kinds; got {values.short(kind)}. Correct the file.",
                key,
                kind,
                "names of at most 64 characters",
            )
    n = _count(model)
    if n is not None and n != len(listed):
        raise values.out_of_range(
            f"{WHO}: {key} must have one entry for each of the {n} layers; got {len(listed)}. Correct the file.",
            key,
            listed,
            f"a list of {n} entries",
            fix=f"Make {key} and the number of layers agree.",
        )
    if model.name in _PAIRED and "mlp" in listed:
        listed = listed[::2]
    named = [_LEGACY.get(kind, kind) for kind in listed]
    return [full_kind(model) if kind == FULL else kind for kind in named]


def _count(model: Model) -> int | None:
    """Return the number of layers in a file, None if it is missing; layers with several attentions count repeatedly."""
    n, fields = model.size("n_layers", N_LAYERS.get(model.name) if model.outer else None), model.fields
    if n is not None and model.name == "longcat_flash":
        if fields.get("num_hidden_layers") is None:
            return 2 * n
        if n % 2:
            raise values.out_of_range(
                f"{WHO}: num_hidden_layers of longcat_flash counts two attentions for each layer, so it must be even; "
                f"got {n}. Correct the file.",
                "num_hidden_layers",
                n,
                "an even number",
            )
    if n is not None and model.name == "hrm_text" and fields.get("num_layers_per_stack") is None:
        high, low = (
            default if fields.get(key) is None else values.integer(WHO, key, fields[key], high=MAX_LAYERS)
            for key, default in (("H_cycles", 2), ("L_cycles", 3))
        )
        return values.integer(WHO, "num_hidden_layers over all cycles", n * high * (low + 1), high=MAX_LAYERS)
    return n


def _one_each(key: str, listed: object, n: int) -> list[Any]:
    """Return a list with a number for each layer."""
    if len(entries := values.sequence(WHO, key, listed, longest=MAX_LAYERS)) != n:
        raise values.out_of_range(
            f"{WHO}: {key} must have one entry for each of the {n} layers; got {len(entries)}. Correct the file.",
            key,
            listed,
            f"a list of {n} entries",
            fix=f"Make {key} and the number of layers agree.",
        )
    for entry in entries:
        values.number(WHO, f"{key}'s entry", entry, low=0.0, high=1e12)
    return entries


def _rotating(model: Model, n: int) -> list[bool]:
    """Return for each layer whether it rotates by the lists of the file, in which 0 means that it does not."""
    listed = model.fields.get("no_rope_layers")
    if not listed and (model.name in _NO_ROPE_LISTS or _has_interval(model)):
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


def _has_interval(model: Model) -> bool:
    """Return whether a file for other code states that every n-th layer does not rotate, as SmolLM 3's does."""
    return not model.is_known and isinstance(model.fields.get("no_rope_layer_interval"), int)


def _rotating_in_windows(model: Model, kinds: list[str]) -> list[bool]:
    """Return which layers rotate in a model whose layers of full attention do not."""
    rotating = [kind == SLIDING for kind in kinds]
    if model.fields.get("sliding_window", 0) is None and ROTATES_IN_WINDOWS_ONLY[model.name] != "sliding":
        rotating = [ROTATES_IN_WINDOWS_ONLY[model.name] == "all"] * len(kinds)
    if model.name == "cohere2_moe" and model.fields.get("prefix_dense_sliding_window_pattern", 1) == 1:
        rotating = [rotates or mlp for rotates, mlp in zip(rotating, dense(model, len(kinds)), strict=True)]
    return rotating


def _rotates(model: Model) -> bool:
    """Return False for a model whose configuration disables rotation."""
    if model.name == "olmo_hybrid":
        own = model.fields.get("rope_parameters")
        holder = own if isinstance(own, dict) and "rope_theta" in own else model.fields
        return holder.get("rope_theta", 0) is not None
    if model.name not in ROTATES_IF:
        return True
    key, value = ROTATES_IF[model.name]
    return bool(model.fields.get(key, False) == value)
