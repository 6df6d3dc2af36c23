"""MPT: ALiBi in attention modules of its own, with the slopes' exponent at 8 whatever its configuration says."""

from functools import partial
from typing import Any

from torch import Tensor, nn

from posenc.encodings import ALiBi
from posenc.interop.hf import patching
from posenc.interop.hf.interface import attend_cached, is_causal, seen


def refuses(host: nn.Module) -> str | None:
    """Return why this model cannot be routed, or None."""
    sentences = (patching.taken(module, "forward") for module in _attentions(host))
    return patching.taken(host, "build_mpt_alibi_tensor") or next(filter(None, sentences), None)


def route(host: nn.Module) -> None:
    """Replace the forward of each attention."""
    layers = _attentions(host)
    encoding = ALiBi(n_heads=layers[0].n_heads)
    ahead = ALiBi(n_heads=layers[0].n_heads, sides="key")  # as the model computes it; symmetric it runs faster
    for module in layers:
        patching.replace(module, forward=partial(_forward, encoding=encoding, ahead=ahead, config=host.config))
    patching.replace(host, build_mpt_alibi_tensor=_no_tensor)
    note = f"self attention of {len(layers)} layers by ALiBi({encoding.extra_repr()})"
    bias_max = _settings(host).alibi_bias_max
    if bias_max != encoding.bias_max:
        note += f"; the configuration's alibi_bias_max={bias_max} is left unread, as transformers does"
    patching.describe(host, note)


def _no_tensor(host: nn.Module, *args: Any, **kwargs: Any) -> None:
    """Save the tensor of the longest length, built anew at each call."""


def _forward(
    module: Any,
    hidden_states: Tensor,
    position_bias: object = None,
    past_key_values: Any = None,
    attention_mask: Tensor | None = None,
    *,
    cache: Any = None,
    encoding: ALiBi,
    ahead: ALiBi,
    config: object,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    mixed = module.Wqkv(hidden_states)
    if module.clip_qkv:
        mixed = mixed.clamp(min=-module.clip_qkv, max=module.clip_qkv)
    q, k, v = (t.unflatten(-1, (module.n_heads, module.head_dim)).transpose(1, 2) for t in mixed.chunk(3, dim=-1))
    cache = past_key_values if cache is None else cache  # its name since transformers 5.24
    past = seen(cache, module.layer_idx)
    if cache is not None:
        k, v = cache.update(k, v, module.layer_idx)
    if attention_mask is not None:  # of one element: nothing is hidden
        attention_mask = None if attention_mask.numel() == 1 else ~attention_mask
    out = attend_cached(
        q,
        k,
        v,
        encoding,
        ahead=ahead,
        past=past,
        causal=is_causal(config),
        mask=attention_mask,
        scale=float(module.softmax_scale),
        dropout_p=float(module.attn_dropout_p) if module.training else 0.0,
    )
    return module.out_proj(out.transpose(1, 2).flatten(2)), None


def _settings(host: Any) -> Any:
    return host.config.attn_config


def _attentions(host: Any) -> list[Any]:
    return [block.attn for block in host.blocks]
