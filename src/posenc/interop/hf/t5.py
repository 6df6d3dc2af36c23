"""T5 and its relatives: a bias from a table of buckets, shared by the layers of a stack, or per layer (UMT5)."""

import inspect
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from posenc.encoding import Encoding
from posenc.encodings import T5, NoPE
from posenc.interop.hf import patching
from posenc.interop.hf.copied import Copied, found
from posenc.interop.hf.interface import Bias, Mask, attend_cached, configured, note, with_masks, with_tables
from posenc.interop.hf.patching import LeftError, Plan
from posenc.interop.hf.tables import plain

_TABLE = "ALL_ATTENTION_FUNCTIONS"


def planned(host: Any) -> Plan:
    """Make layers with a table pass on the encoding instead of a bias, and all layers use our attention function."""
    layers = [layer for block in host.block for layer in block.layer]
    own, crossing = ([getattr(layer, part) for layer in layers if hasattr(layer, part)]
                     for part in ("SelfAttention", "EncDecAttention"))  # fmt: skip
    fields = {**plain(host.config), "model_type": "t5"}
    scale = float(getattr(own[0], "scaling", 1.0))  # older versions have none, and `_check` refuses them
    encoding = configured(fields, bidirectional=not own[0].is_decoder, score_scale=scale)
    methods: dict[nn.Module, patching.Methods] = {host: {"forward": with_masks(host)}}
    for modules in filter(None, (own, crossing)):
        for module in modules:
            _check(module, encoding)
        forward = {"forward": _forward(modules[0], crossing=modules is crossing)}
        biased = forward | {"compute_bias": partial(_compute_bias, encoding=encoding)}
        methods |= {m: biased if m.has_relative_attention_bias else forward for m in modules}
    text = note(own, encoding) + (", cross-attention by NoPE()" if crossing else "")
    return Plan(own + crossing, {host: text}, methods)


def _check(module: Any, encoding: T5) -> None:
    """Raise an error if a module differs from those of transformers."""
    if not found(patching.own_class(module).forward, _TABLE.__eq__):
        raise LeftError(f"{type(module).__name__} does not call transformers' attention functions")
    patching.check_own([module], "forward", "compute_bias")
    if not module.has_relative_attention_bias:
        return
    if type(table := module.relative_attention_bias) is not nn.Embedding:
        raise LeftError(f"its table of biases is not a plain nn.Embedding but {type(table).__name__}")
    distance = torch.arange(-2 * encoding.max_distance, 2 * encoding.max_distance + 1)
    sizes = {"bidirectional": encoding.bidirectional, "num_buckets": encoding.n_buckets,
             "max_distance": encoding.max_distance}  # fmt: skip
    takes = inspect.signature(module._relative_position_bucket).parameters  # UMT5's has none of them
    theirs = module._relative_position_bucket(-distance, **{key: sizes[key] for key in takes if key in sizes})
    if not torch.equal(encoding.bucket(distance), theirs):
        raise LeftError("its buckets differ from those of posenc.T5")


def _forward(module: Any, *, crossing: bool) -> Any:
    cls = patching.own_class(module)
    table: Any = Functions(found(cls.forward, _TABLE.__eq__)[_TABLE])
    copied: Any = Copied(cls, "forward", {_TABLE: table})
    passes = crossing and "position_bias" in inspect.signature(cls.forward).parameters
    return partial(_cross, copied=copied) if passes else copied


def _cross(
    module: Any, hidden_states: Tensor, *args: Any, copied: Any, position_bias: Any = None, **kwargs: Any
) -> Any:
    if (
        position_bias is None and hidden_states.shape[1] > 1
    ):  # otherwise the module would build zeros (1, n_heads, q_len, k_len)
        position_bias = Bias(NoPE(), crossing=True)
    return copied(module, hidden_states, *args, position_bias=position_bias, **kwargs)


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
    table = attention.relative_attention_bias  # called as a module, so that hooks on it run
    rows = torch.arange(encoding.n_buckets, device=table.weight.device if device is None else device)
    return Bias(with_tables(encoding, weight=table(rows)), int(past_seen_tokens))


class Functions:
    """Replaces transformers' table of attention functions in a module whose bias may be a `Bias`."""

    def __init__(self, theirs: Any) -> None:
        self._theirs = theirs

    def get_interface(self, name: str, default: Any) -> Any:
        """Return our function, which calls theirs if neither the bias nor the mask is ours."""
        return partial(_attention, theirs=self._theirs.get_interface(name, default))


def _attention(
    module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, *, theirs: Any, position_bias: Any, **kwargs: Any
) -> Any:
    """Attend with transformers' signature: return (batch, q_len, n_heads, head_dim), and None for the weights."""
    if not isinstance(mask, Mask) and not isinstance(position_bias, Bias):
        return theirs(module, q, k, v, mask, position_bias=position_bias, **kwargs)
    if not isinstance(position_bias, Bias):  # zeros, for cross-attention
        position_bias = Bias(Encoding(), crossing=True)
    mask = mask if isinstance(mask, Mask) else Mask(mask, causal=False)
    scale, dropout_p = kwargs.get("scaling"), float(kwargs.get("dropout", 0.0))
    return attend_cached(q, k, v, position_bias, mask, scale=scale, dropout_p=dropout_p).contiguous(), None
