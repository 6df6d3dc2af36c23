"""BLOOM, MPT and Falcon with ALiBi: attention modules of their own, which transformers' interface does not reach."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from posenc.encodings import ALiBi
from posenc.interop.hf import patching
from posenc.interop.hf.interface import CACHES, Mask, attend_cached, route_masks, seen


@dataclass(frozen=True)
class _Kind:
    """How one type lays its attention out.

    Args:
        layers: The host's list of layers.
        attention: What a layer calls its attention.
        forward: What stands in for the attention's forward.
        counts, hides: As `route_masks` takes them.
    """

    layers: str
    attention: str
    forward: Any
    counts: bool = True
    hides: bool = False


def attentions(host: nn.Module) -> list[Any]:
    """Return the attentions of a model."""
    kind = _kind(host)
    return [getattr(layer, kind.attention) for layer in getattr(host, kind.layers)]


def refuses(host: Any) -> str | None:
    """Return why this model cannot be routed, or None."""
    layers = attentions(host)
    if getattr(layers[0], "slow_but_exact", False) and layers[0].pretraining_tp > 1:
        return "slow_but_exact asks for the sums of pretraining_tp slices in their own order"
    return next(filter(None, (patching.taken(module, "forward") for module in layers)), None)


def route(host: nn.Module) -> None:
    """Replace the forward of each attention, and let the model make masks for `attend`."""
    kind, layers = _kind(host), attentions(host)
    encoding, ahead = _encodings(host)
    own = patching.own_class(layers[0]).forward
    forward = partial(_forward, own=own, here=kind.forward, encoding=encoding, ahead=ahead)
    patching.replace(layers, forward=forward)
    route_masks(host, counts=kind.counts, hides=kind.hides)


def said(host: Any) -> str:
    """Return in a few words what runs."""
    encoding, _ = _encodings(host)
    note = f"self attention of {len(attentions(host))} layers by ALiBi({encoding.extra_repr()})"
    bias_max = getattr(getattr(host.config, "attn_config", None), "alibi_bias_max", encoding.bias_max)
    if bias_max != encoding.bias_max:
        note += f"; the configuration's alibi_bias_max={bias_max} is left unread, as transformers does"
    return note


def _encodings(host: Any) -> tuple[ALiBi, ALiBi]:
    """Return the bias where queries see no keys ahead, and where they may."""
    module = attentions(host)[0]
    n_heads = module.n_heads if hasattr(module, "n_heads") else module.num_heads
    if type(host).__name__ == "FalconModel":
        scale = module.head_dim**-0.5  # the bias is divided as the scores are
        own = ALiBi(n_heads=n_heads, sides="key", precision="falcon-bfloat16", scale=scale)
        return own, own
    # a slope times the key's position, as these compute it; symmetric it runs faster
    return ALiBi(n_heads=n_heads), ALiBi(n_heads=n_heads, sides="key")


def _forward(module: Any, *args: Any, own: Any, here: Any, encoding: ALiBi, ahead: ALiBi, **kwargs: Any) -> Any:
    """Run the attention; its own forward for one query, which comes with a mask of its own."""
    mask = next((value for value in (*args, *kwargs.values()) if isinstance(value, Mask)), None)
    if mask is None:
        return own(module, *args, **kwargs)
    cache = next((kwargs[name] for name in CACHES if kwargs.get(name) is not None), None)
    attend = partial(attend_cached, encoding=encoding, ahead=ahead, causal=mask.causal, mask=mask.seen)
    attend = partial(_cached, module, cache, partial(attend, k_pos=mask.k_pos))
    return here(module, *args, attend=attend, **kwargs), None


def _bloom(module: Any, hidden_states: Tensor, residual: Tensor, *args: Any, attend: Any, **kwargs: Any) -> Tensor:
    q, k, v = module._reshape(module.query_key_value(hidden_states))
    dropout_p = module.attention_dropout.p if module.training else 0.0
    out = attend(q, k, v, scale=module.inv_norm_factor, dropout_p=dropout_p)
    return residual + F.dropout(module.dense(out), p=module.hidden_dropout, training=module.training)


def _mpt(
    module: Any,
    hidden_states: Tensor,
    *args: Any,
    attend: Any,
    **kwargs: Any,
) -> Tensor:
    mixed = module.Wqkv(hidden_states)
    if module.clip_qkv:
        mixed = mixed.clamp(min=-module.clip_qkv, max=module.clip_qkv)
    q, k, v = (t.unflatten(-1, (module.n_heads, module.head_dim)).transpose(1, 2) for t in mixed.chunk(3, dim=-1))
    dropout_p = float(module.attn_dropout_p) if module.training else 0.0
    out = attend(q, k, v, scale=float(module.softmax_scale), dropout_p=dropout_p)
    return module.out_proj(out)  # type: ignore[no-any-return]


def _falcon(module: Any, hidden_states: Tensor, *args: Any, attend: Any, **kwargs: Any) -> Tensor:
    q, k, v = (t.transpose(1, 2) for t in module._split_heads(module.query_key_value(hidden_states)))
    dropout_p = module.attention_dropout.p if module.training else 0.0
    out = attend(q, k, v, scale=module.inv_norm_factor, dropout_p=dropout_p)
    return module.dense(out)  # type: ignore[no-any-return]


def _cached(module: Any, cache: Any, attend: Any, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    past = seen(cache, module.layer_idx)
    if cache is not None:
        k, v = cache.update(k, v, module.layer_idx)
    out: Tensor = attend(q, k, v, past=past, **options)
    return out.transpose(1, 2).flatten(2)


_KINDS = {
    "BloomModel": _Kind("h", "self_attention", _bloom),
    "MptModel": _Kind("blocks", "attn", _mpt, counts=False, hides=True),
    "FalconModel": _Kind("h", "self_attention", _falcon),
}


def _kind(host: nn.Module) -> _Kind:
    return next(_KINDS[cls.__name__] for cls in type(host).__mro__ if cls.__name__ in _KINDS)
