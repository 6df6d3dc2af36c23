"""Checks of queries and keys, with messages that name the encoding."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor


def by_key_head(who: str, x: Tensor, n_kv_heads: int) -> Float[Tensor, "batch n_kv_heads group seq head_dim"]:
    """Return queries or keys (batch, heads, seq, head_dim), heads grouped by the key head that they share.

    Raises:
        ValueError: The number of heads is not a multiple of the number of key heads.
    """
    check_groups(who, x, n_kv_heads)
    grouped: Tensor = x.unflatten(1, (n_kv_heads, -1))
    return grouped


def of_each_head(t: Tensor, n_heads: int) -> Tensor:
    """Return a tensor of key heads (batch, n_kv_heads, ...) with one entry for each query head.

    Indexing replaces `repeat_interleave`, because before torch 2.13 an exporter cannot trace that with open lengths.
    """
    if t.shape[1] == n_heads:
        return t
    return t[:, torch.arange(n_heads, device=t.device) // (n_heads // t.shape[1])]


def check_groups(who: str, x: Tensor, n_kv_heads: int) -> None:
    """Raise unless queries or keys (batch, heads, seq, head_dim) have a multiple of n_kv_heads heads.

    Raises:
        ValueError: They do not.
    """
    if x.ndim != 4 or x.shape[1] % n_kv_heads or not x.shape[1]:
        raise ValueError(
            f"{who}: has separate tables for each of n_kv_heads={n_kv_heads} key heads, so q and k must have a "
            f"multiple of that many heads; got shape {tuple(x.shape)}. Construct it with the number of heads of k."
        )


def check_lanes(who: str, x: Tensor, head_dim: int, what: str = "q and k") -> None:
    """Raise unless queries, keys or values are floating-point and have the encoding's head_dim.

    Raises:
        TypeError: They are integers or complex: a rotation would be rounded, or is not defined.
        ValueError: They have another width.
    """
    if not x.is_floating_point():
        raise TypeError(f"{who}: {what} must be floating-point, to hold a rotation; got {x.dtype}. Cast them.")
    if x.ndim < 2:
        raise ValueError(f"{who}: {what} must be (batch, heads, seq, head_dim); got shape {tuple(x.shape)}.")
    if x.shape[-1] != head_dim:
        raise ValueError(
            f"{who}: {what} must have head_dim={head_dim} dimensions; got shape {tuple(x.shape)}. "
            f"Construct it with head_dim={x.shape[-1]}, or pass (batch, heads, seq, head_dim)."
        )


def check_tokens(who: str, x: Tensor, head_dim: int, where: Sequence[int], what: str = "q and k") -> None:
    """Raise as `check_lanes`, and unless q, k or v (batch, heads, seq, head_dim) has a token for each position.

    Args:
        who: The encoding's name.
        x: The queries, keys or values.
        head_dim: Their width.
        where: The shape of the positions, without axes.
        what: Their name.

    Raises:
        TypeError: They are integers or complex.
        ValueError: They have another width, or other tokens.
    """
    shape = x.shape
    if not x.is_floating_point() or len(shape) < 2 or shape[-1] != head_dim:
        check_lanes(who, x, head_dim, what)
    if shape[-2] != where[-1] or (len(where) == 2 and (len(shape) != 4 or where[0] not in (1, shape[0]))):
        raise ValueError(
            f"{who}: {what} must have a token for each of their positions; got shape {tuple(shape)} and "
            f"positions of shape {tuple(where)}. With a cache, k_placed must cover all keys passed."
        )


def check_out(who: str, xs: tuple[Tensor, Tensor], out: tuple[Tensor, Tensor]) -> None:
    """Raise unless rotated queries and keys can be written into `out`.

    Raises:
        ValueError: A shape or a device differs.
    """
    for name, slot, x in zip("qk", out, xs, strict=True):
        if slot.shape != x.shape:  # a copy would broadcast it
            raise ValueError(
                f"{who}: out must have the shapes of q and k; got {tuple(slot.shape)} for {name} of "
                f"{tuple(x.shape)}. Pass only the slots of these tokens."
            )
        if slot.device != x.device:
            raise ValueError(
                f"{who}: out must be on the device of q and k; got {slot.device} for {name} on {x.device}."
            )
