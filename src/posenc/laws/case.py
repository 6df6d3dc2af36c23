"""What the laws work with: a law's shape, and a small attention layer around an encoding."""

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posenc import positions
from posenc.attention import attend
from posenc.compose import PerLayer
from posenc.encoding import Encoding, Placed

TOLERANCE = {torch.float64: 1e-12, torch.float32: 4e-6}  # of the largest score


@dataclass(frozen=True)
class Law:
    """A statement that holds for every encoding, and the function that looks.

    Args:
        name: Short and unique.
        text: The statement.
        look: Takes a `Case` and yields a message for each thing that does not hold.
        by_dtype: Whether it is stated in float64 and float32 apart.
        compiles: Whether it runs a compiler.
    """

    name: str
    text: str
    look: Callable[["Case"], Iterable[str]]
    by_dtype: bool = True
    compiles: bool = False

    def __call__(self, encoding: Encoding, dtype: torch.dtype = torch.float64) -> list[str]:
        """Return what does not hold; an unexpected exception is one of those things."""
        layers = range(len(encoding)) if isinstance(encoding, PerLayer) else [0]
        cases = [Case(encoding, dtype if self.by_dtype else torch.float64, index=i) for i in layers]
        seen: list[str] = []
        for case in cases:
            try:
                seen += self.look(case)
            except Exception as error:
                seen.append(f"raised {type(error).__name__}: {error}")
        return seen


def statute(laws: list[Law], name: str, **facts: bool) -> Callable[..., Any]:
    """Decorate a function as a law; its docstring is the statement."""

    def decorate(look: Callable[["Case"], Iterable[str]]) -> Callable[["Case"], Iterable[str]]:
        laws.append(Law(name, (look.__doc__ or "").strip(), look, **facts))
        return look

    return decorate


class Case:
    """An encoding with random parameters inside a self-attention layer with random projections.

    Args:
        encoding: Copied; its parameters are drawn from N(0, 1).
        dtype: Of everything.
        index: Of the layer, where each has its own encoding.

    Raises:
        ValueError: The encoding has too few positions for the laws.
    """

    batch = 2

    def __init__(self, encoding: Encoding, dtype: torch.dtype, index: int = 0) -> None:
        self.random = torch.Generator().manual_seed(2017)
        self.original, self.dtype, self.index = encoding, dtype, index
        self.encoding = copy.deepcopy(encoding).to(dtype)
        for parameter in self.encoding.parameters():
            parameter.data = self.normal(*parameter.shape).to(parameter.dtype)
        self.n_heads = self._find("n_heads", 4)
        self.n_kv_heads = self.n_heads // 2 if self.n_heads % 2 == 0 else self.n_heads
        self.head_dim = self._find("head_dim", 8)
        self.d_model = self._find("d_model", 32)
        self.max_len: int | None = self._find("max_len", None)
        if self.max_len is not None and self.max_len < 64:
            raise ValueError(
                f"laws: need 64 positions to look at; got {encoding.name} with max_len={self.max_len}. "
                "Hold one with max_len=64 or more against them."
            )
        widths = {"q": self.n_heads, "k": self.n_kv_heads, "v": self.n_kv_heads}
        self.projections = {
            name: self.normal(self.d_model, heads * self.head_dim) / self.d_model**0.5 for name, heads in widths.items()
        }

    def _find(self, fact: str, default: Any) -> Any:
        """Look for a host fact among the encoding and its members."""
        found = (getattr(module, fact) for module in self.encoding.modules() if hasattr(module, fact))
        return next(found, default)

    def normal(self, *shape: int) -> Tensor:
        """Draw from N(0, 1)."""
        return torch.randn(*shape, generator=self.random, dtype=torch.float64).to(self.dtype)

    def tokens(self, seq_len: int, batch: int | None = None) -> Tensor:
        """Draw tokens (batch, seq_len, d_model)."""
        return self.normal(self.batch if batch is None else batch, seq_len, self.d_model)

    def positions(self, seq_len: int, *, start: int = 0) -> Tensor:
        """Count from `start`, or as near to it as the encoding's longest position allows."""
        if self.max_len is not None:
            start = min(start, self.max_len - seq_len)
        row = positions.arange(seq_len, start=start)
        return torch.stack([row] * self.encoding.n_axes, -1) if self.encoding.n_axes > 1 else row

    def place(self, pos: Tensor, x: Tensor | None, *, past: Placed | None = None) -> Placed:
        """Place in the precision of the case."""
        wide = torch.float64 if self.dtype == torch.float64 else torch.float32
        return self.encoding.place(pos, x if self.encoding.reads_x else None, past=past, dtype=wide)

    def project(self, x: Tensor, placed: Placed) -> tuple[Tensor, Tensor, Tensor]:
        """Embed tokens and return q, k, v."""
        x = self.encoding.embed(x, placed)
        q, k, v = (
            (x @ self.projections[name].to(x.dtype)).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for name in "qkv"
        )
        return q, k, v

    def layer(self, x: Tensor, pos: Tensor, **options: Any) -> Tensor:
        """Run the layer in one pass: (batch, seq, d_model) -> (batch, n_heads, seq, head_dim)."""
        placed = self.place(pos, x)
        q, k, v = self.project(x, placed)
        encoding, placed = self.encoding.layer(self.index, placed)
        return attend(q, k, v, encoding, placed, **options)

    def cached(self, x: Tensor, pos: Tensor, chunks: Sequence[int], **options: Any) -> Tensor:
        """Run the layer chunk by chunk against a cache of rotated keys; return all rows.

        `options` are those of one pass; masks (q_len, k_len) and document ids are cut to each chunk.
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
            values.append(v)
            everything = encoding, new, self.encoding.layer(self.index, past)[1]
            rows.append(attend(q, torch.cat(keys, 2), torch.cat(values, 2), *everything, rotated=True, **here))
        return torch.cat(rows, 2)

    def scores(self, q: Tensor, k: Tensor, placed: Placed) -> Tensor:
        """Form the scores of one layer by the contract's own doors."""
        encoding, placed = self.encoding.layer(self.index, placed)
        turned_q, turned_k = encoding.rotate(q, k, placed)
        group = q.shape[1] // k.shape[1]
        scores = encoding.score_scale(q.shape[-1]) * turned_q @ turned_k.repeat_interleave(group, 1).transpose(-1, -2)
        bias = encoding.bias(q, k, placed, placed)
        return scores if bias is None else scores + bias

    def differ(self, got: Tensor, wanted: Tensor, largest: Tensor | float = 1.0) -> Iterable[str]:
        """Yield a message if two tensors differ by more than the tolerance.

        Scores are compared by themselves: the tolerance is of the largest of them. Outputs are values weighted
        by a softmax, which turns an error of a score into that error times the output: there the tolerance is
        of the largest score, given as `largest`, times the largest output.
        """
        if got.shape != wanted.shape:
            yield f"shape {tuple(got.shape)} instead of {tuple(wanted.shape)}"
            return
        if got.numel() == 0:
            return
        error = float((got.detach().double() - wanted.detach().double()).abs().max())
        bound = TOLERANCE[self.dtype] * max(1.0, float(largest)) * max(1.0, float(wanted.detach().abs().max()))
        if not error <= bound:
            yield f"differs by {error:.2g}, where {bound:.2g} is allowed in {self.dtype}"

    def largest(self, x: Tensor, pos: Tensor) -> float:
        """Return the largest score of the layer."""
        placed = self.place(pos, x)
        q, k, _ = self.project(x, placed)
        return float(self.scores(q, k, placed).detach().abs().max()) if q.numel() else 1.0
