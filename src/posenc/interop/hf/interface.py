"""The masks and the attention, by `attend`, that replace those of transformers layers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from posenc import registry
from posenc.attention import attend
from posenc.config import unrotated
from posenc.config.model import open_model
from posenc.encoding import Encoding
from posenc.interop.hf import patching
from posenc.interop.hf.copied import Copied, found
from posenc.interop.hf.patching import LeftError
from posenc.positions.checks import is_traced

CACHES = ("cache", "past_key_values", "past_key_value", "layer_past")  # the first since transformers 5.24
_MASKS = ("create_causal_mask", "create_bidirectional_mask")
_OVERLAYS = ("or_mask_function", "and_mask_function", "block_sequence_ids")


@dataclass(frozen=True)
class Bias:
    """Passed from layer to layer in place of the model's tensor of biases."""

    encoding: Encoding
    past: int = 0  # tokens in the cache before this call
    crossing: bool = False  # cross-attention


@dataclass(frozen=True)
class Mask:
    """Passed from layer to layer in place of the model's mask (batch, 1, q_len, k_len).

    Args:
        seen: A mask of padding (batch, 1, 1, k_len), a complete mask (batch, 1, q_len, k_len), or None.
        causal: Whether later keys are masked too.
        k_pos: Positions of the keys (batch, k_len), if they are not plain indices.
    """

    seen: Tensor | None
    causal: bool
    k_pos: Tensor | None = None
    ndim = 0  # Falcon adds its bias to masks of four dimensions

    def to(self, dtype: object) -> "Mask":
        """Return the same mask; MPT casts its mask."""
        return self


def configured(fields: Mapping[str, Any], **options: Any) -> Any:
    """Construct the encoding that `posenc.config` reads for a host, with some options changed.

    Its tables stay on the meta device, since they are never used, and draw no random numbers.
    """
    who = "posenc.config"
    try:
        way, *_ = unrotated.ways(open_model(fields)) or []
        who = f"posenc.{registry.find_class(way.encoding).__name__}"
        with torch.device("meta"):
            return registry.create(way.encoding, **{**way.options, **options})
    except (ValueError, TypeError) as error:
        raise LeftError(f"{who} refuses its options: {error}") from None


def note(layers: list[Any], encoding: Encoding) -> str:
    """Return the note of the report on the attention layers of a host."""
    return f"self-attention of {len(layers)} layers by {encoding.name}({encoding.extra_repr()})"


def with_masks(host: nn.Module, *, counts: bool = False, hides: bool = False) -> Callable[..., Any]:
    """Return a forward for a host that makes masks for `attend` and refuses to return attention weights.

    Args:
        host: The module whose forward makes masks for its layers.
        counts: Whether its positions count the tokens that are not padding.
        hides: Whether a caller's mask (batch, 1, q_len, k_len) is True where attention is masked.
    """
    cls = patching.own_class(host)
    makers = found(cls.forward, _MASKS.__contains__)
    others = {name: partial(_mask, create=create, counts=counts, hides=hides) for name, create in makers.items()}
    return partial(_forward, copied=Copied(cls, "forward", others))


def _mask(*args: Any, create: Any, counts: bool, hides: bool, config: Any, **kwargs: Any) -> Any:
    """Make a mask; for one query the model's own, with which its layers run their own code, which is as fast."""
    x, given = kwargs["inputs_embeds"], kwargs.get("attention_mask")
    if x.shape[1] == 1:
        return create(*args, config=config, **kwargs)
    if any(kwargs.get(name) is not None for name in _OVERLAYS) or _packed(**kwargs):
        seen = create(*args, config=config, **kwargs)
    elif given is not None and given.ndim == 4:
        seen = ~given.bool() if hides else given
    else:
        seen = None if given is None else padding(given.to(x.device))
    causal = create.__name__ == "create_causal_mask" and bool(getattr(config, "is_causal", True))
    return Mask(seen, causal, _counted(given) if counts and given is not None else None)


def _packed(position_ids: Tensor | None = None, attention_mask: Tensor | None = None, **kwargs: Any) -> bool:
    """Whether positions restart within a row, as in packed texts."""
    if position_ids is None or attention_mask is not None or any(kwargs.get(name) is not None for name in CACHES):
        return False
    return is_traced() or bool((position_ids.diff() != 1).any())


def padding(mask: Tensor) -> Tensor | None:
    """Return a padding mask (batch, k_len) as (batch, 1, 1, k_len); None if nothing is padding."""
    return None if not is_traced() and bool(mask.all()) else mask[:, None, None].bool()


def _counted(mask: Tensor) -> Tensor | None:
    """Return the token count along a mask (batch, k_len); None if indices differ from it by a constant in each row.

    That holds unless a row has masked tokens between others. Indices allow faster backends.
    """
    here = mask.bool()
    if not is_traced():
        begins = here[:, 1:] & ~here[:, :-1]
        if not bool((begins.sum(-1) + here[:, 0] > 1).any()):
            return None
    return (here.long().cumsum(-1) - 1).clamp(min=0)


def _forward(host: nn.Module, *args: Any, copied: Any, **kwargs: Any) -> Any:
    wanted = kwargs.get("output_attentions")
    if wanted or (wanted is None and getattr(getattr(host, "config", None), "output_attentions", False)):
        raise ValueError(
            f"posenc.hf: {type(host).__name__} cannot return attention weights, because posenc.attend never forms "
            "them; got output_attentions=True. Call posenc.hf.restore(model) first."
        )
    return copied(host, *args, **kwargs)


def attend_cached(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Bias,
    mask: Mask,
    *,
    ahead: Encoding | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
) -> Tensor:
    """Attend with the positions that a cache implies; return (batch, q_len, n_heads, head_dim).

    Args:
        q: Queries (batch, n_heads, q_len, head_dim), the last of the tokens.
        k: Keys, cached ones included; unused slots of a static cache are left out.
        v: Values.
        bias: The bias of the scores.
        mask: The mask.
        ahead: The encoding where a query may see keys ahead of it, if that is another.
        scale: As in `attend`.
        dropout_p: As in `attend`.
    """
    q_len, encoding, causal, seen, k_pos = q.shape[2], bias.encoding, mask.causal, mask.seen, mask.k_pos
    if not bias.crossing:
        k, v = k[:, :, : bias.past + q_len], v[:, :, : bias.past + q_len]
    k_len = k.shape[2]
    if seen is not None:
        seen = seen[..., :k_len]
        causal = causal and seen.shape[-2] == 1
    if ahead is not None and not causal:
        encoding = ahead
    k_pos = torch.arange(k_len, device=q.device) if k_pos is None else k_pos[..., :k_len]
    pos = torch.arange(q_len, device=q.device) if bias.crossing else k_pos[..., k_len - q_len :]
    theirs = k_pos if bias.crossing or q_len != k_len else None
    out = attend(q, k, v, encoding, pos, theirs, causal=causal, mask=seen, scale=scale, dropout_p=dropout_p)
    return out.transpose(1, 2)


def with_tables(encoding: Any, **tables: Tensor) -> Any:
    """Return a copy of an encoding with other tables; a backward pass needs the original unchanged."""
    own = object.__new__(type(encoding))  # a compiler cannot trace copy.copy
    own.__dict__ = vars(encoding) | {"_parameters": dict.fromkeys(encoding._parameters) | tables}
    return own


def past(cache: Any, layer: int | None) -> int:
    """Return the number of tokens in a cache as an int, since a static cache updates its counter in place."""
    return 0 if cache is None else int(cache.get_seq_length(layer))
