"""Turns written out in float64, memory of every kind to turn, and what is around it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, NamedTuple

import torch
from torch import Tensor

import posenc
from posenc import positions
from strategies import normal

BACKENDS = ("numba", "blocked", "formula", "auto")
HALVES = (torch.bfloat16, torch.float16)
PAIRINGS = ("half", "interleaved")
KINDS = [(x, t) for x in (*HALVES, torch.float32, torch.float64) for t in (torch.float32, torch.float64)]
N = 5
WIDTH: dict[str, Any] = {"head_dim": 10, "rotary_dim": 6, "rotary_side": "last"}


def kind_name(value: Any) -> str | None:
    """Name a case by its kinds of numbers."""
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, tuple) and value and all(isinstance(t, torch.dtype) for t in value):
        return "-by-".join(str(t).removeprefix("torch.") for t in value)
    return None


def able(backend: str, x: torch.dtype, table: torch.dtype) -> bool:
    """Whether a backend that is named turns these: numba has no way from float64 to half the width of float32."""
    return not (backend == "numba" and x in HALVES and table == torch.float64)


class Exact(NamedTuple):
    """A turn in float64, and the size of the products that it is the sum of."""

    turn: Tensor
    size: Tensor

    def holds(self, got: Tensor, table: torch.dtype) -> None:
        """Compare with what a kernel wrote: rounded once, after arithmetic in the tables' precision."""
        assert got.shape == self.turn.shape
        info, wide = torch.finfo(got.dtype), torch.finfo(torch.promote_types(got.dtype, table))
        slack = self.turn.abs() * info.eps / 2 + info.smallest_normal * info.eps + 2 * wide.eps * self.size
        if got.dtype == wide.dtype:
            slack = 2 * wide.eps * self.size + info.smallest_normal * info.eps
        wrong = (got.double() - self.turn).abs() - slack
        assert bool((wrong <= 0).all()), float(wrong.max())


def exact(x: Tensor, cos: Tensor, sin: Tensor, *, pairing: str, side: str = "first") -> Exact:
    """Turn x (batch, heads, seq, lanes) by tables (batch | 1, table heads, seq, pairs), pair by pair."""
    wide, c, s = (t.detach().double() for t in (x, cos, sin))
    c, s = (t.repeat_interleave(x.shape[1] // t.shape[1], 1).expand(x.shape[0], -1, -1, -1) for t in (c, s))
    turned, size, n = wide.clone(), torch.zeros_like(wide), c.shape[-1]
    low = 0 if side == "first" else x.shape[-1] - 2 * n
    for k in range(n):
        i, j = (low + k, low + k + n) if pairing == "half" else (low + 2 * k, low + 2 * k + 1)
        a, b, ck, sk = wide[..., i], wide[..., j], c[..., k], s[..., k]
        turned[..., i], turned[..., j] = a * ck - b * sk, b * ck + a * sk
        size[..., i], size[..., j] = (a * ck).abs() + (b * sk).abs(), (b * ck).abs() + (a * sk).abs()
    return Exact(turned, size)


def tables(placed: posenc.Placed, which: int = 0, *, by_head: bool = False) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of queries (0) or keys (1) as (batch | 1, table heads, seq, pairs)."""
    found = placed.parts[:2] if which == 0 else placed.parts[-2:]
    cos, sin = found if by_head else (t.unsqueeze(-2) for t in found)  # (..., seq, table heads, pairs)
    return tuple((t if t.ndim == 4 else t[None]).transpose(1, 2) for t in (cos, sin))


class Memory(NamedTuple):
    """A tensor inside a larger piece of memory, and what that held before."""

    tensor: Tensor
    whole: Tensor
    before: Tensor

    def untouched_around(self) -> bool:
        """Whether nothing was written but the tensor."""
        now = self.whole.clone()
        torch.as_strided(now, self.tensor.shape, self.tensor.stride(), self.tensor.storage_offset()).copy_(
            torch.as_strided(self.before, self.tensor.shape, self.tensor.stride(), self.tensor.storage_offset())
        )
        return bits_equal(now, self.before)

    def untouched(self) -> bool:
        """Whether nothing was written at all."""
        return bits_equal(self.whole, self.before)


LAYOUTS = ("plain", "transposed", "fused", "odd", "strided")


def memory(values: Tensor, layout: str) -> Memory:
    """Lay values (batch, heads, seq, lanes) out in memory that is NaN all around."""
    b, h, s, d = values.shape

    def room(*shape: int) -> Tensor:
        return torch.full(shape, torch.nan, dtype=values.dtype, device=values.device)

    if layout == "plain":
        view = room(b * h * s * d + 2 * d)[d:-d].view(b, h, s, d)
    elif layout == "transposed":  # as models have it
        view = room(b, s, h, d).transpose(1, 2)
    elif layout == "fused":  # a part of one projection
        view = room(b, s, h + 3, d)[:, :, 2 : 2 + h].transpose(1, 2)
    elif layout == "odd":  # no pair lies as a complex number must
        view = room(b * h * s * d + 5)[3:-2].view(b, h, s, d)
    else:  # odd strides everywhere, gaps everywhere
        view = room(b + 1, h + 2, s + 3, d + 3)[1:, 1 : 1 + h, 2 : 2 + s, 1 : 1 + d]
    view.copy_(values)
    whole = torch.as_strided(view, (view.untyped_storage().nbytes() // view.element_size(),), (1,), 0)
    return Memory(view, whole, whole.clone())


def bits(x: Tensor) -> Tensor:
    """Return the bytes of a tensor."""
    return x.detach().contiguous().view(torch.uint8)


def bits_equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are the same, NaN and the sign of zero too."""
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(bits(a), bits(b))


def alone(code: str, *, timeout: float = 60, **environment: str) -> str:
    """Run code in a Python of its own and return what it prints; it must end well, and in time."""
    import os

    done = subprocess.run(
        [sys.executable, "-c", code],
        env={k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"} | environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def rope_and_places(pairing: Any = "half", *, dtype: torch.dtype = torch.float64) -> tuple[posenc.RoPE, posenc.Placed]:
    rope = posenc.RoPE(**WIDTH, pairing=pairing, attention_factor=1.3)
    return rope, rope.place(positions.arange(N, start=2), dtype=dtype)


def q_and_k(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    return normal(2, 4, N, 10, dtype=dtype), normal(2, 2, N, 10, seed=1, dtype=dtype)


def back(grad: Tensor, placed: posenc.Placed, pairing: str = "half", which: int = 0) -> Exact:
    """Gradients are the transposed turn: the same cosines, and sines of the other sign."""
    cos, sin = tables(placed, which)
    return exact(grad, cos, -sin, pairing=pairing, side="last")
