"""What queries and keys must be like: checks whose messages name the encoding."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor


def by_key_head(who: str, x: Tensor, n_kv_heads: int) -> Float[Tensor, "batch n_kv_heads group seq head_dim"]:
    """Return queries or keys (batch, heads, seq, head_dim) with their heads grouped by the key head that they share.

    Raises:
        ValueError: The heads are no multiple of the key heads.
    """
    check_groups(who, x, n_kv_heads)
    grouped: Tensor = x.unflatten(1, (n_kv_heads, -1))
    return grouped


def of_each_head(t: Tensor, n_heads: int) -> Tensor:
    """Return what heads of keys have, (batch, n_kv_heads, ...), for each head of queries.

    They are picked by number: before torch 2.13 an exporter follows no `repeat_interleave` where lengths are open.
    """
    if t.shape[1] == n_heads:
        return t
    return t[:, torch.arange(n_heads, device=t.device) // (n_heads // t.shape[1])]


def check_groups(who: str, x: Tensor, n_kv_heads: int) -> None:
    """Raise unless queries or keys (batch, heads, seq, head_dim) have a multiple of so many heads.

    Raises:
        ValueError: They do not.
    """
    if x.ndim != 4 or x.shape[1] % n_kv_heads or not x.shape[1]:
        raise ValueError(
            f"{who}: has numbers of its own for n_kv_heads={n_kv_heads} key heads, so q and k must have a multiple of "
            f"that many heads; got shape {tuple(x.shape)}. Construct it with the number of heads of k."
        )


def check_lanes(who: str, x: Tensor, head_dim: int, what: str = "q and k") -> None:
    """Raise unless queries, keys or values are floating and have the width that the encoding was made for.

    Raises:
        TypeError: They are integers or complex: the turn would be rounded, or is none.
        ValueError: They have another width.
    """
    if not x.is_floating_point():
        raise TypeError(f"{who}: {what} must be floating, because a turn has fractions; got {x.dtype}. Cast them.")
    if x.ndim < 2:
        raise ValueError(f"{who}: {what} must be (batch, heads, seq, head_dim); got shape {tuple(x.shape)}.")
    if x.shape[-1] != head_dim:
        raise ValueError(
            f"{who}: {what} must have head_dim={head_dim} lanes; got shape {tuple(x.shape)}. "
            f"Construct it with head_dim={x.shape[-1]}, or hand over (batch, heads, seq, head_dim)."
        )


def check_heads(who: str, x: Tensor, where: Sequence[int], what: str = "q and k") -> None:
    """Raise unless q, k or v (batch, heads, seq, head_dim) has a token for each position of shape `where`.

    Raises:
        ValueError: They do not.
    """
    if x.shape[-2] != where[-1] or (len(where) == 2 and (x.ndim != 4 or where[0] not in (1, x.shape[0]))):
        raise ValueError(
            f"{who}: {what} must have a token for each of their positions; got shape {tuple(x.shape)} and "
            f"positions of shape {tuple(where)}. With a cache, k_placed is for all keys that are given."
        )


def check_out(who: str, xs: tuple[Tensor, Tensor], out: tuple[Tensor, Tensor]) -> None:
    """Raise unless turned queries and keys can be written into `out`.

    Raises:
        ValueError: A shape or a device differs.
    """
    for name, slot, x in zip("qk", out, xs, strict=True):
        if slot.shape != x.shape:  # which a copy would broadcast
            raise ValueError(
                f"{who}: out must have the shapes of q and k; got {tuple(slot.shape)} for {name} of "
                f"{tuple(x.shape)}. Pass only the slots of these tokens."
            )
        if slot.device != x.device:
            raise ValueError(
                f"{who}: out must be on the device of what is turned; got {slot.device} for {name} on {x.device}."
            )
