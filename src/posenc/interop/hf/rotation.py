"""Replacements for the rotary functions of modeling files, and the trials that show that they are equal."""

import inspect
from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from torch import Tensor

from posenc.encoding import Placed
from posenc.encodings import RoPE
from posenc.interop.hf.patching import LeftError
from posenc.kernels.eager import Pairing, Side

TOLERANCE = 3e-4  # for numbers around 1; float32 angles at the positions of the trials are within 3e-5
_WAYS: list[tuple[Side, Pairing, bool]] = [
    ("first", "half", False),
    ("first", "interleaved", False),
    ("last", "half", False),
    ("last", "interleaved", False),
    ("first", "half", True),
]


class Rotation:
    """Rotate q and k by tables (batch | 1, seq, n_pairs) of cosines and sines, with the gain multiplied in.

    Args:
        names: The arguments of the replaced function: one or two tensors, then "cos" and "sin" in any order, or the
            name of one table (.., 2, n_pairs), which was complex (Llama 4, DeepSeek-V2).
        pairing: The pairing of dimensions.
        side: Which end of the head rotates if the tables are narrower than the head.
        sorts: Whether dimensions are first sorted as 0, 2, .., 1, 3, .., by which DeepSeek's code rotates the pairs
            2k and 2k + 1.
        heads_dim: The dimension of heads in q and k, if the caller does not pass "unsqueeze_dim".
    """

    def __init__(
        self,
        names: list[str],
        pairing: Pairing,
        side: Side = "first",
        sorts: bool = False,
        heads_dim: int = 1,
    ) -> None:
        self.names, self.sorts, self.heads_dim = names, sorts, heads_dim
        self.way = tuple(names), pairing, side, sorts, heads_dim
        self.of_one = RoPE(head_dim=2, rotary_side=side, pairing=pairing)
        self.moved = names[: min(map(names.index, ("cos", "sin")))] if "cos" in names else names[:2]
        self.returns_tensor = len(self.moved) == 1  # whether a call without k returns q itself
        self.called = False  # read by `rephased`, which resets it before each call of an attention layer

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Rotate as the replaced function does."""
        given = dict(zip(self.names, args, strict=False)) | kwargs
        q, k = given[self.moved[0]], given.get(self.moved[-1]) if len(self.moved) == 2 else None
        cos, sin = (given["cos"], given["sin"]) if "cos" in given else given[self.names[2]].unbind(-2)
        out = self.both(q, k, cos, sin, given.get("unsqueeze_dim", self.heads_dim))
        return out[0] if k is None and self.returns_tensor else out

    def both(self, q: Tensor, k: Tensor | None, cos: Tensor, sin: Tensor, heads_dim: int) -> Any:
        """Rotate q, or q and k; tables may be on another device, and have no dimension of heads (at `heads_dim`)."""
        self.called = True
        if cos.device != q.device:
            cos, sin = cos.to(q.device), sin.to(q.device)
        encoding = self._encoding(int(q.shape[-1]), 2 * int(cos.shape[-1]))  # torch.jit traces sizes
        placed = Placed(cos[..., 0], (cos, sin))
        swaps, bare = heads_dim == cos.ndim - 1, q.ndim == 3  # tokens come before heads; there is no batch
        x = self._ready(q, swaps, bare)
        if k is None:
            return self._back(encoding.rotate_q(x, placed), swaps, bare), None
        y = self._ready(k, swaps, bare)
        x, y = encoding.rotate(x, y, placed)
        return self._back(x, swaps, bare), self._back(y, swaps, bare)

    def _ready(self, x: Tensor, swaps: bool, bare: bool) -> Tensor:
        if self.sorts:
            x = x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
        x = x.transpose(-3, -2) if swaps else x
        return x[None] if bare else x

    def _back(self, x: Tensor, swaps: bool, bare: bool) -> Tensor:
        x = x[0] if bare else x
        return x.transpose(-3, -2) if swaps else x

    def _encoding(self, head_dim: int, rotary_dim: int) -> RoPE:
        """Return the RoPE for a width of heads, made without its constructor, which a compiler cannot trace."""
        own = object.__new__(RoPE)
        own.__dict__ = vars(self.of_one) | {"head_dim": head_dim, "rotary_dim": rotary_dim}
        return own


def like(function: Callable[..., Any], theirs: Any, ours: tuple[Tensor, Tensor]) -> Rotation:
    """Return the rotation that equals a rotary function of a modeling file.

    Args:
        function: The function.
        theirs: Its tables: (cos, sin) of any layout, or a complex one.
        ours: The same tables as (1, seq, n_pairs) each.

    Raises:
        LeftError: No rotation equals it.
    """
    parameters = inspect.signature(function).parameters
    names = list(parameters)
    if {"cos", "sin"} in ({*names[1:3]}, {*names[2:4]}):
        tables = dict(zip(("cos", "sin"), theirs, strict=True)), dict(zip(("cos", "sin"), ours, strict=True))
    elif len(names) == 3 and torch.is_tensor(theirs):
        tables = {names[2]: theirs}, {names[2]: torch.stack(ours, -2)}
    else:
        raise LeftError(f"its function {function.__name__}({', '.join(names)}) has arguments that are not supported")
    by_argument = "unsqueeze_dim" in names
    for heads_dim, (side, pairing, sorts) in product((1, 2), _WAYS):
        default = parameters["unsqueeze_dim"].default if by_argument else heads_dim
        found = Rotation(names, pairing, side, sorts, default)
        if _same(found, function, *tables, [{"unsqueeze_dim": 1}, {"unsqueeze_dim": 2}] if by_argument else [{}]):
            return found
    raise LeftError(f"its function {function.__name__} does not rotate pairs of dimensions (k, k + n) or (2k, 2k + 1)")


def _same(rotation: Rotation, function: Any, theirs: dict[str, Any], ours: dict[str, Tensor], hows: list[Any]) -> bool:
    """Whether both rotate random queries and keys alike: as wide as the tables and wider, in both dimension orders."""
    table, n_moved = next(iter(ours.values())), len(rotation.moved)
    for extra, how in product((0, 4), hows):
        x = _drawn(table, extra, how.get("unsqueeze_dim", rotation.heads_dim) == 2)[:n_moved]
        wanted = _tried(function, *x, **theirs, **how)
        if wanted is None and extra:  # it does not support heads wider than its tables
            continue
        if wanted is None or not _close(rotation(*x, **ours, **how), wanted):
            return False
    if n_moved == 2:
        rotation.returns_tensor = torch.is_tensor(_tried(function, _drawn(table, 0, False)[0], None, **theirs))
    return True


def _drawn(table: Tensor, extra: int, swapped: bool) -> list[Tensor]:
    """Return random queries and keys for a table (1, seq, n_pairs)."""
    generator = torch.Generator().manual_seed(0)
    drawn = (torch.randn(2, 3, table.shape[1], 2 * table.shape[-1] + extra, generator=generator) for _ in "qk")
    return [x.transpose(1, 2) if swapped else x for x in drawn]


def _tried(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the result of a function, or None if it refuses the arguments."""
    try:
        return function(*args, **kwargs)
    except (RuntimeError, ValueError, IndexError, TypeError, AttributeError):
        return None


def _close(got: Any, wanted: Any) -> bool:
    got, wanted = ((x,) if torch.is_tensor(x) else x for x in (got, wanted))
    return len(got) == len(wanted) and all(
        a.shape == b.shape and bool((a - b).abs().max() < TOLERANCE) for a, b in zip(got, wanted, strict=True)
    )
