"""T5 and mT5: the table of buckets stands in the first layer of each stack, whose bias all layers share."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from posenc.encodings import T5, NoPE
from posenc.interop.hf import patching
from posenc.interop.hf.interface import Bias


def refuses(host: nn.Module) -> str | None:
    """Return why this stack cannot be routed, or None."""
    attention, crossing = _first(host)
    table = attention.relative_attention_bias
    if type(table) is not nn.Embedding:
        return f"its table of biases is no plain nn.Embedding, but {type(table).__name__}"
    for module in (attention, crossing):
        if module is not None and (sentence := patching.taken(module, "forward", "compute_bias")):
            return sentence
    encoding = _encoding(attention)
    far = 2 * encoding.max_distance
    distance = torch.arange(-far, far + 1)
    theirs = attention._relative_position_bucket(
        -distance, encoding.bidirectional, encoding.n_buckets, encoding.max_distance
    )
    if not torch.equal(encoding.bucket(distance), theirs):
        return "its buckets are others than those of posenc.T5"
    return None


def route(host: nn.Module) -> None:
    """Let the stack's first layer pass on the encoding; all layers attend through transformers' interface."""
    attention, crossing = _first(host)
    encoding = _encoding(attention)
    patching.replace(attention, compute_bias=partial(_compute_bias, encoding=encoding))
    note = f"self attention of {len(_blocks(host))} layers by T5({encoding.extra_repr()})"
    if crossing is not None:
        patching.replace(crossing, forward=partial(_cross, encoding=NoPE()))
        note += ", attention to the encoder by NoPE()"
    patching.describe(host, note)


def _compute_bias(
    attention: Any,
    query_length: int,
    key_length: int,
    device: torch.device | None = None,
    past_seen_tokens: int | Tensor = 0,
    *,
    encoding: T5,
) -> Bias:
    # read anew: loading by assignment, sharding and quantising put another tensor there
    encoding._parameters["weight"] = attention.relative_attention_bias.weight
    return Bias(encoding, int(past_seen_tokens))


def _cross(attention: Any, *args: Any, position_bias: Bias | None = None, encoding: NoPE, **kwargs: Any) -> Any:
    if position_bias is None:  # for which the model would write zeros, (1, n_heads, q_len, k_len)
        position_bias = Bias(encoding, 0, crossing=True)
    return type(attention).forward(attention, *args, position_bias=position_bias, **kwargs)


def _encoding(attention: Any) -> T5:
    with torch.device("meta"):  # its own table is never used, and draws no random numbers
        return T5(
            n_heads=attention.n_heads,
            n_buckets=attention.relative_attention_num_buckets,
            max_distance=attention.relative_attention_max_distance,
            bidirectional=not attention.is_decoder,
            score_scale=float(attention.scaling),
        )


def _blocks(host: Any) -> Any:
    return host.block


def _first(host: Any) -> tuple[Any, Any]:
    layers = host.block[0].layer
    return layers[0].SelfAttention, getattr(layers[1], "EncDecAttention", None)
