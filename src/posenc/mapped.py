"""One encoding that sees other positions than those that are passed in: mapped ones, or some of their axes."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from posenc.encoding import Encoding, Placed, Pos


class Wrapper(Encoding):
    """Run all doors of one encoding at the positions that `seen` returns.

    Args:
        encoding: Any but a `PerLayer`.
        n_axes: Axes of the positions that are passed in.
    """

    family = "compose"

    def __init__(self, encoding: Encoding, n_axes: int) -> None:
        super().__init__()
        refuse_layers(self.name, [encoding])
        self.encoding, self.n_axes = encoding, n_axes
        self.reads_x, self.reads_qk = encoding.reads_x, encoding.reads_qk
        self.rescores, self.turns_in_bias = encoding.rescores, encoding.turns_in_bias

    def seen(self, pos: Pos) -> Tensor:
        """Return the positions that the encoding gets."""
        raise NotImplementedError(f"{self.name} must define seen(pos).")

    def around(self, encoding: Encoding) -> Encoding:
        """Return the same wrapper around another encoding."""
        raise NotImplementedError(f"{self.name} must define around(encoding).")

    def parts(self, pos: Pos, x: Tensor | None, past: Placed | None, dtype: torch.dtype) -> tuple[Any, ...]:
        """Place the positions that the encoding gets.

        Raises:
            ValueError: They are not as many as those that were passed in.
        """
        placed = self.encoding.place(self.seen(pos), x, past=past.parts[0] if past else None, dtype=dtype)
        n, seen = pos.shape[pos.ndim - 1 - (self.n_axes > 1)], placed.pos.shape[placed.seq_dim]
        if n != seen:
            raise ValueError(
                f"{self.name}: the map must return a position for each position that it gets; got {seen} for {n}."
            )
        return (placed,)

    def embed(self, x: Tensor, placed: Placed) -> Tensor:
        """Embed by the encoding."""
        return self.encoding.embed(x, placed.parts[0])

    def rotate_q(self, q: Tensor, placed: Placed) -> Tensor:
        """Turn queries by the encoding."""
        return self.encoding.rotate_q(q, placed.parts[0])

    def rotate_k(self, k: Tensor, placed: Placed) -> Tensor:
        """Turn keys by the encoding."""
        return self.encoding.rotate_k(k, placed.parts[0])

    def bias(self, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed) -> Tensor | None:
        """Return the encoding's bias."""
        return self.encoding.bias(q, k, placed.parts[0], k_placed.parts[0])

    def rescore(
        self, scores: Tensor, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed, mask: Tensor | None
    ) -> Tensor:
        """Return what the encoding makes of the scores."""
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
        """Return those of the encoding, at the positions that it sees."""
        return self.encoding.leaves(placed.parts[0])

    def resolve(self, seq_len: int) -> Encoding:
        """Resolve the encoding, where it depends on the length."""
        resolved = self.encoding.resolve(seq_len)
        return self if resolved is self.encoding else as_before(self.around(resolved), self)

    def reset_parameters(self) -> None:
        """Draw the encoding's learned tensors anew."""
        self.encoding.reset_parameters()

    def _unrotate(self, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed) -> tuple[Tensor, Tensor]:
        return self.encoding.rotate(q, k, placed.parts[0], k_placed.parts[0], inverse=True)


class Mapped(Wrapper):
    """Let an encoding see other positions than those that are passed in.

    For maps of the position that belong to the model: interpolation (`lambda pos: pos / 4`), centring, a random
    shift while training. The map gets positions as int64 or float64 and returns positions; keys in a cache keep
    those with which they were placed. A map that is a lambda cannot be pickled.

    Args:
        encoding: Sees what `f` returns.
        f: From positions to positions: (seq_len,) or (batch, seq_len), with a last dimension for several axes.
        n_axes: Axes of the positions that are passed in; those of the encoding if left out.

    >>> from posenc.encodings import Integer
    >>> Mapped(Integer(d_model=1), lambda pos: pos / 4).place(torch.tensor([2])).parts[0].parts[0]
    tensor([[0.5000]])
    """

    def __init__(self, encoding: Encoding, f: Callable[[Tensor], Tensor], *, n_axes: int | None = None) -> None:
        super().__init__(encoding, encoding.n_axes if n_axes is None else n_axes)
        self.f = f

    def seen(self, pos: Pos) -> Tensor:
        """Return what the map makes of the positions."""
        return self.f(pos)

    def around(self, encoding: Encoding) -> Encoding:
        """Return the same map before another encoding."""
        return Mapped(encoding, self.f, n_axes=self.n_axes)


class OnAxes(Wrapper):
    """Let an encoding see some of the position axes.

    Args:
        encoding: Works on len(axes) axes.
        axes: Which ones of pos, in the encoding's order.
        n_axes: How many axes pos has; max(axes) + 1 if left out.

    Raises:
        ValueError: The axes do not fit the encoding or pos.
    """

    def __init__(self, encoding: Encoding, axes: Sequence[int], *, n_axes: int | None = None) -> None:
        total = max(axes, default=0) + 1 if n_axes is None else n_axes
        if len(axes) != encoding.n_axes or not all(0 <= a < total for a in axes):
            raise ValueError(
                f"OnAxes: {encoding.name} works on {encoding.n_axes} of n_axes={total} axes; got axes={tuple(axes)}. "
                f"Name {encoding.n_axes} of 0..{total - 1}."
            )
        super().__init__(encoding, total)
        self.axes = tuple(axes)

    def seen(self, pos: Pos) -> Tensor:
        """Return the chosen axes."""
        if self.n_axes == 1:
            return pos
        return pos[..., self.axes[0]] if len(self.axes) == 1 else pos[..., list(self.axes)]

    def around(self, encoding: Encoding) -> Encoding:
        """Return the same choice of axes before another encoding."""
        return OnAxes(encoding, self.axes, n_axes=self.n_axes)


_Encoding = TypeVar("_Encoding", bound=Encoding)


def same(resolved: Sequence[Encoding], members: Sequence[Encoding]) -> bool:
    """Whether resolving changed none of the members."""
    return all(a is b for a, b in zip(resolved, members, strict=True))


def as_before(resolved: _Encoding, original: Encoding) -> _Encoding:
    """Return what was resolved in the original's mode; the members, which may be shared, keep theirs."""
    resolved.training = original.training
    return resolved


def refuse_layers(who: str, members: Sequence[Encoding]) -> None:
    """Raise if a `PerLayer` stands among the members.

    Raises:
        ValueError: One does.
    """
    inner = (m for e in members for m in e.modules() if isinstance(m, Encoding))
    if layered := [m.name for m in inner if type(m).layer is not Encoding.layer]:
        raise ValueError(f"{who}: put PerLayer around {who}, not inside it; got {layered}.")
