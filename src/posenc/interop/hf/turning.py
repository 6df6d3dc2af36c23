"""What stands in for the rotary functions of modeling files, and the trials that show that it does the same."""

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

TOLERANCE = 3e-4  # of numbers around 1: angles of float32, at the positions of trials, are within 3e-5
_WAYS: list[tuple[Side, Pairing, bool]] = [
    ("first", "half", False),
    ("first", "interleaved", False),
    ("last", "half", False),
    ("last", "interleaved", False),
    ("first", "half", True),
]


class Turn:
    """Turn q and k by tables (batch | 1, seq, n_pairs): a cosine and a sine a pair, the gain inside.

    Args:
        names: The arguments of the function in whose place it stands: one or two tensors, and then "cos" and "sin" in
            any order or one name of a table (.., 2, n_pairs), which was complex (Llama 4, DeepSeek-V2).
        pairing: Which lanes turn together.
        side: Which end of the head turns where tables are narrower than the head.
        sorts: Whether the lanes 0, 2, .., 1, 3, .. are put in this order first (DeepSeek's code turns pairs
            2k and 2k + 1 so).
        heads_dim: Which dimension of q and k counts heads, where the caller does not say by "unsqueeze_dim".
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
        self.alone = len(self.moved) == 1  # whether q without k comes back as a tensor
        self.turned = False  # a mark for whoever watches one attention

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Turn as the function does in whose place it stands."""
        given = dict(zip(self.names, args, strict=False)) | kwargs
        q, k = given[self.moved[0]], given.get(self.moved[-1]) if len(self.moved) == 2 else None
        cos, sin = (given["cos"], given["sin"]) if "cos" in given else given[self.names[2]].unbind(-2)
        out = self.both(q, k, cos, sin, given.get("unsqueeze_dim", self.heads_dim))
        return out[0] if k is None and self.alone else out

    def both(self, q: Tensor, k: Tensor | None, cos: Tensor, sin: Tensor, heads_dim: int) -> Any:
        """Turn one or both; tables may be on another device, and have no heads: these would stand at `heads_dim`."""
        self.turned = True
        if cos.device != q.device:
            cos, sin = cos.to(q.device), sin.to(q.device)
        encoding = self._encoding(int(q.shape[-1]), 2 * int(cos.shape[-1]))  # torch.jit traces sizes
        placed = Placed(cos[..., 0], (cos, sin))
        swaps, bare = heads_dim == cos.ndim - 1, q.ndim == 3  # tokens stand before heads; there is no batch
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
        """Return what turns heads of a width; a compiler follows this, and no constructor."""
        own = object.__new__(RoPE)
        own.__dict__ = vars(self.of_one) | {"head_dim": head_dim, "rotary_dim": rotary_dim}
        return own


def like(function: Callable[..., Any], theirs: Any, ours: tuple[Tensor, Tensor]) -> Turn:
    """Return what does the same as a rotary function of a modeling file.

    Args:
        function: Theirs.
        theirs: The tables that it takes: (cos, sin) of any layout, or a complex one.
        ours: The same tables as (1, seq, n_pairs) each.

    Raises:
        LeftError: Nothing here does.
    """
    parameters = inspect.signature(function).parameters
    names = list(parameters)
    if {"cos", "sin"} in ({*names[1:3]}, {*names[2:4]}):
        tables = dict(zip(("cos", "sin"), theirs, strict=True)), dict(zip(("cos", "sin"), ours, strict=True))
    elif len(names) == 3 and torch.is_tensor(theirs):
        tables = {names[2]: theirs}, {names[2]: torch.stack(ours, -2)}
    else:
        raise LeftError(
            f"its function {function.__name__}({', '.join(names)}) takes other arguments than are known here"
        )
    said = "unsqueeze_dim" in names
    for heads_dim, (side, pairing, sorts) in product((1, 2), _WAYS):
        turn = Turn(names, pairing, side, sorts, parameters["unsqueeze_dim"].default if said else heads_dim)
        if _same(turn, function, *tables, [{"unsqueeze_dim": 1}, {"unsqueeze_dim": 2}] if said else [{}]):
            return turn
    raise LeftError(
        f"its function {function.__name__} turns otherwise than by pairs of lanes (k, k + n) or (2k, 2k + 1)"
    )


def _same(turn: Turn, function: Any, theirs: dict[str, Any], ours: dict[str, Tensor], hows: list[Any]) -> bool:
    """Whether both turn random queries and keys alike: as wide as the tables, wider, and both orders of dimensions."""
    table, n_moved = next(iter(ours.values())), len(turn.moved)
    for extra, how in product((0, 4), hows):
        x = _drawn(table, extra, how.get("unsqueeze_dim", turn.heads_dim) == 2)[:n_moved]
        wanted = _tried(function, *x, **theirs, **how)
        if wanted is None and extra:  # it takes no heads that are wider than its tables
            continue
        if wanted is None or not _close(turn(*x, **ours, **how), wanted):
            return False
    if n_moved == 2:
        turn.alone = torch.is_tensor(_tried(function, _drawn(table, 0, False)[0], None, **theirs))
    return True


def _drawn(table: Tensor, extra: int, swapped: bool) -> list[Tensor]:
    """Return random queries and keys for a table (1, seq, n_pairs)."""
    generator = torch.Generator().manual_seed(0)
    drawn = (torch.randn(2, 3, table.shape[1], 2 * table.shape[-1] + extra, generator=generator) for _ in "qk")
    return [x.transpose(1, 2) if swapped else x for x in drawn]


def _tried(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Return what a function returns, None where it does not take this."""
    try:
        return function(*args, **kwargs)
    except (RuntimeError, ValueError, IndexError, TypeError, AttributeError):
        return None


def _close(got: Any, wanted: Any) -> bool:
    got, wanted = ((x,) if torch.is_tensor(x) else x for x in (got, wanted))
    return len(got) == len(wanted) and all(
        a.shape == b.shape and bool((a - b).abs().max() < TOLERANCE) for a, b in zip(got, wanted, strict=True)
    )
