"""What a configuration of a model with a position bias says of its scores: their scale, and what is added to them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posenc.config.model import Model
from posenc.encodings import T5, ALiBi
from posenc.verify.models.scales import Scale

_TABLE = "relative_attention_bias"
_T5 = {"t5", "mt5", "umt5"}  # of umt5 each layer has a table of its own


@dataclass(frozen=True)
class Said:
    """What a configuration says of one attention.

    Args:
        kind: What it is called: "encoder", "decoder", "cross attention", or the name of its encoding.
        scale: What products of queries and keys are multiplied by.
        bias: The encoding that is added; None for none.
        factor: What the bias is multiplied by.
    """

    kind: str
    scale: Scale
    bias: ALiBi | T5 | None
    factor: float = 1.0

    def added(self, q_len: int, k_len: int) -> Tensor:
        """Return what is added, (n_heads, q_len, k_len), float64."""
        if self.bias is None:
            return torch.zeros(1, q_len, k_len, dtype=torch.float64)
        with torch.no_grad():
            whole: Tensor = self.bias.dense(torch.arange(q_len), torch.arange(k_len))
        return self.factor * whole[0].double()


def has_bias(model: Model) -> bool:
    """Whether layers of a type add a bias for distance, and are judged by it."""
    fields = model.fields
    name = model.name
    if name == "mpt":
        attention = fields.get("attn_config")
        return bool(attention.get("alibi", True)) if isinstance(attention, Mapping) else True
    return name in _T5 or name == "bloom" or (name == "falcon" and fields.get("alibi") is True)


def said(model: Model, built: nn.Module, name: str, n_heads: int, head_dim: int) -> Said:
    """Return what a configuration says of the attention of a name in a model; its learned tables are the model's."""
    root = Scale(head_dim**-0.5, f"the root of head_dim {head_dim} says")
    if model.name == "falcon":
        alibi = ALiBi(n_heads=n_heads, sides="key", precision="falcon-bfloat16")
        return Said("alibi", root, alibi, factor=head_dim**-0.5)
    if model.name == "bloom":
        return Said("alibi", root, ALiBi(n_heads=n_heads, sides="key"))
    if model.name == "mpt":
        attention = model.fields.get("attn_config")
        told = attention if isinstance(attention, Mapping) else {}
        if told.get("softmax_scale"):
            scale = float(told["softmax_scale"])
            root = Scale(scale, f"softmax_scale {scale:g} says")
        bias_max = float(told.get("alibi_bias_max") or 8)
        return Said("alibi", root, ALiBi(n_heads=n_heads, sides="key", bias_max=bias_max))
    return _t5(model.fields, built, name, n_heads)


def _t5(fields: Mapping[str, Any], built: nn.Module, name: str, n_heads: int) -> Said:
    scale = Scale(1.0, "T5 says, which has the root of d_kv in its weights,")
    stack = "decoder" if "decoder" in name else "encoder"
    if "EncDec" in name or "cross" in name.lower():
        return Said("cross attention", scale, None)
    tables = {n: m for n, m in built.named_modules() if n.endswith(_TABLE) and stack in n}
    own = next((m for n, m in tables.items() if n == ".".join((name, _TABLE))), None)
    table: Any = own if own is not None else next(iter(tables.values()), None)
    if table is None:
        return Said(stack, scale, None)
    bias = T5(
        n_heads=n_heads,
        n_buckets=int(fields.get("relative_attention_num_buckets") or 32),
        max_distance=int(fields.get("relative_attention_max_distance") or 128),
        bidirectional=stack == "encoder",
        score_scale=1.0,
    )
    bias.weight = nn.Parameter(table.weight.detach().double().cpu())
    return Said(stack, scale, bias)


def versions(what: Said, n_heads: int) -> dict[str, Said]:
    """Return what else may have been added instead, under the words for it."""
    found: dict[str, Said] = {}
    if isinstance(what.bias, ALiBi):
        plain: dict[str, Any] = {"n_heads": n_heads, "bias_max": what.bias.bias_max}
        if what.bias.precision is not None:
            found["in full precision, where Falcon rounds slopes and products to bfloat16"] = _with(
                what, ALiBi(**plain, sides="key")
            )
        else:
            found["rounded to bfloat16"] = _with(what, ALiBi(**plain, sides="key", precision="falcon-bfloat16"))
        if what.bias.bias_max != 8:
            words = f"by slopes of alibi_bias_max 8, where its configuration says {what.bias.bias_max:g}"
            found[words] = _with(what, ALiBi(n_heads=n_heads, sides="key", precision=what.bias.precision))
        if not math.log2(n_heads).is_integer():
            found["with slopes of the paper's formula, which the authors' code has for powers of two alone"] = _with(
                what, ALiBi(**plain, slopes="geometric")
            )
    elif isinstance(what.bias, T5):
        other = T5(
            n_heads=n_heads,
            n_buckets=what.bias.n_buckets,
            max_distance=what.bias.max_distance,
            bidirectional=not what.bias.bidirectional,
        )
        other.weight = what.bias.weight
        way = "one way alone" if what.bias.bidirectional else "both ways"
        found[f"with buckets that look {way}"] = _with(what, other)
    return found


def _with(what: Said, bias: ALiBi | T5) -> Said:
    return Said(what.kind, what.scale, bias, what.factor)
