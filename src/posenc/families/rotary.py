"""What turns queries and keys, each by its own position."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from posenc import kernels
from posenc.encoding import Encoding, Placed, Pos


class Rotary(Encoding):
    """An encoding that turns pairs of lanes; its author writes `frequencies()`.

    Angles are formed in float64 and rounded after cosine and sine. `gain()` multiplies the turned
    lanes of q and of k (scores get its square); `amplitude(pos)` does so by position, with its
    inverse on keys (xPos).

    Args:
        head_dim: Lanes of one head.
        rotary_dim: How many of them turn; None means all.
        rotary_side: "first" or "last": which ones.
        pairing: "half" (lane k with k + rotary_dim / 2) or "interleaved" (2k with 2k + 1).
    """

    family = "rotary"

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
            raise ValueError(
                f"{self.name}: head_dim must be even, because lanes turn in pairs; got head_dim={head_dim}. "
                f"Pass rotary_dim={head_dim - 1} to turn the first {head_dim - 1}."
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
            if value not in allowed:
                raise ValueError(f"{self.name}: {option} must be one of {allowed}; got {value!r}.")
        self.head_dim, self.rotary_dim = head_dim, width
        self.rotary_side, self.pairing = rotary_side, pairing

    def frequencies(self) -> Float64[Tensor, "n_axes n_pairs"]:
        """Return radians per position and pair: angle = pos @ frequencies."""
        raise NotImplementedError(f"{self.name} must define frequencies().")

    def gain(self) -> float:
        """Return what multiplies the turned lanes of q and of k."""
        return 1.0

    def amplitude(self, pos: Float64[Tensor, "*batch seq"]) -> Float64[Tensor, "*batch seq n_pairs"] | None:
        """Return what multiplies queries by position and divides keys, or None."""
        return None

    def parts(self, pos: Pos, x: Tensor | None, past: Placed | None, dtype: torch.dtype) -> tuple[Any, ...]:
        """Compute the tables: (cos, sin), or those of q and then those of k where they differ."""
        exact, inv_freq = pos.double(), self.frequencies().to(pos.device)
        # a product over one axis is written as such: as a matrix product, compilers specialise on its length
        angle = exact @ inv_freq if self.n_axes > 1 else exact[..., None] * inv_freq
        cos, sin = angle.cos() * self.gain(), angle.sin() * self.gain()
        amplitude = self.amplitude(exact)
        tables: tuple[Tensor, ...] = (cos, sin)
        if amplitude is not None:
            tables = (cos * amplitude, sin * amplitude, cos / amplitude, sin / amplitude)
        return tuple(t.to(dtype) for t in tables)

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
        if x.shape[-1] != self.head_dim:
            raise ValueError(
                f"{self.name}: q and k must have head_dim={self.head_dim} lanes; got shape {tuple(x.shape)}. "
                f"Construct it with head_dim={x.shape[-1]}, or hand over (batch, heads, seq, head_dim)."
            )
        cos, sin = tables
        check_heads(self.name, x, cos.shape[:-1])
        return kernels.turn(x, cos, sin, pairing=self.pairing, side=self.rotary_side)

    def _unrotate(self, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed) -> tuple[Tensor, Tensor]:
        def back(x: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
            cos, sin = tables
            square = cos**2 + sin**2  # of gain and amplitude: turn back by the transpose, divided by it
            return self._turn(x, (cos / square, -sin / square))

        return back(q, placed.parts[:2]), back(k, k_placed.parts[-2:])


def check_heads(who: str, x: Tensor, where: Sequence[int]) -> None:
    """Raise unless queries or keys (batch, heads, seq, head_dim) have a token for each position of shape `where`.

    Raises:
        ValueError: They do not.
    """
    if x.shape[-2] != where[-1] or (len(where) == 2 and where[0] not in (1, x.shape[0])):
        raise ValueError(
            f"{who}: q and k must have a token for each of their positions; got shape {tuple(x.shape)} and "
            f"positions of shape {tuple(where)}. With a cache, k_placed is for all keys that are given."
        )
