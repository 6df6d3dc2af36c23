"""The attention and the mask that transformers finds under the name "posenc", and the call of `attend` behind it."""

from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from posenc.attention import attend
from posenc.encoding import Encoding
from posenc.interop.hf import patching

NAME = "posenc"


@dataclass(frozen=True)
class Bias:
    """What travels from layer to layer where the model would pass on its tensor of biases."""

    encoding: Encoding
    past: int  # tokens in the cache before this call
    crossing: bool = False  # attention to another sequence


def register() -> None:
    """Give transformers the attention and the mask."""
    import_module("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS.register(NAME, attention)
    masking = import_module("transformers.masking_utils")
    masking.ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, partial(padding_mask, masking))


def choose(owner: nn.Module) -> None:
    """Let the owner's configuration name both."""
    patching.choose(owner, NAME)


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    position_bias: object = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend as transformers calls it.

    Returns:
        (batch, q_len, n_heads, head_dim), and None for the weights.

    Raises:
        TypeError: The model was not prepared by `posenc.hf.use`.
    """
    if not isinstance(position_bias, Bias):
        raise TypeError(
            f"posenc.hf: {type(module).__name__} runs with attn_implementation={NAME!r}, but posenc.hf.use has not "
            f"prepared it; got position_bias of type {type(position_bias).__name__}. Call posenc.hf.use(model)."
        )
    causal = bool(getattr(module, "is_causal", False)) and is_causal(getattr(module, "config", None))
    out = attend_cached(
        query,
        key,
        value,
        position_bias.encoding,
        past=position_bias.past,
        crossing=position_bias.crossing,
        causal=causal,
        mask=attention_mask,
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
    if getattr(config, "model_type", None) != "mpt":
        return mask  # type: ignore[no-any-return]
    # MPT casts its mask to booleans before anybody asks whether there is one, and True hides
    return torch.zeros(1, 1, 1, 1, dtype=torch.bool, device=kwargs.get("device")) if mask is None else ~mask


def is_causal(config: object) -> bool:
    """Whether transformers builds causal masks for this configuration; it may say no, also for decoders."""
    return bool(getattr(config, "is_causal", True))


def seen(cache: Any, layer: int | None) -> int:
    """Return how many tokens a cache holds; a static one counts in a tensor, and goes on counting in it."""
    return 0 if cache is None else int(cache.get_seq_length(layer))
