"""BLOOM, MPT and Falcon with ALiBi, whose attention modules do not use transformers' attention interface."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from posenc.encodings import ALiBi
from posenc.interop.hf import patching
from posenc.interop.hf.copied import found
from posenc.interop.hf.interface import CACHES, Bias, Mask, attend_cached, configured, note, past, with_masks
from posenc.interop.hf.patching import LeftError, Plan
from posenc.interop.hf.tables import plain


@dataclass(frozen=True)
class _Kind:
    """The attention modules of one model type.

    Args:
        model_type: The model type in its configuration.
        layers: The host's attribute with the list of layers.
        attention: A layer's attribute with its attention.
        split: A function that makes queries, keys and values (batch, n_heads, seq, head_dim) from hidden states.
        scale, dropout, out: The attention's attributes with its scale, its dropout and its last projection.
        adds: Whether the attention adds the residual.
        counts, hides: The options of `with_masks`.
    """

    model_type: str
    layers: str
    attention: str
    split: Callable[[Any, Tensor], tuple[Tensor, ...]]
    scale: str = "inv_norm_factor"
    dropout: str = "attention_dropout"
    out: str = "dense"
    adds: bool = False
    counts: bool = True
    hides: bool = False


def _mpt(module: Any, x: Tensor) -> tuple[Tensor, ...]:
    mixed = module.Wqkv(x)
    if module.clip_qkv:
        mixed = mixed.clamp(min=-module.clip_qkv, max=module.clip_qkv)
    return tuple(t.unflatten(-1, (module.n_heads, module.head_dim)).transpose(1, 2) for t in mixed.chunk(3, dim=-1))


def _bloom(module: Any, x: Tensor) -> tuple[Tensor, ...]:
    return tuple(module._reshape(module.query_key_value(x)))


def _falcon(module: Any, x: Tensor) -> tuple[Tensor, ...]:
    return tuple(t.transpose(1, 2) for t in module._split_heads(module.query_key_value(x)))


_KINDS = {
    "BloomModel": _Kind("bloom", "h", "self_attention", _bloom, adds=True),
    "MptModel": _Kind("mpt", "blocks", "attn", _mpt, "softmax_scale", "attn_dropout_p", "out_proj", False, False, True),
    "FalconModel": _Kind("falcon", "h", "self_attention", _falcon),
}


def planned(host: Any) -> Plan:
    """Replace the forward of each attention layer, and make the model build masks for `attend`."""
    name = next(cls.__name__ for cls in type(host).__mro__ if cls.__name__ in _KINDS)
    kind = _KINDS[name]
    layers = [getattr(layer, kind.attention) for layer in getattr(host, kind.layers)]
    if getattr(layers[0], "slow_but_exact", False) and layers[0].pretraining_tp > 1:
        raise LeftError("with slow_but_exact it must sum pretraining_tp slices in their own order")
    patching.check_own(layers, "forward")
    if not found(patching.own_class(host).forward, "create_causal_mask".__eq__):
        raise LeftError(f"{type(host).__name__} builds its own mask in this version of transformers")
    fields = {**plain(host.config), "model_type": kind.model_type}
    # these models multiply slopes by the key's position; the symmetric form, equal for causal attention, is faster
    encoding, ahead = configured(fields), configured(fields, sides="key")
    own = patching.own_class(layers[0]).forward
    forward: patching.Methods = {"forward": partial(_forward, own=own, name=name, encoding=encoding, ahead=ahead)}
    masks = {"forward": with_masks(host, counts=kind.counts, hides=kind.hides)}
    text, most = note(layers, encoding), getattr(host.config, "attn_config", None)
    bias_max = getattr(most, "alibi_bias_max", encoding.bias_max)
    if bias_max != encoding.bias_max:
        text += f"; the configuration's alibi_bias_max={bias_max} is ignored, as in transformers"
    return Plan(layers, {host: text}, {**dict.fromkeys(layers, forward), host: masks})


def _forward(
    module: Any, x: Tensor, *args: Any, own: Any, name: str, encoding: ALiBi, ahead: ALiBi, **kwargs: Any
) -> Any:
    """Run the attention; for one query, which has the model's own mask, run the original forward."""
    kind, mask = _KINDS[name], next((value for value in (*args, *kwargs.values()) if isinstance(value, Mask)), None)
    if mask is None:
        return own(module, x, *args, **kwargs)
    q, k, v = kind.split(module, x)
    cache = next((kwargs[name] for name in CACHES if kwargs.get(name) is not None), None)
    bias = Bias(encoding, past(cache, module.layer_idx))
    if cache is not None:
        k, v = cache.update(k, v, module.layer_idx)
    p = getattr(module, kind.dropout)
    dropout_p = float(getattr(p, "p", p)) if module.training else 0.0
    out = attend_cached(q, k, v, bias, mask, ahead=ahead, scale=float(getattr(module, kind.scale)), dropout_p=dropout_p)
    out = getattr(module, kind.out)(out.flatten(2))
    if kind.adds:
        out = args[0] + F.dropout(out, p=module.hidden_dropout, training=module.training)
    return out, None
