"""What rotates values, each by its own position, and outputs back by those of their queries."""

from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from posenc.encoding import Encoding, Placed, Pos
from posenc.families.heads import check_heads, check_lanes
from posenc.families.rotary import Rotary


class ValueRotary(Encoding):
    """An encoding that rotates values as a rotary one does keys, and outputs back; its author gives that one.

    What a query gets of a key's value then depends on the difference of their positions, while scores see none.

    Args:
        rope: What rotates. It keeps the length of vectors, since outputs rotate back by the transpose.

    Raises:
        ValueError: It has a gain, or lengths that depend on the position.
    """

    family = "values"

    def __init__(self, rope: Rotary) -> None:
        super().__init__()
        if rope.gain() != 1.0 or type(rope).amplitude is not Rotary.amplitude:
            raise ValueError(
                f"{self.name}: what rotates must keep the length of vectors, because outputs rotate back by the "
                f"transpose; got {rope!r}. Leave the gain to the rotation of q and k."
            )
        self.rope, self.n_axes = rope, rope.n_axes

    def frequencies(self) -> Float64[Tensor, "*heads n_axes n_pairs"]:
        """Return radians per position and pair."""
        return self.rope.frequencies()

    def parts(self, pos: Pos, x: Tensor | None, past: Placed | None, dtype: torch.dtype) -> tuple[Any, ...]:
        """Compute (cos, sin), the tables of what rotates."""
        return self.rope.parts(pos, x, past, dtype)

    def rotate_v(
        self, v: Float[Tensor, "batch n_kv_heads k_len head_dim"], placed: Placed
    ) -> Float[Tensor, "batch n_kv_heads k_len head_dim"]:
        """Rotate values by their own positions.

        Raises:
            ValueError: They have another width than head_dim, or are not as many as positions.
        """
        return self._rotate("v", v, *placed.parts)

    def unrotate_out(
        self, out: Float[Tensor, "batch n_heads q_len head_dim"], placed: Placed
    ) -> Float[Tensor, "batch n_heads q_len head_dim"]:
        """Rotate outputs back by the positions of their queries.

        Raises:
            ValueError: They have another width than head_dim, or are not as many as positions.
        """
        cos, sin = placed.parts
        return self._rotate("out", out, cos, -sin)

    def reset_parameters(self) -> None:
        """Draw anew what the rotation learns."""
        self.rope.reset_parameters()

    def _rotate(self, what: str, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        check_lanes(self.name, x, self.rope.head_dim, what)
        check_heads(self.name, x, cos.shape[: -1 if self.rope.n_kv_heads is None else -2], what)
        return self.rope._turn(x, (cos, sin))
