"""BLOOM: ALiBi in attention modules of its own, which transformers' interface does not reach."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.encodings import ALiBi
from posenc.interop.hf import patching
from posenc.interop.hf.interface import attend_cached, is_causal, seen


@dataclass(frozen=True)
class Places:
    """What travels from layer to layer where BLOOM would pass on its slopes times positions."""

    k_pos: Tensor | None  # None: plain indices


def refuses(host: nn.Module) -> str | None:
    """Return why this model cannot be routed, or None."""
    layers = _attentions(host)
    if layers[0].pretraining_tp > 1 and layers[0].slow_but_exact:
        return "slow_but_exact asks for the sums of pretraining_tp slices in their own order"
    sentences = (patching.taken(module, "forward") for module in layers)
    return patching.taken(host, "build_alibi_tensor") or next(filter(None, sentences), None)


def route(host: nn.Module) -> None:
    """Replace the forward of each attention, and the tensor of slopes times positions by positions."""
    layers = _attentions(host)
    encoding = ALiBi(n_heads=layers[0].num_heads)
    ahead = ALiBi(n_heads=layers[0].num_heads, sides="key")  # as the model computes it; symmetric it runs faster
    for module in layers:
        patching.replace(module, forward=partial(_forward, encoding=encoding, ahead=ahead, config=host.config))
    patching.replace(host, build_alibi_tensor=_build_alibi_tensor)
    patching.describe(host, f"self attention of {len(layers)} layers by ALiBi({encoding.extra_repr()})")


def _build_alibi_tensor(host: nn.Module, attention_mask: Tensor, num_heads: int, dtype: torch.dtype) -> Places:
    """Keep indices where they differ from BLOOM's count of unmasked tokens by a constant of the row.

    That is so unless a row has masked tokens between others. Indices are what fast backends want.
    """
    if attention_mask.ndim != 2:
        raise ValueError(
            "posenc.hf: BLOOM counts positions along a mask (batch, k_len), because a mask with rows does not say what "
            f"is padding; got attention_mask of shape {tuple(attention_mask.shape)}. Pass one row for each sequence."
        )
    here = attention_mask.bool()
    if not torch.compiler.is_compiling():
        begins = here[:, 1:] & ~here[:, :-1]
        if not bool((begins.sum(-1) + here[:, 0] > 1).any()):
            return Places(None)
    return Places((here.long().cumsum(-1) - 1).clamp(min=0))


def _forward(
    module: Any,
    hidden_states: Tensor,
    residual: Tensor,
    alibi: object,
    attention_mask: Tensor | None,
    layer_past: Any = None,
    use_cache: bool = False,
    output_attentions: bool = False,
    *,
    encoding: ALiBi,
    ahead: ALiBi,
    config: object,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    q, k, v = module._reshape(module.query_key_value(hidden_states))
    past = seen(layer_past, module.layer_idx)
    if layer_past is not None:
        k, v = layer_past.update(k, v, module.layer_idx)
    out = attend_cached(
        q,
        k,
        v,
        encoding,
        ahead=ahead,
        past=past,
        k_pos=alibi.k_pos if isinstance(alibi, Places) else None,  # without a mask BLOOM counts by itself
        causal=is_causal(config),
        mask=attention_mask,
        scale=module.inv_norm_factor,
        dropout_p=module.attention_dropout.p if module.training else 0.0,
    )
    out = module.dense(out.transpose(1, 2).flatten(2))
    return residual + F.dropout(out, p=module.hidden_dropout, training=module.training), None


def _attentions(host: Any) -> list[Any]:
    return [block.self_attention for block in host.h]
