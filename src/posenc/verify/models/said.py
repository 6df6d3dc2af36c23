"""What a configuration says of a model's scores: what multiplies products of queries and keys, and what is added."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posenc import frequencies
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
_ONE |= {"dia_decoder", "dia_encoder"}
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
        bias: The encoding that is added; None for none.
        weight: What the bias is multiplied by.
    """

    kind: str
    scale: float
    because: str
    bias: ALiBi | T5 | None = None
    weight: float = 1.0

    def added(self, q_len: int, k_len: int) -> Tensor:
        """Return what is added, (n_heads, q_len, k_len), float64."""
        if self.bias is None:
            return torch.zeros(1, q_len, k_len, dtype=torch.float64)
        with torch.no_grad():
            whole: Tensor = self.bias.dense(torch.arange(q_len), torch.arange(k_len))
        return self.weight * whole[0].double()


def of_layer(model: Model, kind: str, head_dim: int) -> Said:
    """Return what a configuration says of the scores of one kind of layer that rotates, or has no positions.

    >>> gemma = Model({"query_pre_attn_scalar": 144}, "gemma2")
    >>> of_layer(gemma, "full_attention", 128).scale == 144**-0.5
    True
    """
    name, fields = model.name, model.fields
    if name in _SCALAR:
        scalar = float(fields.get("query_pre_attn_scalar") or _SCALAR[name])
        return Said(kind, scalar**-0.5, f"query_pre_attn_scalar {scalar:g} says")
    if name in _MULTIPLIER and (value := fields.get("attention_multiplier", _MULTIPLIER[name])) is not None:
        return Said(kind, float(value), f"attention_multiplier {value:g} says")
    if name in _ONE:
        return Said(kind, 1.0, f"the type {name} says, which scales queries and keys instead,")
    width = head_dim / 2 if name in _HALF_WIDTH else head_dim
    factor = frequencies.from_config(dict(fields), kind).score_factor if kinds.turns(kind) else 1.0
    because = "the root of head_dim says" if factor == 1 else "head_dim and mscale_all_dim say"
    return Said(kind, width**-0.5 * factor, because.replace("head_dim", f"head_dim {width:g}"))


def has_bias(model: Model) -> bool:
    """Return whether layers of a type add a bias for distance, and are judged by it."""
    attention = model.fields.get("attn_config")
    if model.name == "mpt":
        return bool(attention.get("alibi", True)) if isinstance(attention, Mapping) else True
    return model.name in _T5 or model.name == "bloom" or (model.name == "falcon" and model.fields.get("alibi") is True)


def of_bias(model: Model, built: nn.Module, name: str, n_heads: int, head_dim: int) -> Said:
    """Return what a configuration says of the attention of a name in a model; learned tables are the model's."""
    scale, because = head_dim**-0.5, f"the root of head_dim {head_dim} says"
    kind, weight = "alibi", 1.0
    bias: ALiBi | T5 | None
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
    return Said(kind, scale, because, bias, weight)


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
