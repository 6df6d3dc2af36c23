"""The mask and the attention that layers of transformers find in place of their own, by `attend`."""

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

CACHES = ("cache", "past_key_values", "past_key_value", "layer_past")  # the first since transformers 5.24
_MASKS = ("create_causal_mask", "create_bidirectional_mask")
_OVERLAYS = ("or_mask_function", "and_mask_function", "block_sequence_ids")


@dataclass(frozen=True)
class Bias:
    """What travels from layer to layer where the model would pass on its tensor of biases."""

    encoding: Encoding
    past: int = 0  # tokens in the cache before this call
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


def configured(fields: Mapping[str, Any], **options: Any) -> Any:
    """Construct what `posenc.config` reads for a host, with some options of another value.

    Its own tables are never used, and draw no random numbers.
    """
    who = "posenc.config"
    try:
        way, *_ = unrotated.ways(open_model(fields)) or []
        who = f"posenc.{registry.find_class(way.encoding).__name__}"
        with torch.device("meta"):
            return registry.create(way.encoding, **{**way.options, **options})
    except (ValueError, TypeError) as error:
        raise LeftError(f"{who} does not take its options: {error}") from None


def note(layers: list[Any], encoding: Encoding) -> str:
    """Return what the report says of the attentions of a host."""
    return f"self attention of {len(layers)} layers by {encoding.name}({encoding.extra_repr()})"


def with_masks(host: nn.Module, *, counts: bool = False, hides: bool = False) -> Callable[..., Any]:
    """Return a forward of a host that makes masks for `attend`, and refuses to return weights.

    Args:
        host: The module whose forward makes masks for its layers.
        counts: Whether its positions count the tokens that are no padding.
        hides: Whether a caller's own mask (batch, 1, q_len, k_len) is True where it hides.
    """
    cls = patching.own_class(host)
    makers = found(cls.forward, _MASKS.__contains__)
    others = {name: partial(_mask, create=create, counts=counts, hides=hides) for name, create in makers.items()}
    return partial(_forward, copied=Copied(cls, "forward", others))


def _mask(*args: Any, create: Any, counts: bool, hides: bool, config: Any, **kwargs: Any) -> Any:
    """Make a mask; for one query the model's own, with which its layers go their own way, which is as fast."""
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
    """Whether positions begin anew within a row, as those of several texts one after the other do."""
    if position_ids is None or attention_mask is not None or any(kwargs.get(name) is not None for name in CACHES):
        return False
    return _traced() or bool((position_ids.diff() != 1).any())


def padding(mask: Tensor) -> Tensor | None:
    """Return who is no padding, (batch, 1, 1, k_len), of a mask (batch, k_len); None where all are."""
    return None if not _traced() and bool(mask.all()) else mask[:, None, None].bool()


def _traced() -> bool:
    """Whether values of tensors may not be looked at."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def _counted(mask: Tensor) -> Tensor | None:
    """Return the count of tokens along a mask (batch, k_len), None where indices differ from it by one number a row.

    They do unless a row has masked tokens between others. Indices are what fast backends want.
    """
    here = mask.bool()
    if not _traced():
        begins = here[:, 1:] & ~here[:, :-1]
        if not bool((begins.sum(-1) + here[:, 0] > 1).any()):
            return None
    return (here.long().cumsum(-1) - 1).clamp(min=0)


def _forward(host: nn.Module, *args: Any, copied: Any, **kwargs: Any) -> Any:
    wanted = kwargs.get("output_attentions")
    if wanted or (wanted is None and getattr(getattr(host, "config", None), "output_attentions", False)):
        raise ValueError(
            f"posenc.hf: {type(host).__name__} was asked for attention weights, which posenc.attend never forms; got "
            "output_attentions=True. Call posenc.hf.restore(model) first."
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
    """Attend with the positions that a cache implies, and return (batch, q_len, n_heads, head_dim).

    Args:
        q: Queries (batch, n_heads, q_len, head_dim), the last of the tokens.
        k: Keys, cached ones included; slots of a static cache that nothing has been written to yet are left out.
        v: Values.
        bias: What is added to scores.
        mask: Who sees whom.
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
    """Return an encoding with other tables: another object, which a backward pass finds as it was."""
    own = object.__new__(type(encoding))  # a compiler does not follow copy.copy
    own.__dict__ = vars(encoding) | {"_parameters": dict.fromkeys(encoding._parameters) | tables}
    return own


def past(cache: Any, layer: int | None) -> int:
    """Return how many tokens a cache holds; a static one counts in a tensor, and goes on counting in it."""
    return 0 if cache is None else int(cache.get_seq_length(layer))
