"""Which entries of a trained table each cell of an image gets, and with what weights: read off gradients.

A code that is linear in a table says by its gradient, cell by cell, what it takes from where. Tables of numbers that
multiply one another, or that pass through a network, are none: their gradients change with the numbers.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from posenc.verify.additive.probe import Probe, leaves
from posenc.verify.additive.waves import Array

_MOST = 6  # rows and columns of an image that are looked at
_FEW = 40  # entries that interpolation takes at most


@dataclass(frozen=True)
class Taken:
    """What one lane of the code takes from one table, over cells of an image.

    Args:
        shape: Places of the table, (rows, columns) or (rows,).
        lane: Of the code.
        lanes: Along the table's axis of lanes, the entries taken; more than one where lanes are mixed.
        cells: (n, 2), row and column of each cell.
        weights: (n, *shape), summed over lanes.
    """

    shape: tuple[int, ...]
    lane: int
    lanes: tuple[int, ...]
    cells: Array
    weights: Array

    @property
    def whole(self) -> bool:
        """Whether each cell takes one entry, as it is."""
        flat = self.weights.reshape(len(self.cells), -1)
        return bool(np.allclose(np.sort(np.abs(flat), 1)[:, :-1], 0, atol=1e-6) and np.allclose(flat.sum(1), 1))

    @property
    def total(self) -> Array:
        """The sum of the weights of each cell: 1 for a table that is taken or interpolated."""
        found: Array = self.weights.reshape(len(self.cells), -1).sum(1)
        return found

    def centres(self) -> Array:
        """Return where in the table each cell takes its code from, (n, axes), as a mean by weight."""
        flat = self.weights.reshape(len(self.cells), -1)
        places = np.stack([g.ravel() for g in np.indices(self.shape)], 1)
        found: Array = (flat @ places) / np.where(np.abs(flat.sum(1)) < 1e-9, 1.0, flat.sum(1))[:, None]
        return found

    def line(self) -> Array:
        """Return the same along the flattened table, (n,)."""
        flat = self.weights.reshape(len(self.cells), -1)
        found: Array = (flat @ np.arange(flat.shape[1])) / np.where(np.abs(flat.sum(1)) < 1e-9, 1.0, flat.sum(1))
        return found


def taken(probe: Probe, size: tuple[int, int]) -> list[Taken]:
    """Return what lanes take from tables in an image of a size; nothing where no table is found.

    Raises:
        SubjectError: The call fails.
    """
    lanes = sorted({0, probe.dim // 4, probe.dim // 2, probe.dim - 1})
    first, second = (_gradients(probe, size, lanes, seed) for seed in (0, 1))
    found: list[Taken] = []
    for (leaf, lane), grads in first.items():
        others = second.get((leaf, lane))
        if others is None:
            continue
        factor = float((grads * others).sum() / grads.square().sum())
        if not torch.allclose(others, factor * grads, atol=1e-5):
            continue  # no table: what is taken depends on other numbers
        gated = abs(factor - 1) > 1e-4  # multiplied by a number that is trained
        found += _placed(probe, grads / (grads[0].sum() if gated else 1.0), lane, _cells(size))
    return found


def _cells(size: tuple[int, int]) -> Array:
    def some(n: int) -> list[int]:
        return sorted({*range(min(3, n)), n // 2, *range(max(n - 2, 0), n)})[:_MOST] if n > _MOST else list(range(n))

    return np.array([(i, j) for i in some(size[0]) for j in some(size[1])])


def _gradients(probe: Probe, size: tuple[int, int], lanes: Sequence[int], seed: int) -> dict[tuple[int, int], Tensor]:
    """Return by leaf and lane the gradients of all cells, stacked."""
    subject = probe.fresh()
    if seed:
        _stir(subject, seed)
    shape = (1, *size)
    free = [t for t in leaves(probe, shape, subject) if t.numel() > 1]
    out = probe.raw(shape, subject=subject, grad=True)
    found: dict[tuple[int, int], list[Tensor]] = {}
    if not free or not out.requires_grad:
        return {}
    for lane in lanes:
        for i, j in _cells(size).tolist():
            grads = torch.autograd.grad(out[0, lane, i, j], free, retain_graph=True, allow_unused=True)
            for index, (leaf, grad) in enumerate(zip(free, grads, strict=True)):
                whole = torch.zeros_like(leaf) if grad is None else grad.detach()
                found.setdefault((index, lane), []).append(whole.double())
    stacked = {key: torch.stack(grads) for key, grads in found.items()}
    return {key: grads for key, grads in stacked.items() if bool(grads.any())}


def _stir(subject: object, seed: int) -> None:
    made = getattr(subject, "__self__", subject)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for t in made.parameters() if isinstance(made, nn.Module) else ():
            t.mul_(1 + torch.rand(t.shape, generator=generator, dtype=torch.float64).to(t.dtype))


def _placed(probe: Probe, grads: Tensor, lane: int, cells: Array) -> Iterator[Taken]:
    """Yield what is taken, with the axis of lanes told from those of places."""
    sizes = grads.shape[1:]
    used = [tuple(np.unique(ix).tolist()) for ix in np.nonzero(grads.numpy())[1:]]
    wide = [a for a, n in enumerate(sizes) if n > 1 and n in _widths(probe.dim)]
    single = [a for a in wide if len(used[a]) == 1]
    # the last of them, unless another has as many lanes as the code: pictures keep lanes first
    axis = max(single or wide, key=lambda a: (sizes[a] == probe.dim, a), default=None)
    if axis is None:
        return
    few = int((grads.flatten(1) != 0).sum(1).max()) <= _FEW
    weights = grads.sum(axis + 1).numpy()
    shape = tuple(n for a, n in enumerate(sizes) if a != axis and n > 1)
    if few and 1 <= len(shape) <= 2:
        yield Taken(shape, lane, used[axis], cells, weights.reshape(len(cells), *shape))


def _widths(dim: int) -> set[int]:
    return {dim, dim // 2, math.ceil(dim / 2), dim // 4} - {0, 1}
