"""Encodings that rotate values, each by its own position, and outputs back by those of their queries."""

from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from posenc.encoding import Encoding, Placed, Pos
from posenc.families.heads import check_tokens
from posenc.families.rotary import Rotary


class ValueRotary(Encoding):
    """An encoding that rotates values as a rotary encoding rotates keys, and outputs back; its author passes that one.

    A value's contribution then depends on the difference of the positions, while scores have no position.

    Args:
        rope: The rotation. It must keep the length of vectors, since outputs rotate back by the transpose.

    Raises:
        ValueError: The rotation has a gain, or an amplitude that depends on the position.
    """

    family = "values"

    def __init__(self, rope: Rotary) -> None:
        super().__init__()
        if rope.gain() != 1.0 or type(rope).amplitude is not Rotary.amplitude:
            raise ValueError(
                f"{self.name}: the rotation must keep the length of vectors, because outputs rotate back by the "
                f"transpose; got {rope!r}. Leave the gain to the rotation of q and k."
            )
        self.rope, self.n_axes = rope, rope.n_axes

    def frequencies(self) -> Float64[Tensor, "*heads n_axes n_pairs"]:
        """Return radians per position and pair."""
        return self.rope.frequencies()

    def parts(self, pos: Pos, x: Tensor | None, past: Placed | None, dtype: torch.dtype) -> tuple[Any, ...]:
        """Compute (cos, sin), the tables of the rotation."""
        return self.rope.parts(pos, x, past, dtype)

    def rotate_v(
        self, v: Float[Tensor, "batch n_kv_heads k_len head_dim"], placed: Placed
    ) -> Float[Tensor, "batch n_kv_heads k_len head_dim"]:
        """Rotate values by their own positions.

        Raises:
            ValueError: Their width is not head_dim, or their number is not that of the positions.
        """
        return self._rotate("v", v, *placed.parts)

    def unrotate_out(
        self, out: Float[Tensor, "batch n_heads q_len head_dim"], placed: Placed
    ) -> Float[Tensor, "batch n_heads q_len head_dim"]:
        """Rotate outputs back by the positions of their queries.

        Raises:
            ValueError: Their width is not head_dim, or their number is not that of the positions.
        """
        cos, sin = placed.parts
        return self._rotate("out", out, cos, -sin)

    def reset_parameters(self) -> None:
        """Reset the parameters of the rotation."""
        self.rope.reset_parameters()

    def _rotate(self, what: str, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        check_tokens(self.name, x, self.rope.head_dim, cos.shape[: -1 if self.rope.n_kv_heads is None else -2], what)
        return self.rope._rotate(x, (cos, sin))
