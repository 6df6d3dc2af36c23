"""What stands in for the rotary functions of modeling files, and the trials that show that it does the same."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from posenc.encoding import Placed
from posenc.encodings import RoPE
from posenc.kernels.eager import Pairing, Side

TOLERANCE = 3e-4  # of numbers around 1: angles of float32, at the positions of trials, are within 3e-5


class Turn:
    """Turn q and k by tables (batch | 1, seq, n_pairs): a cosine and a sine a pair, the gain inside.

    Args:
        pairing: Which lanes turn together.
        side: Which end of the head turns where tables are narrower than the head.
        sorts: Whether the lanes 0, 2, .., 1, 3, .. stand in this order afterwards (DeepSeek's code turns pairs
            2k and 2k + 1 so).
        heads_dim: Which dimension of q and k counts heads, where the caller does not say.
        alone: Whether q alone comes back as a tensor where there is no k.
    """

    def __init__(
        self, pairing: Pairing, side: Side = "first", *, sorts: bool = False, heads_dim: int = 1, alone: bool = False
    ) -> None:
        self.pairing: Pairing = pairing
        self.side: Side = side
        self.sorts, self.heads_dim, self.alone = sorts, heads_dim, alone
        self.encodings: dict[tuple[int, int], RoPE] = {}
        self.turned = False  # a mark for whoever watches one attention

    @property
    def way(self) -> tuple[object, ...]:
        """What two of them must have in common to be the same."""
        return type(self), self.pairing, self.side, self.sorts, self.heads_dim, self.alone

    def widths(self, *head_dims: int, n_pairs: int) -> None:
        """Construct what turns heads of these widths, before a compiler looks."""
        for head_dim in {2 * n_pairs, *head_dims}:
            if head_dim >= 2 * n_pairs:
                self._encoding(head_dim, n_pairs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Turn as the function does in whose place it stands."""
        raise NotImplementedError

    def both(self, q: Tensor, k: Tensor | None, cos: Tensor, sin: Tensor, heads_dim: int) -> Any:
        """Turn one or both; tables may be on another device, and have no heads: these would stand at `heads_dim`."""
        self.turned = True
        if cos.device != q.device:
            cos, sin = cos.to(q.device), sin.to(q.device)
        encoding = self._encoding(int(q.shape[-1]), int(cos.shape[-1]))  # torch.jit traces sizes
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

    def _encoding(self, head_dim: int, n_pairs: int) -> RoPE:
        found = self.encodings.get((head_dim, n_pairs))
        if found is None:
            pairing: Pairing = "half" if self.sorts else self.pairing
            found = RoPE(head_dim=head_dim, rotary_dim=2 * n_pairs, rotary_side=self.side, pairing=pairing)
            self.encodings[head_dim, n_pairs] = found
        return found


class Pair(Turn):
    """`(q, k, cos, sin, ...) -> (q, k)`: the form of most files."""

    def __call__(
        self,
        q: Tensor,
        k: Tensor | None = None,
        cos: Any = None,
        sin: Any = None,
        position_ids: object = None,
        unsqueeze_dim: int = 1,
    ) -> Any:
        """Turn both."""
        out = self.both(q, k, cos, sin, unsqueeze_dim)
        return out[0] if k is None and self.alone else out


class One(Turn):
    """`(x, cos, sin, unsqueeze_dim) -> x`: the form of Gemma 3n and 4."""

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Tensor:
        """Turn queries or keys."""
        out: Tensor = self.both(x, None, cos, sin, unsqueeze_dim)[0]
        return out


class SineFirst(Turn):
    """`(tensor, sin, cos) -> tensor`, (batch, seq, heads, head_dim): the form of GPT-J."""

    def __call__(self, tensor: Tensor, sin: Tensor, cos: Tensor) -> Tensor:
        """Turn queries or keys."""
        out: Tensor = self.both(tensor, None, cos, sin, 2)[0]
        return out


class Complex(Turn):
    """`(xq, xk, freqs_cis) -> (xq, xk)`; what was complex is a table (.., 2, n_pairs): Llama 4 and DeepSeek-V2."""

    def __call__(self, xq: Tensor, xk: Tensor, freqs_cis: Tensor) -> Any:
        """Turn both."""
        cos, sin = freqs_cis.unbind(-2)
        return self.both(xq, xk, cos, sin, self.heads_dim)


def like(function: Callable[..., Any], theirs: Any, ours: tuple[Tensor, Tensor]) -> Turn | str:
    """Return what does the same as a rotary function of a modeling file, or a sentence why nothing here does.

    Args:
        function: Theirs.
        theirs: The tables that it takes: (cos, sin) of any layout, or a complex one.
        ours: The same tables as (1, seq, n_pairs) each.
    """
    names = list(inspect.signature(function).parameters)
    form: type[Turn]
    if names[:3] == ["tensor", "sin", "cos"]:
        form, theirs = SineFirst, theirs[::-1]
    elif names[1:3] == ["cos", "sin"]:
        form = One
    elif names[2:4] == ["cos", "sin"]:
        form = Pair
    elif len(names) == 3 and torch.is_tensor(theirs):
        form, theirs, ours = Complex, (theirs,), (torch.stack(ours, -2),)  # type: ignore[assignment]
    else:
        return f"its function {function.__name__}({', '.join(names)}) takes other arguments than are known here"
    tables = ours if form is not SineFirst else ours[::-1]
    for turn in _candidates(form):
        if _same(turn, function, theirs, tables, names):
            return turn
    return f"its function {function.__name__} turns otherwise than by pairs of lanes (k, k + n) or (2k, 2k + 1)"


def _candidates(form: type[Turn]) -> list[Turn]:
    sides: tuple[Side, ...] = ("first", "last")
    found = [form(pairing, side) for side in sides for pairing in ("half", "interleaved")]
    if form is Complex:
        found += [Complex("interleaved", heads_dim=2)]
    return [*found, form("interleaved", sorts=True)]


def _same(turn: Turn, function: Any, theirs: Any, ours: Any, names: list[str]) -> bool:
    """Whether both turn random queries and keys alike: as wide as the tables, wider, and both orders of dimensions."""
    both = isinstance(turn, Pair | Complex)
    for extra in (0, 4):
        for how in ({"unsqueeze_dim": 1}, {"unsqueeze_dim": 2}) if "unsqueeze_dim" in names else ({},):
            swapped = isinstance(turn, SineFirst) or 2 in (turn.heads_dim, how.get("unsqueeze_dim"))
            x = _drawn(ours[0], extra, swapped)[: 1 + both]
            wanted = _tried(function, *x, *theirs, **how)
            if wanted is None and extra:  # it takes no heads that are wider than its tables
                continue
            if wanted is None or not _close(turn(*x, *ours, **how), wanted):
                return False
    if isinstance(turn, Pair):
        turn.alone = torch.is_tensor(_tried(function, _drawn(ours[0], 0, False)[0], None, *theirs))
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
