"""Rotations by a distance that is mapped piece by piece, as models that read beyond their trained length do."""

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
    """One product of turned queries and turned keys, and the pairs of tokens to which it belongs.

    Args:
        q_placed: What the rotation made of the queries' mapped positions.
        k_placed: The same for the keys.
        side: 0: |difference of units| < high; 1, looking back: low <= difference < high; -1, keys ahead: the same
            of the negative difference.
        low: In units.
        high: In units; infinite for the last.
    """

    q_placed: Placed
    k_placed: Placed
    side: int
    low: float
    high: float

    def holds(self, difference: Tensor) -> Bool[Tensor, "..."]:
        """Return whether pairs with such a difference of units belong to it."""
        if self.side == 0:
            return difference.abs() < self.high
        ahead = difference * self.side
        return (ahead >= self.low) & (ahead < self.high)


class Piecewise(Encoding):
    """An encoding that turns by a function of the distance that no single turn of q and k gives; by pieces it does.

    Its author writes `maps`, what positions become before they turn, and `pieces`, which pairs are turned by which
    maps. Near tokens are turned by the first map, both of them; the pieces look back. Keys ahead have the distance
    that they would have looking back, with its sign turned. `rotate` leaves q and k as they are, so that a cache
    holds raw keys, and `bias` puts the mapped products in the place of q·k.

    `attend` runs the passes one by one where it can and merges them by the logarithms of their sums; `bias` serves
    everything else.

    Args:
        rope: What turns, at the mapped positions.
    """

    family = "piecewise"
    reads_qk = True
    turns_in_bias = True
    pieces: ClassVar[Sequence[tuple[int, int]]] = ()  # of each piece behind the near one the map of q and that of k

    def __init__(self, rope: Rotary) -> None:
        super().__init__()
        self.rope = rope

    def maps(self, pos: Pos) -> tuple[Tensor, ...]:
        """Return the positions that turn, one tensor a map, of the shape of `pos`."""
        raise NotImplementedError(f"{self.name} must define maps(pos).")

    def bounds(self) -> tuple[float, ...]:
        """Return where near tokens end and where each piece does, in units; the last one may be infinite."""
        raise NotImplementedError(f"{self.name} must define bounds().")

    def units(self, pos: Pos) -> Tensor:
        """Return that whose differences say which piece holds a pair; the positions, or the chunks they are in."""
        return pos

    def parts(self, pos: Pos, x: Tensor | None, past: Placed | None, dtype: torch.dtype) -> tuple[Any, ...]:
        """Turn the mapped positions into tables, one for each map."""
        return self.units(pos), *(self.rope.place(mapped, dtype=dtype) for mapped in self.maps(pos))

    def passes(self, placed: Placed, k_placed: Placed) -> list[Pass]:
        """Return the passes: the near one, those that look back, and those of keys ahead."""
        bounds = self.bounds()
        of_q, of_k = placed.parts[1:], k_placed.parts[1:]
        found = [Pass(of_q[0], of_k[0], 0, 0.0, bounds[0])]
        far = list(zip(self.pieces, bounds[:-1], bounds[1:], strict=True))
        found += [Pass(of_q[a], of_k[b], 1, low, high) for (a, b), low, high in far]
        return found + [Pass(of_q[b], of_k[a], -1, low, high) for (a, b), low, high in far]

    def distances(self, pos: Pos, k_pos: Shaped[Tensor, "*k_pos"] | None = None) -> Tensor:
        """Return the distances by which pairs of tokens are turned, (q_len, k_len) or with a batch before.

        Args:
            pos: Positions of the queries.
            k_pos: Positions of the keys; those of the queries if left out.
        """
        placed = self.place(pos)
        k_placed = placed if k_pos is None else self.place(k_pos)
        apart = placed.parts[0][..., :, None] - k_placed.parts[0][..., None, :]
        total = torch.zeros_like(apart)
        for one in self.passes(placed, k_placed):
            turned = one.q_placed.pos[..., :, None] - one.k_placed.pos[..., None, :]
            total = torch.where(one.holds(apart), turned, total)
        return total

    def bias(
        self, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed
    ) -> Float[Tensor, "batch n_heads q_len k_len"]:
        """Return what the mapped products are more than q·k, times the score scale."""
        check_lanes(self.name, q, self.rope.head_dim)
        check_lanes(self.name, k, self.rope.head_dim)
        apart = placed.parts[0][..., None, :, None] - k_placed.parts[0][..., None, None, :]
        with no_autocast(q.device):  # half precision would round the products before the softmax
            dtype = torch.float64 if _dtype(placed) == torch.float64 else torch.float32
            q, k = q.to(dtype), k.to(dtype)
            plain = _products(q, k)
            total = plain
            for one in self.passes(placed, k_placed):
                turned = self.rope.rotate_q(q, one.q_placed), self.rope.rotate_k(k, one.k_placed)
                total = torch.where(one.holds(apart), _products(*turned), total)
            return (total - plain) * self.score_scale(q.shape[-1])

    def score_scale(self, head_dim: int) -> float:
        """Return that of the rotation."""
        return self.rope.score_scale(head_dim)

    def reset_parameters(self) -> None:
        """Draw anew what the rotation learns."""
        self.rope.reset_parameters()


def _dtype(placed: Placed) -> torch.dtype:
    table: Tensor = placed.parts[1].parts[0]
    return table.dtype


def _products(q: Tensor, k: Tensor) -> Tensor:
    """Return q·k for all pairs; heads that share a key's head stand together."""
    grouped: Tensor = q.unflatten(1, (k.shape[1], -1)) @ k.unsqueeze(2).mT
    return grouped.flatten(1, 2)
