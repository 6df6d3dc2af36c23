"""The mask and the attention that layers of transformers find in place of their own, by `attend`."""

from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from posenc.attention import attend
from posenc.encoding import Encoding
from posenc.interop.hf import patching
from posenc.interop.hf.copied import Copied, found

NAME = "posenc"
CACHES = ("cache", "past_key_values", "past_key_value", "layer_past")  # the first since transformers 5.24
_MASKS = ("create_causal_mask", "create_bidirectional_mask")


@dataclass(frozen=True)
class Bias:
    """What travels from layer to layer where the model would pass on its tensor of biases."""

    encoding: Encoding
    past: int  # tokens in the cache before this call
    crossing: bool = False  # attention to another sequence


@dataclass(frozen=True)
class Mask:
    """What travels from layer to layer where the model would pass on its mask (batch, 1, q_len, k_len).

    Args:
        seen: (batch, 1, 1, k_len) of padding, (batch, 1, q_len, k_len) which says all, or None.
        causal: Whether keys ahead are hidden too.
        k_pos: Positions of the keys (batch, k_len), where they are no plain indices.
    """

    seen: Tensor | None
    causal: bool
    k_pos: Tensor | None = None
    ndim = 0  # Falcon adds its bias to masks of four dimensions

    def to(self, dtype: object) -> "Mask":
        """Stay as it is: MPT casts its mask."""
        return self


class _Named:
    """A configuration under which transformers makes masks for `attend`."""

    _attn_implementation = NAME

    def __init__(self, config: Any) -> None:
        self._config = config

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)


def route_masks(host: nn.Module, *, counts: bool = False, hides: bool = False) -> None:
    """Let a host make masks for `attend`, and refuse to return weights.

    Args:
        host: The module whose forward makes masks for its layers.
        counts: Whether its positions count the tokens that are no padding.
        hides: Whether a caller's own mask (batch, 1, q_len, k_len) is True where it hides.
    """
    register()
    cls = patching.own_class(host)
    makers = found(cls.forward, _MASKS.__contains__)
    others = {name: partial(_mask, create=create, counts=counts, hides=hides) for name, create in makers.items()}
    patching.replace([host], forward=partial(_forward, copied=Copied(cls, "forward", others)))


def register() -> None:
    """Give transformers the mask."""
    masking = import_module("transformers.masking_utils")
    masking.ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, partial(padding_mask, masking))


def _mask(*args: Any, create: Any, counts: bool, hides: bool, config: Any, **kwargs: Any) -> Any:
    """Make a mask; for one query the model's own, with which its layers go their own way, which is as fast."""
    if kwargs["inputs_embeds"].shape[1] == 1:
        return create(*args, config=config, **kwargs)
    seen, given = create(*args, config=_Named(config), **kwargs), kwargs.get("attention_mask")
    if hides and given is not None and given.ndim == 4:
        seen = ~given.bool()
    causal = create.__name__ == "create_causal_mask" and bool(getattr(config, "is_causal", True))
    return Mask(seen, causal, _counted(given) if counts and given is not None else None)


def _counted(mask: Tensor) -> Tensor | None:
    """Return the count of tokens along a mask (batch, k_len), None where indices differ from it by one number a row.

    They do unless a row has masked tokens between others. Indices are what fast backends want.
    """
    here = mask.bool()
    if not torch.compiler.is_compiling():
        begins = here[:, 1:] & ~here[:, :-1]
        if not bool((begins.sum(-1) + here[:, 0] > 1).any()):
            return None
    return (here.long().cumsum(-1) - 1).clamp(min=0)


def _forward(host: nn.Module, *args: Any, copied: Any, **kwargs: Any) -> Any:
    wanted = kwargs.get("output_attentions")
    if wanted is None:
        wanted = getattr(getattr(host, "config", None), "output_attentions", False)
    if wanted:
        raise ValueError(
            f"posenc.hf: {type(host).__name__} was asked for attention weights, which posenc.attend never forms; got "
            "output_attentions=True. Call posenc.hf.restore(model) first."
        )
    return copied(host, *args, **kwargs)


class Functions:
    """Stands for transformers' table of attention functions in a module whose biases may be `Bias`."""

    def __init__(self, theirs: Any) -> None:
        self._theirs = theirs

    def get_interface(self, name: str, default: Any) -> Any:
        """Return ours, which runs theirs where the bias is a tensor."""
        return partial(attention, theirs=self._theirs.get_interface(name, default))


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    *,
    theirs: Any,
    scaling: float | None = None,
    dropout: float = 0.0,
    position_bias: object = None,
    **kwargs: Any,
) -> Any:
    """Attend as transformers calls it.

    Returns:
        (batch, q_len, n_heads, head_dim), and the weights or None.
    """
    if not isinstance(attention_mask, Mask) and not isinstance(position_bias, Bias):
        more = {"scaling": scaling, "dropout": dropout, "position_bias": position_bias} | kwargs
        return theirs(module, query, key, value, attention_mask, **more)
    if not isinstance(position_bias, Bias):  # zeros, for attention to another sequence
        position_bias = Bias(Encoding(), 0, crossing=True)
    mask = attention_mask if isinstance(attention_mask, Mask) else Mask(attention_mask, causal=False)
    out = attend_cached(
        query,
        key,
        value,
        position_bias.encoding,
        past=position_bias.past,
        crossing=position_bias.crossing,
        causal=mask.causal,
        mask=mask.seen,
        scale=scaling,
        dropout_p=float(dropout),
    )
    return out.transpose(1, 2).contiguous(), None


def attend_cached(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    encoding: Encoding,
    *,
    ahead: Encoding | None = None,
    past: int = 0,
    k_pos: Tensor | None = None,
    crossing: bool = False,
    causal: bool = True,
    mask: Tensor | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
) -> Tensor:
    """Attend with the positions that a cache implies.

    Args:
        q: Queries (batch, n_heads, q_len, head_dim), the last of the tokens.
        k: Keys, cached ones included; slots of a static cache that nothing has been written to yet are left out.
        v: Values.
        encoding: The bias.
        ahead: The bias where a query may see keys ahead of it, if that is another.
        past: Tokens before the first query.
        k_pos: Positions of the keys where they are no plain indices.
        crossing: Keys are of another sequence, all of them there.
        causal: As in `attend`, for a mask without rows.
        mask: (batch, 1, 1, k_len) of padding, or (batch, 1, q_len, k_len), which says all.
        scale: As in `attend`.
        dropout_p: As in `attend`.
    """
    q_len = q.shape[2]
    if not crossing:
        k, v = k[:, :, : past + q_len], v[:, :, : past + q_len]
    k_len = k.shape[2]
    if mask is not None:
        mask = mask[..., :k_len]
        causal = causal and mask.shape[-2] == 1
    if ahead is not None and not causal:
        encoding = ahead
    k_pos = torch.arange(k_len, device=q.device) if k_pos is None else k_pos[..., :k_len]
    pos = torch.arange(q_len, device=q.device) if crossing else k_pos[..., k_len - q_len :]
    return attend(
        q,
        k,
        v,
        encoding,
        pos,
        k_pos if crossing or q_len != k_len else None,
        causal=causal,
        mask=mask,
        scale=scale,
        dropout_p=dropout_p,
    )


def with_tables(encoding: Any, **tables: Tensor) -> Any:
    """Return an encoding with other tables: another object, which a backward pass finds as it was."""
    own = object.__new__(type(encoding))  # a compiler does not follow copy.copy
    own.__dict__ = vars(encoding) | {"_parameters": dict.fromkeys(encoding._parameters) | tables}
    return own


def padding_mask(
    masking: Any,
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Any = None,
    attention_mask: Tensor | None = None,
    config: object = None,
    **kwargs: Any,
) -> Tensor | None:
    """Return who is padding, (batch, 1, 1, k_len), and leave the causal part to `attend`.

    `masking` is transformers' module, imported before any compiler looks. Masks that are neither causal nor
    bidirectional (packed documents, overlays) are built whole, as transformers does for SDPA.
    """
    if mask_function in (masking.causal_mask_function, masking.bidirectional_mask_function):
        mask = masking.prepare_padding_mask(attention_mask, kv_length, kv_offset)
        if mask is not None:
            mask = mask[:, None, None, kv_offset : kv_offset + kv_length]
            if not masking.is_tracing(mask) and bool(mask.all()):
                mask = None
    else:
        kwargs |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        mask = masking.sdpa_mask(
            batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask, **kwargs
        )
    return mask  # type: ignore[no-any-return]


def seen(cache: Any, layer: int | None) -> int:
    """Return how many tokens a cache holds; a static one counts in a tensor, and goes on counting in it."""
    return 0 if cache is None else int(cache.get_seq_length(layer))
