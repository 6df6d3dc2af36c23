"""The class of laws, and the test case of a law: a small attention layer around an encoding."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from posenc import positions
from posenc.attention import attend
from posenc.compose import PerLayer
from posenc.defined import card_of
from posenc.encoding import Encoding
from posenc.probe import Probe
from posenc.raised import describe

TOLERANCE = {torch.float64: 1e-12, torch.float32: 4e-6}  # of the largest score


@dataclass(frozen=True)
class Law:
    """A statement about every encoding, and the function that tests it.

    Args:
        name: A short unique name.
        text: The statement.
        look: Takes a `Case` and yields a message for each failure.
        by_dtype: Whether it is tested in float64 and in float32.
        compiles: Whether it runs a compiler.
    """

    name: str
    text: str
    look: Callable[["Case"], Iterable[str]]
    by_dtype: bool = True
    compiles: bool = False

    def __call__(self, encoding: Encoding, dtype: torch.dtype = torch.float64) -> list[str]:
        """Return a message for each failure; an unexpected exception is a failure."""
        layers = range(len(encoding)) if isinstance(encoding, PerLayer) else [0]
        cases = [Case(encoding, dtype if self.by_dtype else torch.float64, index=i) for i in layers]
        messages: list[str] = []
        for case in cases:
            try:
                messages += self.look(case)
            except Exception as error:
                messages.append(f"raised {describe(error)}")
        return messages


def law(laws: list[Law], name: str, **facts: bool) -> Callable[..., Any]:
    """Add a function to a list of laws; its docstring is the statement."""

    def decorate(look: Callable[["Case"], Iterable[str]]) -> Callable[["Case"], Iterable[str]]:
        laws.append(Law(name, (look.__doc__ or "").strip(), look, **facts))
        return look

    return decorate


class Case(Probe):
    """An encoding with random parameters inside a self-attention layer with random projections.

    Args:
        encoding: The encoding; it is copied, and the copy's parameters are drawn from N(0, 1).
        dtype: The dtype of all tensors.
        index: The layer, if each layer has its own encoding.

    Raises:
        ValueError: The encoding has fewer than 64 positions.
    """

    batch = 2

    def __init__(self, encoding: Encoding, dtype: torch.dtype, index: int = 0) -> None:
        super().__init__(encoding, dtype, index)
        self.max_len: int | None = self._find("max_len", None)
        if self.max_len is not None and self.max_len < 64:
            raise ValueError(
                f"laws: the laws need at least 64 positions; got {encoding.name} with max_len={self.max_len}. "
                "Test an instance with a larger max_len."
            )

    def tokens(self, seq_len: int, batch: int | None = None) -> Tensor:
        """Draw tokens (batch, seq_len, d_model)."""
        return self.normal(self.batch if batch is None else batch, seq_len, self.d_model)

    def positions(self, seq_len: int, *, start: int = 0) -> Tensor:
        """Return consecutive positions from `start`, or from an earlier one if `max_len` does not reach that far."""
        if self.max_len is not None:
            start = min(start, self.max_len - seq_len)
        row = positions.arange(seq_len, start=start)
        return positions.on_each_axis(row, self.encoding.n_axes)

    def layer(self, x: Tensor, pos: Tensor, **options: Any) -> Tensor:
        """Run the layer in one pass: (batch, seq, d_model) -> (batch, n_heads, seq, head_dim)."""
        placed = self.place(pos, x)
        q, k, v = self.project(x, placed)
        encoding, placed = self.encoding.layer(self.index, placed)
        return attend(q, k, v, encoding, placed, **options)

    def cached(self, x: Tensor, pos: Tensor, chunks: Sequence[int], **options: Any) -> Tensor:
        """Run the layer chunk by chunk against a cache of rotated keys and values; return all rows.

        `options` are the options of `attend` for one pass; masks (q_len, k_len) and document ids are cut to each chunk.
        """
        past, keys, values, rows, begin = None, [], [], [], 0
        for n in chunks:
            part, begin = slice(begin, begin + n), begin + n
            cuts = {"document_ids": slice(begin), "mask": (part, slice(begin))}
            here = {name: value[cuts[name]] if name in cuts else value for name, value in options.items()}
            placed = self.place(pos[part], x[:, part], past=past)
            q, k, v = self.project(x[:, part], placed)
            past = placed if past is None else past.cat(placed)
            encoding, new = self.encoding.layer(self.index, placed)
            q, k = encoding.rotate(q, k, new)
            keys.append(k)
            values.append(encoding.rotate_v(v, new))
            everything = encoding, new, self.encoding.layer(self.index, past)[1]
            rows.append(attend(q, torch.cat(keys, 2), torch.cat(values, 2), *everything, rotated=True, **here))
        return torch.cat(rows, 2)

    def differ(self, got: Tensor, wanted: Tensor, largest: Tensor | float = 1.0) -> Iterable[str]:
        """Yield a message if two tensors differ by more than the tolerance.

        For scores the tolerance is relative to the largest score. Outputs are values weighted by a softmax, where an
        error of a score becomes that error times the output: there the tolerance is relative to the largest score,
        given as `largest`, times the largest output.
        """
        if got.shape != wanted.shape:
            yield f"shape {tuple(got.shape)} instead of {tuple(wanted.shape)}"
            return
        if got.numel() == 0:
            return
        error = float((got.detach().double() - wanted.detach().double()).abs().max())
        unit = max(1.0, float(largest)) * max(1.0, float(wanted.detach().abs().max()))
        if not error <= TOLERANCE[self.dtype] * unit:
            dtype = torch.float32 if self.rounds else self.dtype
            if not error <= TOLERANCE[dtype] * unit:
                yield f"differs by {error:.2g}, where {TOLERANCE[dtype] * unit:.2g} is allowed in {dtype}"

    @cached_property
    def rounds(self) -> bool:
        """Whether a user's class computes in float32 in float64 too: steps of tokens, far below float32's, show it."""
        if self.dtype == torch.float32 or card_of(self.original) is not None:
            return self.dtype == torch.float32
        x, pos = self.tokens(9), self.positions(9)
        near = [self.layer(x + n * 1e-8 * x.flip(1), pos, causal=False).detach() for n in range(3)]
        bend = (near[0] - 2 * near[1] + near[2]).abs().max()
        return bool(bend > 1e-11 * near[0].abs().max().clamp(min=1.0))

    def largest(self, x: Tensor, pos: Tensor) -> float:
        """Return the largest score of the layer."""
        placed = self.place(pos, x)
        q, k, _ = self.project(x, placed)
        return float(self.scores(q, k, placed).detach().abs().max()) if q.numel() else 1.0
