"""T5 and its relatives: a table of buckets, whose bias all layers of a stack share, or one in each layer (UMT5)."""

import inspect
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from posenc.encodings import T5, NoPE
from posenc.interop.hf import patching
from posenc.interop.hf.copied import Copied, found
from posenc.interop.hf.interface import Bias, Functions, route_masks, with_tables

_TABLE = "ALL_ATTENTION_FUNCTIONS"


def attentions(host: nn.Module) -> list[Any]:
    """Return the attentions of a stack, those to an encoder last."""
    return _of(host, "SelfAttention") + _of(host, "EncDecAttention")


def refuses(host: nn.Module) -> str | None:
    """Return why this stack cannot be routed, or None."""
    for module in attentions(host):
        if not found(patching.own_class(module).forward, _TABLE.__eq__):
            return f"{type(module).__name__} calls no attention function of transformers"
        if sentence := patching.taken(module, "forward", "compute_bias"):
            return sentence
    for module in _with_tables(host):
        if type(table := module.relative_attention_bias) is not nn.Embedding:
            return f"its table of biases is no plain nn.Embedding, but {type(table).__name__}"
        if not _same_buckets(module):
            return "its buckets are others than those of posenc.T5"
    return None


def route(host: nn.Module) -> None:
    """Let layers with a table pass on the encoding instead of a bias, and all layers find our attention function."""
    own, crossing = _of(host, "SelfAttention"), _of(host, "EncDecAttention")
    for modules in filter(None, (own, crossing)):  # which share a subclass, so that a compiler sees one code
        cls = patching.own_class(modules[0])
        ours: Any = Functions(found(cls.forward, _TABLE.__eq__)[_TABLE])
        forward: Any = Copied(cls, "forward", {_TABLE: ours})
        if modules is crossing and not _is_umt5(modules[0]):
            forward = partial(_cross, copied=forward)
        patching.replace(modules, forward=forward)
    holders = _with_tables(host)
    patching.replace(holders, compute_bias=partial(_compute_bias, encoding=_encoding(holders[0])))
    route_masks(host)


def said(host: nn.Module) -> str:
    """Return in a few words what runs."""
    note = f"self attention of {len(_of(host, 'SelfAttention'))} layers by T5("
    note += f"{_encoding(_with_tables(host)[0]).extra_repr()})"
    return note + (", attention to the encoder by NoPE()" if _of(host, "EncDecAttention") else "")


def _compute_bias(
    attention: Any,
    query_length: int,
    key_length: int,
    device: torch.device | None = None,
    past_seen_tokens: int | Tensor = 0,
    *,
    encoding: T5,
) -> Any:
    if query_length == 1:
        own = patching.own_class(attention)
        return own.compute_bias(attention, query_length, key_length, device, past_seen_tokens)
    table = attention.relative_attention_bias  # called, so that whatever hooks its weight is asked
    rows = torch.arange(encoding.n_buckets, device=table.weight.device if device is None else device)
    return Bias(with_tables(encoding, weight=table(rows)), int(past_seen_tokens))


def _cross(
    module: Any, hidden_states: Tensor, *args: Any, copied: Any, position_bias: Any = None, **kwargs: Any
) -> Any:
    if position_bias is None and hidden_states.shape[1] > 1:  # it would write zeros (1, n_heads, q_len, k_len)
        position_bias = Bias(NoPE(), 0, crossing=True)
    return copied(module, hidden_states, *args, position_bias=position_bias, **kwargs)


def _encoding(attention: Any) -> T5:
    with torch.device("meta"):  # its own table is never used, and draws no random numbers
        return T5(
            n_heads=attention.n_heads,
            n_buckets=attention.relative_attention_num_buckets,
            max_distance=attention.relative_attention_max_distance,
            bidirectional=not attention.is_decoder,
            score_scale=float(attention.scaling),
        )


def _same_buckets(attention: Any) -> bool:
    encoding = _encoding(attention)
    far = 2 * encoding.max_distance
    distance = torch.arange(-far, far + 1)
    sizes = (encoding.bidirectional, encoding.n_buckets, encoding.max_distance)
    theirs = attention._relative_position_bucket(-distance, *(() if _is_umt5(attention) else sizes))
    return torch.equal(encoding.bucket(distance), theirs)


def _of(host: Any, part: str) -> list[Any]:
    return [getattr(layer, part) for block in host.block for layer in block.layer if hasattr(layer, part)]


def _with_tables(host: nn.Module) -> list[Any]:
    return [module for module in attentions(host) if module.has_relative_attention_bias]


def _is_umt5(attention: Any) -> bool:
    return "bidirectional" not in inspect.signature(attention._relative_position_bucket).parameters
