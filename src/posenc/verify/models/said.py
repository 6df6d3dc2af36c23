"""What a configuration says of a model's scores: what multiplies products of queries and keys, and what is added."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posenc import config, frequencies
from posenc.config import kinds
from posenc.config.model import Model
from posenc.encodings import T5, ALiBi

# a key of the file, and what transformers takes where it is left out; None where that is the root of head_dim
_SCALAR = {"gemma2": 256, "gemma3_text": 256, "t5_gemma_module": 256, "vaultgemma": 256}
_SCALAR |= {"t5gemma2_text": 256, "t5gemma2_decoder": 256}
_MULTIPLIER = {"granite": 1.0, "granite4_vision_text": 1.0, "granite_swa": 1.0, "granite_docling_text": 0.015625}
_MULTIPLIER |= dict.fromkeys(("granitemoe", "granitemoe_swa", "granitemoehybrid", "granitemoeshared"), 1.0)
_MULTIPLIER |= {"hyperclovax": None}  # type: ignore[dict-item]
# queries and keys are normalised, or scaled before they rotate, and scores are not
_ONE = {"diffusion_gemma_text", "embedding_gemma2_text", "gemma3n_text", "gemma4_text", "gemma4_unified_text"}
_ONE |= {"dia_decoder", "dia_encoder", "esm"}
_HALF_WIDTH = {"zamba2"}  # attends over the text and its first embeddings, next to each other
_T5 = {"t5", "mt5", "umt5"}  # of umt5 each layer has a table of its own
_TABLE = "relative_attention_bias"


@dataclass(frozen=True)
class Said:
    """What a configuration says of one attention.

    Args:
        kind: "encoder", "decoder", "cross attention", the name of a bias, or the kind of layer.
        scale: What products of queries and keys are multiplied by.
        because: What says so, in words.
        wrong: What faults multiply by instead, under the words for it.
        bias: The encoding that is added; None for none.
        weight: What the bias is multiplied by.
    """

    kind: str
    scale: float
    because: str
    wrong: Mapping[str, float]
    bias: ALiBi | T5 | None = None
    weight: float = 1.0

    def added(self, q_len: int, k_len: int, bias: ALiBi | T5 | None = None) -> Tensor:
        """Return what is added, (n_heads, q_len, k_len), float64: by the encoding, or by another one."""
        if (bias := bias or self.bias) is None:
            return torch.zeros(1, q_len, k_len, dtype=torch.float64)
        with torch.no_grad():
            whole: Tensor = bias.dense(torch.arange(q_len), torch.arange(k_len))
        return self.weight * whole[0].double()


def of_layer(model: Model, kind: str, head_dim: int, rotary_dim: int | None) -> Said:
    """Return what a configuration says of the scores of one kind of layer that rotates, or has no positions.

    >>> gemma = Model({"query_pre_attn_scalar": 144}, "gemma2")
    >>> of_layer(gemma, "full_attention", 128, None).scale == 144**-0.5
    True
    """
    name, fields = model.name, model.fields
    factor, wrong = 1.0, {}
    value = fields.get("attention_multiplier", _MULTIPLIER[name]) if name in _MULTIPLIER else None
    if name in _SCALAR:
        value = float(fields.get("query_pre_attn_scalar") or _SCALAR[name])
        scale, because = value**-0.5, f"query_pre_attn_scalar {value:g} says"
        wrong["query_pre_attn_scalar divides, and not its root"] = 1 / value
    elif value is not None:
        scale, because = float(value), f"attention_multiplier {value:g} says"
    elif name in _ONE:
        scale, because = 1.0, f"the type {name} says, which scales queries and keys instead,"
    else:
        width = head_dim / 2 if name in _HALF_WIDTH else head_dim
        if kinds.turns(kind):
            factor = frequencies.from_config(dict(fields), kind).score_factor
        scale = width**-0.5 * factor
        because = (
            f"the root of head_dim {width:g} says" if factor == 1 else f"head_dim {width:g} and mscale_all_dim say"
        )
    if factor != 1:
        wrong |= _of_factor(scale, factor, config.rotary(dict(fields), kind))
    latent = (fields.get("kv_lora_rank") or 0) + (rotary_dim or head_dim)
    wrong |= _of_widths(model, scale, head_dim) | {
        f"divided by the root of {what} {width}": width**-0.5 * factor
        for what, width in (
            ("the dimensions that rotate,", rotary_dim or head_dim),
            ("the dimensions that do not rotate,", head_dim - (rotary_dim or head_dim)),
            ("the compressed keys,", latent),
        )
        if width
    }
    return Said(kind, scale, because, wrong)


def _of_factor(scale: float, factor: float, read: config.Rotary) -> dict[str, float]:
    mscale = frequencies.mscale(read.factor or 1.0, read.parameters.get("mscale") or 1.0)
    return {
        "mscale_all_dim is not read": scale / factor,
        "the factor of mscale_all_dim is applied once and not squared": scale / factor**0.5,
        "the factor of mscale_all_dim is applied twice": scale * factor,
        "mscale stands in the place of mscale_all_dim": scale / factor * mscale**2,
    }


def _of_widths(model: Model, scale: float, head_dim: int) -> dict[str, float]:
    """Return scales by the right width in a wrong way."""
    found = {
        "divided by the root of head_dim": head_dim**-0.5,
        "not divided at all": 1.0,
        "divided by head_dim, and not by its root": 1 / head_dim,
        "divided by the root of head_dim twice": scale * head_dim**-0.5,
        "multiplied by what should divide": 1 / scale,
    }
    hidden = model.size("hidden_size")
    return found | ({f"divided by the root of the whole width {hidden}": hidden**-0.5} if hidden else {})


def has_bias(model: Model) -> bool:
    """Return whether layers of a type add a bias for distance, and are judged by it."""
    attention = model.fields.get("attn_config")
    if model.name == "mpt":
        return bool(attention.get("alibi", True)) if isinstance(attention, Mapping) else True
    return model.name in _T5 or model.name == "bloom" or (model.name == "falcon" and model.fields.get("alibi") is True)


def of_bias(model: Model, built: nn.Module, name: str, n_heads: int, head_dim: int) -> Said:
    """Return what a configuration says of the attention of a name in a model; learned tables are the model's."""
    scale, because = head_dim**-0.5, f"the root of head_dim {head_dim} says"
    kind, weight, bias = "alibi", 1.0, None
    if model.name in _T5:
        scale, because = 1.0, "T5 says, which has the root of d_kv in its weights,"
        kind, bias = _of_t5(model.fields, built, name, n_heads)
    elif model.name == "falcon":
        weight, bias = scale, ALiBi(n_heads=n_heads, sides="key", precision="falcon-bfloat16")
    else:
        own = model.fields.get("attn_config") if model.name == "mpt" else None
        read = own if isinstance(own, Mapping) else {}
        if read.get("softmax_scale"):
            scale = float(read["softmax_scale"])
            because = f"softmax_scale {scale:g} says"
        bias = ALiBi(n_heads=n_heads, sides="key", bias_max=float(read.get("alibi_bias_max") or 8))
    return Said(kind, scale, because, _of_widths(model, scale, head_dim), bias, weight)


def _of_t5(fields: Mapping[str, Any], built: nn.Module, name: str, n_heads: int) -> tuple[str, T5 | None]:
    stack = "decoder" if "decoder" in name else "encoder"
    if "EncDec" in name or "cross" in name.lower():
        return "cross attention", None
    tables: dict[str, Any] = {n: m for n, m in built.named_modules() if n.endswith(_TABLE) and stack in n}
    table = tables.get(f"{name}.{_TABLE}", next(iter(tables.values()), None))
    if table is None:
        return stack, None
    bias = T5(
        n_heads=n_heads,
        n_buckets=int(fields.get("relative_attention_num_buckets") or 32),
        max_distance=int(fields.get("relative_attention_max_distance") or 128),
        bidirectional=stack == "encoder",
        score_scale=1.0,
    )
    bias.weight = nn.Parameter(table.weight.detach().double().cpu())
    return stack, bias


def versions(bias: ALiBi | T5, n_heads: int) -> Iterator[tuple[str, ALiBi | T5]]:
    """Yield what else may have been added instead of a bias, with the words for it."""
    if isinstance(bias, ALiBi):
        plain: dict[str, Any] = {"n_heads": n_heads, "bias_max": bias.bias_max}
        if bias.precision is not None:
            yield "in full precision, where Falcon rounds slopes and products to bfloat16", ALiBi(**plain, sides="key")
        else:
            yield "rounded to bfloat16", ALiBi(**plain, sides="key", precision="falcon-bfloat16")
        if bias.bias_max != 8:
            words = f"by slopes of alibi_bias_max 8, where its configuration says {bias.bias_max:g}"
            yield words, ALiBi(n_heads=n_heads, sides="key", precision=bias.precision)
        if not math.log2(n_heads).is_integer():
            words = "with slopes of the paper's formula, which the authors' code has for powers of two only"
            yield words, ALiBi(**plain, slopes="geometric")
        return
    other = T5(
        n_heads=n_heads,
        n_buckets=bias.n_buckets,
        max_distance=bias.max_distance,
        bidirectional=not bias.bidirectional,
    )
    other.weight = bias.weight
    yield f"with buckets that look {'one way only' if bias.bidirectional else 'both ways'}", other
