"""Rewrite a file from its publisher's spelling to that of transformers 5, as transformers does when it loads the file.

Keys that state something else than positions stay, so that a file written from the result has them.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from posenc.config import values
from posenc.config.models import TYPES

if TYPE_CHECKING:
    from posenc.config.model import Model

WHO = "config"
LENGTH = "original_max_position_embeddings"
FULL, SLIDING = "full_attention", "sliding_attention"
_MAX_LAYERS = 10_000
Fields = dict[str, Any]

# ---- params.json of Mistral and Meta, whose keys transformers' converter renames

PARAMS = "params.json"
_OF_PARAMS = {"dim", "n_layers", "n_heads"}  # DistilBERT has these too, and a model_type
_RENAMED = {"dim": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads"}
_YARN = {"factor": "factor", LENGTH: LENGTH, "beta": "beta_fast", "alpha": "beta_slow"}
_SCALINGS = ("yarn", "llama_4_scaling")
# Meta's code has the parameters of its scaling, which a file only switches on
_SCALED = "use_scaled_rope"
_OF_META = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, LENGTH: 8192}
_SMALLEST_WITH_8 = 4096  # Llama 3.2's text models are narrower, and transformers' converter gives them another factor
_OF_LLAMA4_SCALING = {"rope_scaling_factor": 16.0, "rope_high_freq_factor": 1.0}
_OF_LLAMA4 = {"nope_layer_interval", "moe_args", *_OF_LLAMA4_SCALING}
_OFF_IN_LLAMA4 = {"attn_temperature_tuning": False, "attention_chunk_size": None}  # unless a file states them

# ---- DeepSeek-V4: the kind of layer for each compression ratio, and its own defaults

_OF_RATIO = {0: SLIDING, 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
_COMPRESS_BASE, _SHARE, _HEAD_DIM = 160_000, 64 / 512, 512

# Zamba 2's order of layers in transformers, for the only number of layers for which it has one
_OF_ZAMBA2 = ["hybrid" if i in {6, 12, 18, 24, 30, 36, 42, 47, 51} else "linear_attention" for i in range(54)]

# lists with an entry for each layer, and for layers that predict further tokens: the base and the share of a kind of
# layer, all of these, and those whose further entries no layer of transformers reads
_BY_KIND = ("rope_theta", "partial_rotary_factors")
_LISTS = ("layer_types", "use_rope_layers", *_BY_KIND)
_CUT = {
    "no_rope_layers": {"llama4_text", "mistral_large4_text", "smollm3"},
    "layer_rope_theta": {"granite_swa", "granitemoe_swa", "muse_glimmer_text", "muse_spark_text"},
}  # and the types that read them


def rewrite(model: "Model") -> None:
    """Rewrite the fields of a model.

    Raises:
        TypeError: A value has a wrong type.
        ValueError: A value is missing, or contradicts another.
    """
    if not model.outer and model.model_type in (None, "transformer") and model.fields.keys() >= _OF_PARAMS:
        model.native = PARAMS
        model.fields = _of_params(model)
        return
    if model.outer and (inner := _TEXT_OF.get(str(model.outer[0][1].get("model_type")))):
        model.model_type = inner
    model.fields = {**model.fields, **_cut(model)}
    if model.name in _RULES:
        model.fields = _RULES[model.name](model)
    elif not model.is_known and isinstance(model.fields.get("compress_ratios"), list):
        model.fields = _deepseek_v4(model)
    elif not model.is_known and any(isinstance(model.fields.get(key), list) for key in _BY_KIND):
        model.fields = _of_lists(model)


# ---- params.json


def _of_params(model: "Model") -> Fields:
    fields = {_RENAMED.get(key, key): value for key, value in model.fields.items() if key not in _SCALINGS}
    fields |= _windows(model, fields)
    yarn, growth = (
        values.mapping(WHO, key, {} if model.fields.get(key) is None else model.fields[key]) for key in _SCALINGS
    )
    own = {_YARN[key]: value for key, value in yarn.items() if key in _YARN}
    for key in yarn.keys() - _YARN.keys() - {"apply_scale"}:
        _unread(model, f"yarn.{key}", yarn[key], "it has no such parameter")
    if yarn:
        own["rope_type"] = "yarn"
        if not _applies_scale(model, yarn):
            own["attention_factor"] = 1.0
    own |= _of_meta(model, fields)
    if growth:
        length = values.integer(WHO, f"llama_4_scaling.{LENGTH}", growth.get(LENGTH), low=2)
        if yarn and yarn.get(LENGTH) != length:
            raise values.out_of_range(
                f"{WHO}: yarn and llama_4_scaling must have the same {LENGTH}; got {values.short(yarn.get(LENGTH))} "
                f"and {length}. Correct the file.",
                f"llama_4_scaling.{LENGTH}",
                length,
                "that of yarn",
            )
        own |= {LENGTH: length, "llama_4_scaling_beta": growth.get("beta")}
    return fields | ({"rope_parameters": own} if own else {})


def _of_meta(model: "Model", fields: Fields) -> Fields:
    """Return the parameters of Meta's own scaling, without the keys that switch it on."""
    scales = values.flag(WHO, _SCALED, fields.pop(_SCALED, None) or False)
    if fields.keys() & _OF_LLAMA4:
        model.model_type = "llama4_text"
        fields["no_rope_layer_interval"] = fields.pop("nope_layer_interval", None) or _MAX_LAYERS
        fields |= {key: fields.get(key, off) for key, off in _OFF_IN_LLAMA4.items()}
        if fields.get("head_dim") is None:
            fields["head_dim"] = values.integer(WHO, "dim", fields["hidden_size"]) // (model.size("n_heads") or 1)
        if not scales:
            return {}
        factor, high = (fields.pop(key, None) or default for key, default in _OF_LLAMA4_SCALING.items())
        return _OF_META | {"factor": factor, "high_freq_factor": high}
    if scales and values.integer(WHO, "dim", model.fields["dim"]) < _SMALLEST_WITH_8:
        model.warn(
            "assumed",
            _SCALED,
            f"{_SCALED} does not state the factor; 8 is used, as in Meta's code. transformers uses 32 for Llama 3.2.",
            value=True,
            allowed="the config.json of the model, which states the factor",
            meanings=(("Meta's code", "the factor is 8"), ("transformers' converter", "the factor is 32")),
            fix=f"Pass the config.json of the model, or read the factor with which your program runs {PARAMS}.",
        )
    return _OF_META if scales else {}


def _applies_scale(model: "Model", yarn: Fields) -> bool:
    """Return whether the gain of YaRN is applied; programs differ in the default."""
    if yarn.get("apply_scale") is not None:
        return values.flag(WHO, "yarn.apply_scale", yarn["apply_scale"])
    model.warn(
        "assumed",
        "yarn.apply_scale",
        "yarn.apply_scale is missing; false is used, the default of transformers' converter, and vLLM uses true.",
        value=None,
        allowed="true or false",
        meanings=(("false", "the gain is 1"), ("true", "the gain is 0.1 ln(factor) + 1")),
        fix='Write "apply_scale": false, or true if the model was trained with the gain.',
    )
    return False


def _windows(model: "Model", fields: Fields) -> Fields:
    """Return the window and the kind of each layer; Ministral 8B lists the windows of a few layers, which repeat."""
    given = fields.get("sliding_window", fields.get("_sliding_window"))
    if isinstance(given, str) and given.isdecimal():
        given = int(given[:12])
    if not isinstance(given, list):
        listed = [given] if given else []
    else:
        listed = values.sequence(WHO, "sliding_window", given, longest=_MAX_LAYERS)
    n, stated = _count(fields), [values.integer(WHO, "sliding_window", size) for size in listed if size is not None]
    sizes = sorted(set(stated))
    if not sizes or n is None:
        return {"sliding_window": None} if "sliding_window" in fields else {}
    if n % len(listed) or len(sizes) > 1:
        raise values.out_of_range(
            f"{WHO}: sliding_window must be one window, or a list that divides the {n} layers, with one size and "
            f"null; got {values.short(given)}. Correct the file.",
            "sliding_window",
            given,
            "one window, or a list of one window and null",
        )
    kinds = [FULL if size is None else SLIDING for size in listed]
    return {"sliding_window": sizes[0], "layer_types": kinds * (n // len(listed))}


# ---- types of transformers


def _deepseek_v4(model: "Model") -> Fields:
    """Give layers without compression the plain rotation, and the others the scaling, with another base and gain 1."""
    fields, n = dict(model.fields), _count(model.fields)
    if fields.get("layer_types") is None:
        fields["layer_types"] = _of_ratios(fields.get("compress_ratios"), n)
    if isinstance(fields["layer_types"], list):
        fields["layer_types"] = fields["layer_types"][:n]
    fields["qk_rope_head_dim"] = _rotating(model)
    own = fields.get("rope_scaling") or fields.get("rope_parameters") or {}
    if not isinstance(own, dict) or all(isinstance(own.get(key), dict) for key in ("main", "compress")):
        return fields
    if not model.is_known and any(isinstance(one, dict) for one in own.values()):
        return fields
    if (base := fields.get("compress_rope_theta")) is None:
        model.assume("compress_rope_theta", _COMPRESS_BASE, "above 1 and at most 1e+12")
        base = _COMPRESS_BASE
    inner = own.get("rope_theta")
    if inner is not None and inner not in (base, fields.get("rope_theta", 1e4)):
        _unread(model, "rope_parameters.rope_theta", inner, "rope_theta and compress_rope_theta next to it are read")
    compress = {key: value for key, value in own.items() if key not in ("main", "compress")} | {"rope_theta": base}
    for key in {"main", "compress"} & own.keys():
        _unread(model, f"rope_parameters.{key}", own[key], "entries are read only if there is one for both")
    if compress.get("rope_type", compress.get("type")) == "yarn":
        compress.setdefault("attention_factor", 1.0)
    fields.pop("rope_scaling", None)
    main = {"rope_type": "default"}
    if not model.is_known:  # a type like it
        main |= {"rope_theta": fields.pop("rope_theta", None)}
        kinds = dict.fromkeys(fields["layer_types"])
        return fields | {"rope_parameters": {kind: main if kind == SLIDING else compress for kind in kinds}}
    return fields | {"rope_parameters": {"main": main, "compress": compress}}


def _of_ratios(ratios: object, n: int | None) -> list[str] | None:
    """Return the kinds of layers for a list of compression ratios, or the default order."""
    if ratios is None:
        turns = ("heavily_compressed_attention", "compressed_sparse_attention")
        return None if n is None else [turns[i % 2 if i > 1 else 0] for i in range(n)]
    listed = values.sequence(WHO, "compress_ratios", ratios, longest=_MAX_LAYERS)
    for ratio in listed:
        if values.integer(WHO, "compress_ratios' entry", ratio, low=0) not in _OF_RATIO:
            raise values.out_of_range(
                f"{WHO}: compress_ratios must have 0, 4 or 128 for each layer, as in transformers; got "
                f"{values.short(ratio)}. Correct the file.",
                "compress_ratios",
                listed,
                "0, 4 or 128 for each layer",
            )
    return [_OF_RATIO[ratio] for ratio in listed]


def _rotating(model: "Model") -> int:
    """Return how many dimensions of DeepSeek-V4's heads rotate; the share of the head has precedence."""
    fields = model.fields
    head_dim = values.integer(WHO, "head_dim", fields.get("head_dim") or _HEAD_DIM, high=8192)
    share, width = fields.get("partial_rotary_factor"), fields.get("qk_rope_head_dim")
    if share is None:
        return int(head_dim * _SHARE) if width is None else values.integer(WHO, "qk_rope_head_dim", width, high=8192)
    rotating = int(head_dim * values.number(WHO, "partial_rotary_factor", share, low=0.0, high=1.0, above=True))
    if width not in (None, rotating):
        _unread(model, "qk_rope_head_dim", width, f"{rotating} dimensions rotate, by partial_rotary_factor")
    return rotating


def _step3p5(model: "Model") -> Fields:
    """Take the base and the share of each kind of layer from lists, and scale only full attention."""
    fields = dict(model.fields)
    if fields.get("layer_types") is None and (n := _count(fields)) is not None:
        fields["layer_types"] = [FULL] * n
    kinds = fields.get("layer_types")
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
        return fields
    scaling, nested = fields.pop("rope_scaling", None), fields.get("rope_parameters") or {}
    if isinstance(nested, dict) and kinds and all(isinstance(nested.get(kind), dict) for kind in kinds):
        full = nested.get(FULL, {})
        if scaling and any(
            full.get(key) != value for key, value in values.mapping(WHO, "rope_scaling", scaling).items()
        ):
            _unread(model, "rope_scaling", scaling, "rope_parameters has an entry for each kind of layer")
        return fields | {"rope_parameters": {kind: {"rope_theta": 1e4} | nested[kind] for kind in dict.fromkeys(kinds)}}
    if nested:
        _unread(model, "rope_parameters", nested, "it must have an entry for each kind of layer")
    own = _by_kind(fields, kinds)
    if scaling:
        scaling = values.mapping(WHO, "rope_scaling", scaling)
        for kind in {FULL} & own.keys():
            own[kind] |= scaling
        if _scaled(fields, own) != {FULL} & own.keys():
            only = fields.get("yarn_only_types") or None
            _unread(model, "yarn_only_types", only, f"only {FULL} is scaled, and the publisher's code scales others")
    if isinstance(rotates := fields.get("use_rope_layers"), list) and not all(rotates[: len(kinds)]):
        _unread(model, "use_rope_layers", rotates, "all layers rotate")
    return fields | {"rope_parameters": own}


def _hunyuan_vl(model: "Model") -> Fields:
    """Rename the names of HunyuanOCR: xdrope is HunYuan's alpha, and its sections are those of M-RoPE."""
    fields = dict(model.fields)
    for key in ("rope_scaling", "rope_parameters"):
        if not isinstance(own := fields.get(key), dict):
            continue
        own = {name: "dynamic" if (name, value) in _XDROPE else value for name, value in own.items()}
        old, new = own.pop("xdrope_section", None), own.get("mrope_section")
        if old is not None and new not in (None, old):
            raise values.out_of_range(
                f"{WHO}: xdrope_section and mrope_section must agree; got {values.short(old)} and "
                f"{values.short(new)}. Remove one.",
                "xdrope_section",
                old,
                "that of mrope_section, or left out",
            )
        sections = old if new is None else new
        if sections is not None:
            whole = isinstance(sections, list) and all(isinstance(x, float) and x.is_integer() for x in sections)
            own["mrope_section"] = [int(x) for x in sections] if whole else sections
        fields[key] = own
    return fields


def _ultrabert(model: "Model") -> Fields:
    """Take the kind and the base of each layer from lists of windows and of bases."""
    fields, n = dict(model.fields), _count(model.fields)
    if isinstance(windows := fields.get("attention_windows"), list):
        fields["sliding_window"] = next(filter(None, windows), fields.get("sliding_window"))
        if fields.get("layer_types") is None:
            fields["layer_types"] = [SLIDING if window else FULL for window in windows]
    if isinstance(fields.get("rope_theta"), list) and n is not None and not fields.get("rope_parameters"):
        kinds = fields.setdefault("layer_types", [SLIDING if (i + 1) % 3 else FULL for i in range(n)])
        if isinstance(kinds, list) and all(isinstance(kind, str) for kind in kinds):
            fields["rope_parameters"] = _by_kind(fields, kinds)
    return fields


# types whose text part has this type, whatever the file calls it
_TEXT_OF = {"step3p7": "step3p5"}
_XDROPE = (("type", "xdrope"), ("rope_type", "xdrope"))


def _deepseek_v2(model: "Model") -> Fields:
    """Without latent attention, the publisher's code has Llama's (DeepSeek-VL2, DeepSeek-OCR)."""
    if model.fields.get("use_mla") is not False:
        return model.fields
    if width := model.fields.get("qk_rope_head_dim"):
        _publisher(model, "use_mla", False, f"heads have a part of {values.short(width)} dimensions that rotates")
    model.model_type = "llama"
    return {key: value for key, value in model.fields.items() if key not in ("qk_rope_head_dim", "qk_nope_head_dim")}


def _publishers_base(model: "Model") -> Fields:
    """Read the base where the publisher's code reads it."""
    fields, (around, key) = model.fields, _BASES[model.name]
    holder = fields.get(around) if around else fields
    base = holder.get(key) if isinstance(holder, dict) else None
    if base is None or any(fields.get(name) for name in ("rope_theta", "rope_parameters", "rope_scaling")):
        return fields
    if base != (usual := TYPES[model.name].base):
        _publisher(model, f"{around}.{key}" if around else key, base, f"the base is {usual:g}")
    return fields | {"rope_theta": base}


_BASES = {"dbrx": ("attn_config", "rope_theta"), "nomic_bert": ("", "rotary_emb_base")}


def _zamba2(model: "Model") -> Fields:
    """Heads are twice as wide as usual, since layers read tokens next to their hidden states."""
    fields = dict(model.fields)
    hidden, heads, width = (model.size(name) for name in ("hidden_size", "n_heads", "head_dim"))
    if hidden and heads and width is None:
        fields["head_dim"] = 2 * hidden // heads
    if not fields.get("layer_types") and not fields.get("layers_block_type"):
        if _count(fields) not in (None, len(_OF_ZAMBA2)):
            text = "layer_types is missing, and transformers has an order of zamba2's layers for 54 only. Add it."
            raise values.missing(f"{WHO}: {text}", "layer_types", None, "a list with one kind for each layer")
        fields["layer_types"] = _OF_ZAMBA2
    return fields


_RULES: dict[str, Callable[["Model"], Fields]] = {
    **dict.fromkeys(_BASES, _publishers_base),
    "deepseek_v2": _deepseek_v2,
    "deepseek_v4": _deepseek_v4,
    "hunyuan_vl_text": _hunyuan_vl,
    "step3p5": _step3p5,
    "ultrabert": _ultrabert,
    "zamba2": _zamba2,
}


# ---- lists with an entry for each layer


def _of_lists(model: "Model") -> Fields:
    """Give each kind of layer of an unknown type the base and the share in its lists."""
    fields = dict(model.fields)
    kinds = fields.get("layer_types")
    if kinds is None and (n := _count(fields)) is not None:
        kinds = fields["layer_types"] = [FULL] * n
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
        return fields
    own = _by_kind(fields, kinds)
    scaling = values.mapping(WHO, "rope_scaling", fields.pop("rope_scaling", None) or {})
    for kind in _scaled(fields, own):
        own[kind] |= scaling
    if isinstance(rotates := fields.get("use_rope_layers"), list) and rotates:
        fields["no_rope_layers"] = [int(bool(one)) for one in rotates]  # this key has 0 for layers without rotation
    return fields | {"rope_parameters": own}


def _scaled(fields: Fields, own: Fields) -> set[str]:
    """Return the kinds of layers that the publisher's code scales: those listed, or all."""
    if not (only := fields.get("yarn_only_types")):
        return set(own)
    listed = values.sequence(WHO, "yarn_only_types", only, longest=_MAX_LAYERS)
    return {kind for kind in own if kind in listed}


def _cut(model: "Model") -> Fields:
    """Return the lists of which something is not read: without entries that belong to no layer, or None."""
    fields, cut = model.fields, dict[str, list[Any] | None]()
    further = _LISTS if not model.is_known or model.name == "step3p5" else ()
    lists = {key: fields[key] for key in (*_CUT, *further) if isinstance(fields.get(key), list)}
    n, more = _count(fields) if lists else None, fields.get("num_nextn_predict_layers")
    for key, listed in lists.items():
        if model.is_known and model.name not in _CUT.get(key, {model.name}):
            if not all(listed):
                _unread(model, key, listed, "no layer is without rotation by it")
            cut[key] = None
        elif n is None or len(listed) <= n:
            continue
        elif isinstance(more, int) and len(listed) == n + more:
            cut[key] = listed[:n]
        elif key in _CUT:
            _unread(model, f"{key}[{n}:]", listed[n:], f"the model has {n} layers")
            cut[key] = listed[:n]
    return cut


def _by_kind(fields: Fields, kinds: list[str]) -> dict[str, Fields]:
    """Return the parameters of each kind of layer that lists have for each layer."""
    own: dict[str, Fields] = {kind: {"rope_type": "default"} for kind in dict.fromkeys(kinds)}
    for key in _BY_KIND:
        name = key.removesuffix("s")
        if not isinstance(listed := fields.get(key), list) or not listed:
            continue
        if len(listed) < len(kinds):
            raise values.out_of_range(
                f"{WHO}: {key} must have one entry for each of the {len(kinds)} layers; got {len(listed)}. "
                "Correct the file.",
                key,
                listed,
                f"a list of {len(kinds)} entries",
            )
        for kind, value in zip(kinds, listed, strict=False):
            if own[kind].setdefault(name, value) != value:
                raise values.out_of_range(
                    f"{WHO}: {key} must agree among layers of {kind}; got {values.short(own[kind][name])} and "
                    f"{values.short(value)}. Correct the file, or give these layers another kind in layer_types.",
                    key,
                    listed,
                    f"one value for all layers of {kind}",
                )
    return own


def _count(fields: Fields) -> int | None:
    n = fields.get("num_hidden_layers")
    return None if n is None else values.integer(WHO, "num_hidden_layers", n, high=_MAX_LAYERS)


def _unread(model: "Model", key: str, value: Any, instead: str) -> None:
    stated = "is missing, and is" if value is None else f"{values.short(value)} is"
    text = f"{key} {stated} not read by {model.name or model.native} in transformers: {instead}."
    model.warn(
        "unread",
        key,
        text,
        value=value,
        allowed=f"left out, or as what is read: {instead}",
        meanings=((f"{key} {values.short(value)}"[:100], "not read"), ("left out", f"the same: {instead}")),
        fix=f"Remove {key}, or correct what is read.",
    )


def _publisher(model: "Model", key: str, value: Any, instead: str) -> None:
    """Add a notice about a key that only the publisher's code reads."""
    text = f"{key} {values.short(value)} is read as in the publisher's code, and not by {model.name} in transformers: "
    meanings = (("the publisher's code", f"{key} is read"), ("transformers", instead))
    fix = "The file needs no change for the publisher's code. In transformers, correct what is loaded."
    model.warn("publisher", key, f"{text}{instead}.", value=value, allowed="any", meanings=meanings, fix=fix)
