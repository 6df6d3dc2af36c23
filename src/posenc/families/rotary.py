"""What turns queries and keys, each by its own position."""

import copy
import inspect
import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from posenc import kernels
from posenc.config.values import short
from posenc.encoding import Placed, Pos
from posenc.families.angles import tabulate
from posenc.families.options import Budgeted


class Rotary(Budgeted):
    """An encoding that turns pairs of lanes; its author writes `frequencies()`.

    Angles are formed in float64 and rounded after cosine and sine. `gain()` multiplies the turned
    lanes of q and of k (scores get its square); `amplitude(pos)` does so by position, with its
    inverse on keys (xPos). Where `n_kv_heads` is set, each key head has frequencies of its own, and the
    queries of its group share them.

    Args:
        head_dim: Lanes of one head.
        rotary_dim: How many of them turn; None means all.
        rotary_side: "first" or "last": which ones.
        pairing: "half" (lane k with k + rotary_dim / 2) or "interleaved" (2k with 2k + 1).
    """

    family = "rotary"
    n_kv_heads: int | None = None

    def __init__(
        self,
        *,
        head_dim: int,
        rotary_dim: int | None = None,
        rotary_side: kernels.eager.Side = "first",
        pairing: kernels.eager.Pairing = "half",
    ) -> None:
        super().__init__()
        self._count(head_dim=head_dim, rotary_dim=head_dim if rotary_dim is None else rotary_dim)
        width = head_dim if rotary_dim is None else rotary_dim
        if rotary_dim is None and head_dim % 2:
            some = head_dim > 2 and "rotary_dim" in inspect.signature(type(self)).parameters
            raise ValueError(
                f"{self.name}: head_dim must be even, because lanes turn in pairs; got head_dim={head_dim}."
                + (f" Pass rotary_dim={head_dim - 1} to turn the first {head_dim - 1}." if some else "")
            )
        if width % 2 or not 2 <= width <= head_dim:
            raise ValueError(
                f"{self.name}: rotary_dim must be even and between 2 and head_dim={head_dim}, because lanes "
                f"turn in pairs; got rotary_dim={width}."
            )
        choices = {
            "pairing": (pairing, ("half", "interleaved")),
            "rotary_side": (rotary_side, ("first", "last")),
        }
        for option, (value, allowed) in choices.items():
            if not isinstance(value, str) or value not in allowed:
                raise ValueError(f"{self.name}: {option} must be one of {allowed}; got {short(value)}.")
        self.head_dim, self.rotary_dim = head_dim, width
        self.rotary_side: kernels.eager.Side = rotary_side
        self.pairing: kernels.eager.Pairing = pairing

    def frequencies(self) -> Float64[Tensor, "*heads n_axes n_pairs"]:
        """Return radians per position and pair, for each key head where they differ: angle = pos @ frequencies."""
        raise NotImplementedError(f"{self.name} must define frequencies().")

    def gain(self) -> float:
        """Return what multiplies the turned lanes of q and of k."""
        return 1.0

    def amplitude(self, pos: Float64[Tensor, "*batch seq"]) -> Float64[Tensor, "*batch n"] | None:
        """Return what multiplies queries by position and divides keys, for each pair or for all, or None."""
        return None

    def parts(self, pos: Pos, x: Tensor | None, past: Placed | None, dtype: torch.dtype) -> tuple[Any, ...]:
        """Compute the tables: (cos, sin), or those of q and then those of k where they differ.

        Raises:
            ValueError: They would take more than `table_budget` bytes.
        """
        changes = type(self).amplitude is not Rotary.amplitude  # asked only then: not every device has float64
        numbers = math.prod(pos.shape) // self.n_axes * (self.n_kv_heads or 1) * self.rotary_dim
        self._afford(numbers * dtype.itemsize * (2 if changes else 1))
        inv_freq = self.frequencies()
        if inv_freq.ndim == 3:  # heads: one wide table, of which each has a part
            inv_freq = inv_freq.movedim(0, 1).flatten(1)
        tables = tabulate(pos, inv_freq, dtype=dtype, gain=self.gain())
        if self.n_kv_heads is not None:
            tables = tuple(t.unflatten(-1, (-1, self.rotary_dim // 2)) for t in tables)
        amplitude = self.amplitude(pos.double()) if changes else None
        if amplitude is not None:
            inverse = (1 / amplitude).to(dtype)
            amplitude = amplitude.to(dtype)
            return (*(t * amplitude for t in tables), *(t * inverse for t in tables))
        return tables

    def rotate_q(self, q: Tensor, placed: Placed) -> Tensor:
        """Turn queries by their own positions."""
        return self._turn(q, placed.parts[:2])

    def rotate_k(self, k: Tensor, placed: Placed) -> Tensor:
        """Turn keys by their own positions."""
        return self._turn(k, placed.parts[-2:])

    def rotate_(self, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed | None = None) -> None:
        """Turn q and k in place; under no_grad, since autograd needs what they were."""
        if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad):
            raise ValueError(
                f"{self.name}: rotate_ overwrites q and k, which their gradients need; "
                "call it under torch.no_grad(), or use rotate."
            )
        self.rotate(q, k, placed, k_placed, out=(q, k))

    def _turn(self, x: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
        check_lanes(self.name, x, self.head_dim)
        check_heads(self.name, x, tables[0].shape[: -1 if self.n_kv_heads is None else -2])
        if self.n_kv_heads is None:  # tables have no head axis: (..., seq, n_pairs) -> (..., 1, seq, n_pairs)
            cos, sin = (t.unsqueeze(-3) for t in tables)
            return kernels.turn(x, cos, sin, pairing=self.pairing, side=self.rotary_side)
        grouped = by_key_head(self.name, x, self.n_kv_heads)
        cos, sin = (t.movedim(-2, -3).unsqueeze(-3) for t in tables)
        turned: Tensor = kernels.turn(grouped, cos, sin, pairing=self.pairing, side=self.rotary_side)
        return turned.flatten(1, 2)

    def of_slice(self) -> "Rotary":
        """Return the same turn for a tensor that holds the lanes that turn and no others.

        In multi-head latent attention (DeepSeek) all heads share one such slice of the keys: it is turned once and
        cached as it is, beside what the keys' other lanes are made of. Learned frequencies are shared.

        >>> from posenc.encodings import RoPE
        >>> keys = RoPE(head_dim=192, rotary_dim=64, rotary_side="last").of_slice()
        >>> keys.head_dim, keys.rotary_dim
        (64, 64)
        """
        twin = copy.copy(self)
        twin.head_dim, twin.rotary_side = self.rotary_dim, "first"
        return twin

    def _unrotate(self, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed) -> tuple[Tensor, Tensor]:
        def back(x: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
            cos, sin = tables
            square = cos**2 + sin**2  # of gain and amplitude: turn back by the transpose, divided by it
            return self._turn(x, (cos / square, -sin / square))

        return back(q, placed.parts[:2]), back(k, k_placed.parts[-2:])


def by_key_head(who: str, x: Tensor, n_kv_heads: int) -> Float[Tensor, "batch n_kv_heads group seq head_dim"]:
    """Return queries or keys (batch, heads, seq, head_dim) with their heads grouped by the key head that they share.

    Raises:
        ValueError: The heads are no multiple of the key heads.
    """
    if x.ndim != 4 or x.shape[1] % n_kv_heads or not x.shape[1]:
        raise ValueError(
            f"{who}: has numbers of its own for n_kv_heads={n_kv_heads} key heads, so q and k must have a multiple of "
            f"that many heads; got shape {tuple(x.shape)}. Construct it with the number of heads of k."
        )
    grouped: Tensor = x.unflatten(1, (n_kv_heads, -1))
    return grouped


def check_lanes(who: str, x: Tensor, head_dim: int) -> None:
    """Raise unless queries or keys are floating and have the width that the encoding was made for.

    Raises:
        TypeError: They are integers or complex: the turn would be rounded, or is none.
        ValueError: They have another width.
    """
    if not x.is_floating_point():
        raise TypeError(f"{who}: q and k must be floating, because a turn has fractions; got {x.dtype}. Cast them.")
    if x.ndim < 2:
        raise ValueError(f"{who}: q and k must be (batch, heads, seq, head_dim); got shape {tuple(x.shape)}.")
    if x.shape[-1] != head_dim:
        raise ValueError(
            f"{who}: q and k must have head_dim={head_dim} lanes; got shape {tuple(x.shape)}. "
            f"Construct it with head_dim={x.shape[-1]}, or hand over (batch, heads, seq, head_dim)."
        )


def check_heads(who: str, x: Tensor, where: Sequence[int]) -> None:
    """Raise unless queries or keys (batch, heads, seq, head_dim) have a token for each position of shape `where`.

    Raises:
        ValueError: They do not.
    """
    if x.shape[-2] != where[-1] or (len(where) == 2 and (x.ndim != 4 or where[0] not in (1, x.shape[0]))):
        raise ValueError(
            f"{who}: q and k must have a token for each of their positions; got shape {tuple(x.shape)} and "
            f"positions of shape {tuple(where)}. With a cache, k_placed is for all keys that are given."
        )
