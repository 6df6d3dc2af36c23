"""BLOOM, MPT and Falcon with ALiBi: attention modules of their own, which transformers' interface does not reach."""

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
    """How one type lays its attention out.

    Args:
        model_type: As its configuration has it.
        layers: What the host calls its list of layers.
        attention: What a layer calls its attention.
        split: Makes queries, keys and values (batch, n_heads, seq, head_dim) of hidden states.
        scale, dropout, out: What the attention calls its scale, its dropout and its last projection.
        adds: Whether it adds what came in to what goes out.
        counts, hides: As `with_masks` takes them.
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
    """Replace the forward of each attention, and let the model make masks for `attend`."""
    name = next(cls.__name__ for cls in type(host).__mro__ if cls.__name__ in _KINDS)
    kind = _KINDS[name]
    layers = [getattr(layer, kind.attention) for layer in getattr(host, kind.layers)]
    if getattr(layers[0], "slow_but_exact", False) and layers[0].pretraining_tp > 1:
        raise LeftError("slow_but_exact asks for the sums of pretraining_tp slices in their own order")
    patching.check_own(layers, "forward")
    if not found(patching.own_class(host).forward, "create_causal_mask".__eq__):
        raise LeftError(f"{type(host).__name__} makes its mask itself in this version of transformers")
    fields = {**plain(host.config), "model_type": kind.model_type}
    # a slope times the key's position, as these compute it; symmetric it runs faster
    encoding, ahead = configured(fields), configured(fields, sides="key")
    own = patching.own_class(layers[0]).forward
    forward: patching.Methods = {"forward": partial(_forward, own=own, name=name, encoding=encoding, ahead=ahead)}
    masks = {"forward": with_masks(host, counts=kind.counts, hides=kind.hides)}
    said, most = note(layers, encoding), getattr(host.config, "attn_config", None)
    bias_max = getattr(most, "alibi_bias_max", encoding.bias_max)
    if bias_max != encoding.bias_max:
        said += f"; the configuration's alibi_bias_max={bias_max} is left unread, as transformers does"
    return Plan(layers, {host: said}, {**dict.fromkeys(layers, forward), host: masks})


def _forward(
    module: Any, x: Tensor, *args: Any, own: Any, name: str, encoding: ALiBi, ahead: ALiBi, **kwargs: Any
) -> Any:
    """Run the attention; its own forward for one query, which comes with a mask of its own."""
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
