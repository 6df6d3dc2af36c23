"""What a kernel is given: one tensor to turn, where to write it, and by what."""

from typing import Literal, NamedTuple

from torch import Tensor

Pairing = Literal["half", "interleaved"]
Side = Literal["first", "last"]


class Job(NamedTuple):
    """Queries or keys, where their turn goes, and the tables that turn them.

    `x` and `out` are (batch, heads, seq, head_dim) with lanes side by side in memory and any other strides; `out` may
    be `x`. `cos` and `sin` are (1 | batch, table_heads, seq, n_pairs) in float32 or float64, any gain inside; head h
    reads those of h // (heads // table_heads). What a plan is given later may lack leading dimensions of one: it needs
    no more than addresses. Where `weight` (head_dim,) is given, the head is normalised by its
    root mean square and multiplied by it first.
    """

    x: Tensor
    out: Tensor
    cos: Tensor
    sin: Tensor
    weight: Tensor | None = None
    eps: float = 0.0


def turning(head_dim: int, width: int, side: Side) -> slice:
    """Return which lanes of a head turn."""
    return slice(0, width) if side == "first" else slice(head_dim - width, head_dim)


def in_four(t: Tensor) -> Tensor:
    """Return a view with dimensions of one in front, four in all."""
    return t.expand(*(1,) * (4 - t.ndim), *t.shape) if t.ndim < 4 else t
