"""Make small configurations of the model types that transformers and posenc know.

All but positions is small: widths, experts, the vocabulary, and the number of layers (as many as show each kind). Keys
about positions have the defaults of the class, as published files spell them: rope_theta at the top and rope_scaling
null, or rope_parameters where the defaults differ by layer. `small.json` holds the small numbers, what a type needs
besides (`by_type`), what published files state and classes leave out (`published`), types of the hub (`by_hand`), and
types of posenc that are no text models (`no_text`).
"""

import json
import logging
import warnings
from pathlib import Path
from typing import Any

from posenc.config.model import open_model
from posenc.config.models import TYPES
from posenc.config.reading import Checked

warnings.filterwarnings("ignore")
logging.getLogger("transformers").setLevel(logging.CRITICAL)

Config = dict[str, Any]
DATA = json.loads(Path(__file__).with_name("small.json").read_text("utf-8"))
N_HEADS = 2
PARTS = ("text_config", "thinker_config", "llm_config", "language_config", "decoder")
DROPPED = (
    *("transformers_version", "_name_or_path", "dtype", "torch_dtype", "is_encoder_decoder", "return_dict"),
    *("output_hidden_states", "output_attentions", "problem_type", "id2label", "label2id", "architectures"),
    *("chunk_size_feed_forward", "_attn_implementation", "attn_implementation", "base_model_tp_plan"),
)
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
WIDTHS = ("hidden_size", "n_embd", "d_model", "dim")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
ORDERS = ("layer_types", "layers_block_type")
TABLES = ("CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM")


def configurations(only: list[str] | None = None) -> dict[str, Config]:
    """Return small configurations by model type: text models first, then models that hold one of them in a part."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    own = {*DATA["by_hand"], "kimi_k2"}
    known = sorted(own.union(CONFIG_MAPPING_NAMES, TYPES))
    asked = only or [name for name in known if name not in DATA["no_text"]]
    texts, wrappers = {}, {}
    for name in asked:
        try:
            config = make(name)
            open_model(Checked(config))
        except Exception:  # of whatever kind: a class that has no defaults, or models of several types in one
            continue
        part = text_key(config)
        if not part and name in own.union(TYPES):
            texts[name] = config
        elif part and text_of(config).get("model_type") in TYPES:
            wrappers[name] = config
    return texts | wrappers


def make(name: str) -> Config:
    """Return a small configuration of a model type."""
    if name in DATA["by_hand"]:
        return {**DATA["by_hand"][name], **DATA["by_hand_all"], "model_type": name, "torch_dtype": "float32"}
    if name == "kimi_k2":
        return {**make("deepseek_v3"), "model_type": name}
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = _kept(_clean(CONFIG_MAPPING[name]().to_dict()))
    part = text_key(config)
    if part:
        inner = config[part]
        nested = text_key(inner)
        if nested:  # a thinker
            inner[nested] = _spelled(_shrunk(_kept(inner[nested]), inner[nested].get("model_type")))
        else:
            inner = _spelled(_shrunk(_kept(inner), inner.get("model_type")))
        config[part] = _published(inner, inner.get("model_type"))
        _shrink_others(config, part)
    else:
        config = _published(_spelled(_shrunk(config, name)), name)
    config["architectures"] = _architecture(name, bool(part))
    config["model_type"], config["torch_dtype"] = name, "float32"
    return config


def text_key(config: Config) -> str:
    """Return the key of the part that holds the text model, "" if there is none."""
    return next((key for key in PARTS if isinstance(config.get(key), dict)), "")


def text_of(config: Config) -> Config:
    """Return the fields of the text model."""
    part = text_key(config)
    return text_of(config[part]) if part else config


def _clean(value: Any) -> Any:
    """Return only what JSON holds; infinite limits of steps are the default of their classes."""
    if isinstance(value, dict):
        return {k: _clean(v) for k, v in value.items() if "inf" not in (str(v), *map(str, v if _is_list(v) else ()))}
    if _is_list(value):
        return [_clean(v) for v in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple | set)


def _kept(config: Config) -> Config:
    return {k: v for k, v in config.items() if k not in DROPPED}


def _first(config: Config, keys: tuple[str, ...]) -> str:
    return next((key for key in keys if isinstance(config.get(key), int)), "")


def _shrunk(config: Config, name: str | None) -> Config:
    """Return the fields of a text model with few heads, few layers and small numbers."""
    out = dict(config)
    _shrink_heads(out)
    n = _shrink_layers(out)
    for key, value in DATA["text"].items():
        old = out.get(key)
        token = key in ("intermediate_size", "eos_token_id", "bos_token_id")
        number = isinstance(old, int) and not isinstance(old, bool)
        if number or (isinstance(old, list) and token):
            out[key] = value
    for key in ("mlp_only_layers", "mlp_layer_types", "moe_layers_enum"):
        if isinstance(out.get(key), list):
            out[key] = out[key][:n]
    for key in ("first_k_dense_replace", "num_dense_layers"):
        if isinstance(out.get(key), int):
            out[key] = min(out[key], 1)
    out = {k: v for k, v in out.items() if v is not None}
    return out | DATA["by_type"].get(name, {})


def _shrink_heads(out: Config) -> None:
    """Keep the width of a head, and whether heads share keys."""
    heads, width = _first(out, HEADS), _first(out, WIDTHS)
    stated = out.get("head_dim") or out.get("attention_head_dim")
    head = stated or (out[width] // out[heads] if heads and width and out[heads] else 64)
    shared = _first(out, ("num_key_value_heads", "multi_query_group_num"))
    if shared and heads:
        out[shared] = N_HEADS if out[shared] == out[heads] else 1
    few = {"num_global_key_value_heads": 1, "swa_num_key_value_heads": 1, "swa_num_attention_heads": N_HEADS}
    out |= {key: n for key, n in few.items() if isinstance(out.get(key), int)}
    if heads:
        out[heads] = N_HEADS
    if width:
        out[width] = N_HEADS * int(head)


def _shrink_layers(out: Config) -> int:
    """Keep as many layers as show each kind, and return their number."""
    n, order = 2, next((key for key in ORDERS if out.get(key)), "")
    if order:
        n = _showing_all(out[order])
        out[order] = out[order][:n]
    if isinstance(out.get("per_layer_config"), dict):
        out["per_layer_config"] = {k: v for k, v in out["per_layer_config"].items() if int(k) < n}
    count = _first(out, LAYERS)
    if count:
        for key, value in out.items():
            if isinstance(value, list) and len(value) == out[count] and key not in ORDERS:
                out[key] = value[:n]
        out[count] = n
    return n


def _showing_all(types: list[str], most: int = 8) -> int:
    """Return how many first layers show every kind, at least two."""
    found = (n for n in range(2, len(types) + 1) if set(types[:n]) == set(types))
    return next(found, min(len(types), most))


def _published(out: Config, name: str | None) -> Config:
    """Add what published files state; null takes a base or an object of parameters away."""
    out |= DATA["published"].get(name, {})
    for key in ("rope_parameters", "rope_theta"):
        if out.get(key, 0) is None:
            out.pop(key)
    for key in ("is_moe_layer", "hybrid_layer_pattern", "moe_layer_freq"):
        if isinstance(out.get(key), list):
            out[key] = out[key][: out.get(_first(out, LAYERS), 2)]
    return out


def _spelled(out: Config) -> Config:
    """Write the parameters of positions as published files do, if one object holds for all layers."""
    found = out.pop("rope_parameters", None)
    if isinstance(found, dict) and not any(isinstance(v, dict) for v in found.values()):
        out["rope_theta"] = found.get("rope_theta", out.get("rope_theta"))
        if found.get("partial_rotary_factor") is not None and out.get("partial_rotary_factor") is None:
            out["partial_rotary_factor"] = found["partial_rotary_factor"]
        rest = {k: v for k, v in found.items() if k not in ("rope_theta", "partial_rotary_factor")}
        out["rope_scaling"] = None if rest.get("rope_type", "default") == "default" and len(rest) <= 1 else rest
    elif isinstance(found, dict):
        out["rope_parameters"] = found
    if out.get("rope_theta", 0) is None:
        out.pop("rope_theta")
    return out


def _shrink_others(config: Config, part: str) -> None:
    """Make the parts for images and sounds small, and the numbers of tokens fit the vocabulary."""
    if isinstance(config.get("vocab_size"), int):
        config["vocab_size"] = DATA["text"]["vocab_size"]
    for key, value in config.items():
        if key != part and isinstance(value, dict) and key.endswith("_config"):
            kept = {k: v for k, v in _kept(value).items() if v is not None}
            config[key] = {k: v if isinstance(v, dict) else DATA["other"].get(k, v) for k, v in kept.items()}
            if isinstance(config[key].get("layer_types"), list):
                config[key]["layer_types"] = config[key]["layer_types"][:1]
    tokens = {key: value for key, value in DATA["text"].items() if "token" in key}
    config |= {key: value for key, value in tokens.items() if isinstance(config.get(key), int)}


def _architecture(name: str, wraps: bool) -> list[str]:
    """Return the name of the model class as files state it."""
    from transformers.models.auto import modeling_auto

    stated = DATA["published"].get(name, {}).get("architectures")
    if stated:
        return list(stated)
    order = (TABLES[1], TABLES[0], TABLES[2]) if wraps else TABLES
    tables = [*(f"MODEL_FOR_{table}_MAPPING_NAMES" for table in order), "MODEL_MAPPING_NAMES"]
    found = next((names[name] for table in tables if name in (names := getattr(modeling_auto, table, {}))), [])
    return [found] if isinstance(found, str) else list(found)[:1]
