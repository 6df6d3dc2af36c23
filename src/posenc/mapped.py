"""Wrappers that pass other positions to an encoding: mapped ones, or some of the axes."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from posenc.encoding import Encoding, Placed, Pos


class Wrapper(Encoding):
    """Run all hooks of an encoding at the positions that `seen` returns.

    Args:
        encoding: Any encoding except `PerLayer`.
        n_axes: The number of axes of the positions that are passed in.
    """

    family = "compose"

    def __init__(self, encoding: Encoding, n_axes: int) -> None:
        super().__init__()
        refuse_layers(self.name, [encoding])
        self.encoding, self.n_axes = encoding, n_axes
        self.reads_x, self.reads_qk = encoding.reads_x, encoding.reads_qk
        self.rescores, self.turns_in_bias = encoding.rescores, encoding.turns_in_bias

    def seen(self, pos: Pos) -> Tensor:
        """Return the positions for the encoding."""
        raise NotImplementedError(f"{self.name} must define seen(pos).")

    def around(self, encoding: Encoding) -> Encoding:
        """Return the same wrapper around another encoding."""
        raise NotImplementedError(f"{self.name} must define around(encoding).")

    def parts(self, pos: Pos, x: Tensor | None, past: Placed | None, dtype: torch.dtype) -> tuple[Any, ...]:
        """Place the positions for the encoding.

        Raises:
            ValueError: Their number differs from that of the positions that were passed in.
        """
        placed = self.encoding.place(self.seen(pos), x, past=past.parts[0] if past else None, dtype=dtype)
        n, seen = pos.shape[pos.ndim - 1 - (self.n_axes > 1)], placed.pos.shape[placed.seq_dim]
        if n != seen:
            raise ValueError(
                f"{self.name}: the map must return a position for each position; got {seen} for {n}. Correct the map."
            )
        return (placed,)

    def embed(self, x: Tensor, placed: Placed) -> Tensor:
        """Embed by the encoding."""
        return self.encoding.embed(x, placed.parts[0])

    def rotate_q(self, q: Tensor, placed: Placed) -> Tensor:
        """Rotate queries by the encoding."""
        return self.encoding.rotate_q(q, placed.parts[0])

    def rotate_k(self, k: Tensor, placed: Placed) -> Tensor:
        """Rotate keys by the encoding."""
        return self.encoding.rotate_k(k, placed.parts[0])

    def bias(self, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed) -> Tensor | None:
        """Return the encoding's bias."""
        return self.encoding.bias(q, k, placed.parts[0], k_placed.parts[0])

    def rescore(
        self, scores: Tensor, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed, mask: Tensor | None
    ) -> Tensor:
        """Apply the encoding's score map."""
        return self.encoding.rescore(scores, q, k, placed.parts[0], k_placed.parts[0], mask)

    def rotate_v(self, v: Tensor, placed: Placed) -> Tensor:
        """Rotate values by the encoding."""
        return self.encoding.rotate_v(v, placed.parts[0])

    def unrotate_out(self, out: Tensor, placed: Placed) -> Tensor:
        """Rotate outputs back by the encoding."""
        return self.encoding.unrotate_out(out, placed.parts[0])

    def score_scale(self, head_dim: int) -> float:
        """Return the encoding's scale."""
        return self.encoding.score_scale(head_dim)

    def leaves(self, placed: Placed) -> list[tuple[Encoding, Placed]]:
        """Return the leaves of the encoding."""
        return self.encoding.leaves(placed.parts[0])

    def resolve(self, seq_len: int) -> Encoding:
        """Resolve the encoding if it depends on the length."""
        resolved = self.encoding.resolve(seq_len)
        return self if resolved is self.encoding else as_before(self.around(resolved), self)

    def reset_parameters(self) -> None:
        """Initialise the encoding's learned tensors again."""
        self.encoding.reset_parameters()

    def _unrotate(self, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed) -> tuple[Tensor, Tensor]:
        return self.encoding.rotate(q, k, placed.parts[0], k_placed.parts[0], inverse=True)


class Mapped(Wrapper):
    """Pass mapped positions to an encoding.

    Use it for maps of the position that belong to the model: interpolation (`lambda pos: pos / 4`), centring, a random
    shift in training. The map gets positions in int64 or float64 and returns positions. Cached keys keep the positions
    with which they were placed. A lambda cannot be pickled.

    Args:
        encoding: The encoding, which gets the result of `f`.
        f: A map of positions (seq_len,) or (batch, seq_len), with a last dimension for several axes.
        n_axes: The number of axes of the positions that are passed in; the default is that of the encoding.

    >>> from posenc.encodings import Integer
    >>> Mapped(Integer(d_model=1), lambda pos: pos / 4).place(torch.tensor([2])).parts[0].parts[0]
    tensor([[0.5000]])
    """

    def __init__(self, encoding: Encoding, f: Callable[[Tensor], Tensor], *, n_axes: int | None = None) -> None:
        super().__init__(encoding, encoding.n_axes if n_axes is None else n_axes)
        self.f = f

    def seen(self, pos: Pos) -> Tensor:
        """Return the mapped positions."""
        return self.f(pos)

    def around(self, encoding: Encoding) -> Encoding:
        """Return the same map for another encoding."""
        return Mapped(encoding, self.f, n_axes=self.n_axes)


class OnAxes(Wrapper):
    """Pass some of the position axes to an encoding.

    Args:
        encoding: An encoding with len(axes) axes.
        axes: The axes of pos in the encoding's order.
        n_axes: The number of axes of pos; the default is max(axes) + 1.

    Raises:
        ValueError: The axes do not match the encoding or pos.
    """

    def __init__(self, encoding: Encoding, axes: Sequence[int], *, n_axes: int | None = None) -> None:
        total = max(axes, default=0) + 1 if n_axes is None else n_axes
        if len(axes) != encoding.n_axes or not all(0 <= a < total for a in axes):
            raise ValueError(
                f"OnAxes: {encoding.name} needs {encoding.n_axes} of n_axes={total} axes; got axes={tuple(axes)}. "
                f"Pass {encoding.n_axes} of 0..{total - 1}."
            )
        super().__init__(encoding, total)
        self.axes = tuple(axes)

    def seen(self, pos: Pos) -> Tensor:
        """Return the chosen axes."""
        if self.n_axes == 1:
            return pos
        return pos[..., self.axes[0]] if len(self.axes) == 1 else pos[..., list(self.axes)]

    def around(self, encoding: Encoding) -> Encoding:
        """Return the same choice of axes for another encoding."""
        return OnAxes(encoding, self.axes, n_axes=self.n_axes)


_Encoding = TypeVar("_Encoding", bound=Encoding)


def same(resolved: Sequence[Encoding], members: Sequence[Encoding]) -> bool:
    """Whether resolving changed none of the members."""
    return all(a is b for a, b in zip(resolved, members, strict=True))


def as_before(resolved: _Encoding, original: Encoding) -> _Encoding:
    """Return a resolved encoding in the original's training mode; members, which may be shared, keep theirs."""
    resolved.training = original.training
    return resolved


def refuse_layers(who: str, members: Sequence[Encoding]) -> None:
    """Refuse members that are or contain a `PerLayer`.

    Raises:
        ValueError: A member is one, or contains one.
    """
    inner = (m for e in members for m in e.modules() if isinstance(m, Encoding))
    if layered := [m.name for m in inner if type(m).layer is not Encoding.layer]:
        raise ValueError(f"{who}: put PerLayer around {who}, not inside it; got {layered}.")
