"""Compare the scale and the bias of an attention's scores with its configuration.

Two texts at the same positions separate the two. The bias is the same for both, so the difference of their scores
is the scale times the difference of their products, and the rest is the bias.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posenc import frequencies
from posenc.config import kinds
from posenc.config.model import Model
from posenc.config.unrotated import Way
from posenc.encodings import T5, ALiBi
from posenc.verify.engine import Fault
from posenc.verify.models.layers import Layer, findings
from posenc.verify.models.watching import Attention, Watched, made_of, plainly, run, text
from posenc.verify.report import Findings

SAME = 1e-3  # relative tolerance of a factor that went through half precision
_LINEAR = 1e-2
_HIDDEN = -1e9  # a mask adds less than this
_LEAST = 1e-2  # the smallest size by which errors of a bias are measured
_TABLE = "relative_attention_bias"
# a key of the file, and transformers' default; None for the root of head_dim
_SCALAR, _MULTIPLIER = "query_pre_attn_scalar", "attention_multiplier"
_KEYS: dict[str, tuple[str, float | None]] = {
    **dict.fromkeys(("gemma2", "gemma3_text", "t5_gemma_module", "vaultgemma"), (_SCALAR, 256.0)),
    **dict.fromkeys(("t5gemma2_text", "t5gemma2_decoder"), (_SCALAR, 256.0)),
    **dict.fromkeys(("granite", "granite4_vision_text", "granite_swa"), (_MULTIPLIER, 1.0)),
    **dict.fromkeys(("granitemoe", "granitemoe_swa", "granitemoehybrid", "granitemoeshared"), (_MULTIPLIER, 1.0)),
    "granite_docling_text": (_MULTIPLIER, 0.015625),
    "hyperclovax": (_MULTIPLIER, None),
}
# queries and keys are normalised, or scaled before the rotation, and scores are not
_ONE = {"diffusion_gemma_text", "embedding_gemma2_text", "gemma3n_text", "gemma4_text", "gemma4_unified_text"}
_ONE |= {"dia_decoder", "dia_encoder"}
_HALF_WIDTH = {"zamba2"}  # attends over the text concatenated with its first embeddings


@dataclass(frozen=True)
class Expected:
    """The scale and the bias that a configuration declares for one attention."""

    kind: str  # "encoder", "decoder", "cross attention", "alibi", or the kind of layer
    scale: float  # the factor of products of queries and keys
    source: str  # where the scale comes from
    bias: ALiBi | T5 | None = None


def of_layer(model: Model, kind: str, head_dim: int) -> Expected:
    """Return the declared scores of one kind of layer that rotates, or has no positions.

    >>> gemma = Model({"query_pre_attn_scalar": 144}, "gemma2")
    >>> of_layer(gemma, "full_attention", 128).scale == 144**-0.5
    True
    """
    name, fields = model.name, model.fields
    key, default = _KEYS.get(name, ("", None))
    if (value := fields.get(key) or default) is not None:
        return Expected(kind, float(value) ** (-0.5 if key == _SCALAR else 1), f"{key} {value:g}")
    if name in _ONE:
        return Expected(kind, 1.0, f"the type {name}, which scales queries and keys instead")
    width = head_dim / 2 if name in _HALF_WIDTH else head_dim
    factor = frequencies.from_config(dict(fields), kind).score_factor if kinds.rotates(kind) else 1.0
    also = "" if factor == 1 else " and mscale_all_dim"
    return Expected(kind, width**-0.5 * factor, f"the root of head_dim {width:g}{also}")


def _of_bias(model: Model, way: Way, built: nn.Module, one: Attention) -> Expected:
    """Return the declared scores of an attention with a bias; learned tables come from the model."""
    heads, head_dim = {"n_heads": one.q.shape[1]}, one.q.shape[-1]
    if way.encoding == "t5":
        kind, table = _of_t5({**way.options, **heads}, built, one.name)
        return Expected(kind, 1.0, "T5, whose weights include the root of d_kv", table)
    read = _own(model)
    bias = ALiBi(**{**way.options, **heads, "bias_max": float(read.get("alibi_bias_max") or 8)})
    if scale := read.get("softmax_scale"):
        return Expected("alibi", float(scale), f"softmax_scale {scale:g}", bias)
    return Expected("alibi", head_dim**-0.5, f"the root of head_dim {head_dim}", bias)


def _own(model: Model) -> Mapping[str, Any]:
    """Return MPT's fields about attention; transformers reads only some of them."""
    own = model.fields.get("attn_config")
    return own if model.name == "mpt" and isinstance(own, Mapping) else {}


def _of_t5(options: dict[str, Any], built: nn.Module, name: str) -> tuple[str, T5 | None]:
    stack = "decoder" if "decoder" in name else "encoder"
    if "EncDec" in name or "cross" in name.lower():
        return "cross attention", None
    tables: dict[str, Any] = {n: m for n, m in built.named_modules() if n.endswith(_TABLE) and stack in n}
    table = tables.get(f"{name}.{_TABLE}", next(iter(tables.values()), None))  # a layer's own in UMT5
    if table is None:
        return stack, None
    bias = T5(**{**options, "bidirectional": stack == "encoder"})
    bias.weight = nn.Parameter(table.weight.detach().double().cpu())
    return stack, bias


def check(model: nn.Module, opened: Model, way: Way, tokens: int) -> Findings:
    """Judge every attention of a model with a distance bias, by its scores."""
    if way.encoding not in ("alibi", "t5") or not _own(opened).get("alibi", True):
        return Findings(unknown=f"its position encoding is {way.encoding}, which posenc cannot check in a loaded model")
    layers: list[Layer] = []

    def judge(one: Attention) -> None:
        layers.append(_judge(one, _of_bias(opened, way, model, one)))

    # two lengths, so that neither is mistaken for the other
    texts = {"input_ids": text(model, tokens), "decoder_input_ids": text(model, tokens * 25 // 32)}
    with plainly(model), Watched(model, judge):
        run(model, {}, **texts, use_cache=False)
    found = list(dict.fromkeys(one.kind for one in layers))
    layers.sort(key=lambda one: found.index(one.kind))  # a decoder's two attentions alternate
    definition = {"falcon": "alibi@falcon", "alibi": "alibi@authors"}
    name = definition.get(opened.name) or definition.get(way.encoding, "t5")
    measured = {"model_type": opened.model_type, "tokens": tokens, "longest_position": tokens - 1}
    return findings(layers, name, measured)


def _judge(one: Attention, expected: Expected) -> Layer:
    """Judge one attention by the scale of its scores and by its bias."""
    found = Layer(one.layer, expected.kind, numbers={"configured_scale": expected.scale})
    if (parts := split(one)) is None:
        found.note("cannot tell", "its scores are not a multiple of the products of queries and keys")
        return found
    scale, got, seen = parts
    for x in (one.q, one.k):  # their factor since the projection
        made = made_of(x[:, 0], one.outputs)
        scale *= 1.0 if made is None else made[0]
    want = torch.zeros_like(got)
    if expected.bias is not None:
        with torch.no_grad():
            whole = expected.bias.dense(*map(torch.arange, seen.shape))[0].double()
        want = centred(whole.to(seen.device), seen)
    found.numbers |= {"scale": scale, "bias_error": float((got - want).abs().max())}
    found.wrong([*of_scale(scale, expected), *_of_added(got, want, expected, scale / expected.scale)])
    return found


def split(one: Attention) -> tuple[float, Tensor, Tensor] | None:
    """Return the scale, the bias, and which keys a query sees; None if scores are not such a sum."""
    seen = (one.scores > _HIDDEN).all(0).all(0)
    shown, products = centred(one.scores, seen), centred(one.q @ one.k.mT, seen)
    change, by = (t[0] - t[1] for t in (shown, products))
    scale = float((change * by).sum() / by.square().sum().clamp_min(1e-300))
    if float((change - scale * by).norm()) > _LINEAR * float(change.norm()):
        return None
    return scale, (shown - scale * products).mean(0), seen


def centred(x: Tensor, seen: Tensor) -> Tensor:
    """Return x minus its mean over each query's visible keys, which a softmax ignores; 0 if no key is visible."""
    shown = torch.where(seen, x, 0.0)
    mean = shown.sum(-1, keepdim=True) / seen.sum(-1, keepdim=True).clamp_min(1)
    return torch.where(seen, shown - mean, 0.0)


def of_scale(got: float, expected: Expected) -> list[Fault]:
    """Return the fault of scores that are multiplied by another number, if they are."""
    times = got / expected.scale
    if math.isclose(times, 1, rel_tol=SAME):
        return []
    words = f"multiplies scores by {got:.4g}, {times:.4g} times as much as it should: the scale is {expected.scale:.6g}"
    words += f", from {expected.source}"
    return [Fault("model.scores.scale", {}, {"said": words, "evidence": abs(times - 1)})]


def _of_added(got: Tensor, want: Tensor, expected: Expected, times: float) -> Iterator[Fault]:
    """Yield the fault of a bias; `times`: the factor by which the scale, and possibly the bias, is too large."""
    size = max(float(want.abs().max()), _LEAST)

    def is_times(factor: float) -> bool:
        return float((got - factor * want).abs().max()) <= SAME * size * max(1, abs(factor))

    if is_times(1.0) or (is_times(times) and expected.bias is not None):
        return
    factor = float((got * want).sum() / want.square().sum().clamp_min(1e-300))
    head, query, key = at = tuple(int(n) for n in torch.unravel_index((got - want).abs().argmax(), got.shape))
    code, words = "mismatch", "adds another distance bias, even up to a factor and to a constant in each row"
    if is_times(0.0):
        code, words = "missing", "adds no distance bias, but its configuration has one"
    elif is_times(factor):
        code, words = "scale" if factor > 0 else "sign", f"adds {factor:.6g} times the distance bias"
    case = {"head": head, "query": query, "key": key, "found": float(got[at]), "expected": float(want[at])}
    yield Fault(f"model.bias.{code}", {}, {"said": words, "evidence": float((got - want).abs().max())}, case)
