"""Rotations by a piecewise map of the distance, for models that read beyond their trained length."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from posenc.encoding import Encoding, Placed, Pos
from posenc.families import Rotary, check_lanes, no_autocast


@dataclass(frozen=True)
class Pass:
    """One product of rotated queries and rotated keys, and the pairs of tokens that use it.

    Args:
        q_placed: The placed, mapped positions of the queries.
        k_placed: The same for the keys.
        side: 0: |difference of units| < high; 1, earlier keys: low <= difference < high; -1, later keys: the same
            for the negative difference.
        low: The lower bound in units.
        high: The upper bound in units; infinite for the last pass.
    """

    q_placed: Placed
    k_placed: Placed
    side: int
    low: float
    high: float

    def holds(self, difference: Tensor) -> Bool[Tensor, "..."]:
        """Return whether pairs with this difference of units use this pass."""
        if self.side == 0:
            return difference.abs() < self.high
        ahead = difference * self.side
        return (ahead >= self.low) & (ahead < self.high)


class Piecewise(Encoding):
    """A rotation by a piecewise function of the distance, which one rotation of q and k cannot give.

    The author of a subclass writes `maps`, the mapped positions, and `pieces`, the maps of q and k for each piece. For
    near tokens both use the first map; the pieces are for earlier keys. The distance of a later key is that of the
    reversed pair with the opposite sign. `rotate` does not change q and k, so a cache holds raw keys, and `bias`
    replaces q·k by the mapped products.

    `attend` runs the passes one by one if it can, and merges them by log-sum-exp; otherwise it uses `bias`.

    Args:
        rope: The rotation at the mapped positions.
    """

    family = "piecewise"
    reads_qk = True
    turns_in_bias = True
    pieces: ClassVar[Sequence[tuple[int, int]]] = ()  # the map of q and that of k for each piece after the near one

    def __init__(self, rope: Rotary) -> None:
        super().__init__()
        self.rope = rope

    def maps(self, pos: Pos) -> tuple[Tensor, ...]:
        """Return the mapped positions, one tensor of the shape of `pos` for each map."""
        raise NotImplementedError(f"{self.name} must define maps(pos).")

    def bounds(self) -> tuple[float, ...]:
        """Return the ends of the near range and of each piece, in units; the last one may be infinite."""
        raise NotImplementedError(f"{self.name} must define bounds().")

    def units(self, pos: Pos) -> Tensor:
        """Return the units, whose differences determine the piece of a pair: the positions, or their chunks."""
        return pos

    def parts(self, pos: Pos, x: Tensor | None, past: Placed | None, dtype: torch.dtype) -> tuple[Any, ...]:
        """Return the units, and the placed positions of each map."""
        return self.units(pos), *(self.rope.place(mapped, dtype=dtype) for mapped in self.maps(pos))

    def passes(self, placed: Placed, k_placed: Placed) -> list[Pass]:
        """Return the passes: near tokens, then earlier keys, then later keys."""
        bounds = self.bounds()
        of_q, of_k = placed.parts[1:], k_placed.parts[1:]
        found = [Pass(of_q[0], of_k[0], 0, 0.0, bounds[0])]
        far = list(zip(self.pieces, bounds[:-1], bounds[1:], strict=True))
        found += [Pass(of_q[a], of_k[b], 1, low, high) for (a, b), low, high in far]
        return found + [Pass(of_q[b], of_k[a], -1, low, high) for (a, b), low, high in far]

    def distances(self, pos: Pos, k_pos: Shaped[Tensor, "*k_pos"] | None = None) -> Tensor:
        """Return the mapped distances of pairs of tokens, ([batch,] q_len, k_len).

        Args:
            pos: Positions of the queries.
            k_pos: Positions of the keys; the default is `pos`.
        """
        placed = self.place(pos)
        k_placed = placed if k_pos is None else self.place(k_pos)
        apart = placed.parts[0][..., :, None] - k_placed.parts[0][..., None, :]
        total = torch.zeros_like(apart)
        for one in self.passes(placed, k_placed):
            mapped = one.q_placed.pos[..., :, None] - one.k_placed.pos[..., None, :]
            total = torch.where(one.holds(apart), mapped, total)
        return total

    def bias(
        self, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed
    ) -> Float[Tensor, "batch n_heads q_len k_len"]:
        """Return the mapped products minus q·k, times the score scale."""
        check_lanes(self.name, q, self.rope.head_dim)
        check_lanes(self.name, k, self.rope.head_dim)
        apart = placed.parts[0][..., None, :, None] - k_placed.parts[0][..., None, None, :]
        with no_autocast(q.device):  # half precision would round the products before the softmax
            dtype = torch.float64 if _dtype(placed) == torch.float64 else torch.float32
            q, k = q.to(dtype), k.to(dtype)
            plain = _products(q, k)
            total = plain
            for one in self.passes(placed, k_placed):
                rotated = self.rope.rotate_q(q, one.q_placed), self.rope.rotate_k(k, one.k_placed)
                total = torch.where(one.holds(apart), _products(*rotated), total)
            return (total - plain) * self.score_scale(q.shape[-1])

    def score_scale(self, head_dim: int) -> float:
        """Return the score scale of the rotation."""
        return self.rope.score_scale(head_dim)

    def reset_parameters(self) -> None:
        """Initialise the rotation's learned tensors again."""
        self.rope.reset_parameters()


def _dtype(placed: Placed) -> torch.dtype:
    table: Tensor = placed.parts[1].parts[0]
    return table.dtype


def _products(q: Tensor, k: Tensor) -> Tensor:
    """Return q·k for all pairs of tokens; consecutive query heads share a key head."""
    grouped: Tensor = q.unflatten(1, (k.shape[1], -1)) @ k.unsqueeze(2).mT
    return grouped.flatten(1, 2)
