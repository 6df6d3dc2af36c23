"""Encodings at the token embeddings: vectors that are added, and other changes."""

import copy
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from posenc.encoding import Encoding, Placed, Pos


class Embedded(Encoding):
    """An encoding that enters at the token embeddings; its author writes `parts(pos, ...)` and `mix(x, *parts)`.

    Args:
        d_model: Width of the token embeddings; a subclass may also set the attribute itself.
    """

    family = "embedded"
    d_model: int

    def __init__(self, *, d_model: int | None = None) -> None:
        super().__init__()
        if d_model is not None:
            self._count(d_model=d_model)
            self.d_model = d_model

    def mix(self, x: Float[Tensor, "*batch seq d_model"], *parts: Tensor) -> Float[Tensor, "*batch seq d_model"]:
        """Return the tokens with position in them, in any precision; `parts` come from `place`."""
        raise NotImplementedError(f"{self.name} must define mix(x, *parts).")

    def embed(self, x: Float[Tensor, "*batch seq d_model"], placed: Placed) -> Float[Tensor, "*batch seq d_model"]:
        """Return the tokens with position in them, rounded once to the dtype of x."""
        if x.shape[-1] != self.d_model:
            raise ValueError(
                f"{self.name}: x must have d_model={self.d_model} dimensions, the encoding's width; "
                f"got x of shape {tuple(x.shape)}. Construct it with d_model={x.shape[-1]}."
            )
        where = placed.pos.shape[: placed.seq_dim + 1]
        if x.shape[-2] != where[-1] or (len(where) == 2 and (x.ndim != 3 or where[0] not in (1, x.shape[0]))):
            raise ValueError(
                f"{self.name}: x must have a token for each position; got x of shape {tuple(x.shape)} and positions "
                f"of shape {tuple(where)}. When decoding, pass the positions of the new tokens only."
            )
        return self.mix(x, *placed.parts).to(x.dtype)

    def forward(self, x: Float[Tensor, "*batch seq d_model"], pos: Pos) -> Float[Tensor, "*batch seq d_model"]:
        """Place and embed in one call, the most common use."""
        dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
        return self.embed(x, self.place(pos, x, dtype=dtype))


class Additive(Embedded):
    """An encoding that is added to token embeddings; its author writes `vectors(pos)`."""

    family = "additive"

    def vectors(self, pos: Pos) -> Float[Tensor, "*batch seq d_model"]:
        """Return the vector of each position, (..., seq_len, d_model), in float32 or wider."""
        raise NotImplementedError(f"{self.name} must define vectors(pos).")

    def parts(self, pos: Pos, x: Tensor | None, past: Placed | None, dtype: torch.dtype) -> tuple[Any, ...]:
        """Look up or compute the vectors of all positions."""
        found, where = self.vectors(pos), pos.shape if self.n_axes == 1 else pos.shape[:-1]
        if found.shape != (*where, self.d_model):
            raise ValueError(
                f"{self.name}: vectors(pos) must return {(*where, self.d_model)}, a vector of d_model={self.d_model} "
                f"for each position; got {tuple(found.shape)}."
            )
        return (found.to(dtype),)

    def mix(self, x: Float[Tensor, "*batch seq d_model"], *parts: Tensor) -> Float[Tensor, "*batch seq d_model"]:
        """Return x plus the vectors."""
        return x + parts[0]


_Table = TypeVar("_Table", bound=Additive)


def with_table(encoding: _Table, weight: Tensor) -> _Table:
    """Return a copy that has another table and shares nothing, for tables that are resized."""
    twin, (table,) = copy.copy(encoding), encoding.parameters()
    twin._parameters = {}
    twin.weight = nn.Parameter(weight, requires_grad=table.requires_grad)
    return twin
