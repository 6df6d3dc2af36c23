"""The limits of positions: which ones must be refused along each axis, and what the card declares about them."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from posenc import positions, registry
from posenc.laws.case import Case
from posenc.probe import REFUSALS, Probe

MOST = 2**20  # an encoding that accepts this position has no limit along that axis


def refused(case: Case) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield (description, call) for positions beyond the last, which must be refused, if there is a last one."""
    if case.max_len is None:
        return
    if case.encoding.n_axes == 1:
        yield "a position beyond the last", lambda: case.encoding.place(positions.arange(5, start=case.max_len or 0))
        return
    for axis in range(case.encoding.n_axes):
        last = _last(case, axis)
        if last is not None:
            yield f"a position beyond the last on axis {axis}", partial(use, case, _cell(case, axis, last + 1))


def inconsistencies(case: Case) -> Iterator[str]:
    """Yield a message for each contradiction between the last positions of the axes, and for wrapped negative ones."""
    if case.max_len is None:
        return
    lasts = [_last(case, axis) for axis in range(case.encoding.n_axes)]
    corner = torch.tensor([[0] * len(lasts), [last or 0 for last in lasts]])
    corner = corner if case.encoding.n_axes > 1 else corner[:, 0]
    if not takes(case, corner):
        yield f"the last positions {lasts} are accepted on each axis separately, but not together"
    if case.encoding.n_axes > 1 and None not in lasts and min(last or 0 for last in lasts) + 1 != case.max_len:
        yield f"max_len={case.max_len}, but the last positions on the axes are {lasts}"
    if case.encoding.family == "additive":
        yield from _aliases(case, lasts)


def _aliases(case: Case, lasts: list[int | None]) -> Iterator[str]:
    """Yield a message for each negative position that gets the vector of another position, as a wrapped index does."""
    axes = [torch.arange((63 if last is None else last) + 1) for last in lasts]
    every = torch.cartesian_prod(*axes).view(-1, len(axes))
    if len(every) > 2**16:
        return
    vectors = _embedded(case, every)
    places = [_cell(case, axis, -n)[1:].view(1, -1) for axis in range(len(axes)) for n in (1, 2, 3)]
    places += [torch.tensor([[-1, n]]) for n in range(1, 5)] if len(axes) == 2 else []  # positions of class tokens
    for before in places:
        if takes(case, before.view(1, -1) if len(axes) > 1 else before.view(1)):
            same = (vectors == _embedded(case, before)).all(-1).nonzero()
            if len(same) and bool(vectors[same[0, 0]].ne(0).any()):
                yield f"position {before[0].tolist()} gets the vector of position {every[same[0, 0]].tolist()}"


def _embedded(case: Case, pos: Tensor) -> Tensor:
    places = pos if case.encoding.n_axes > 1 else pos[:, 0]
    x = torch.zeros(1, len(places), case.d_model, dtype=case.dtype)
    return case.encoding.embed(x, case.place(places, x)).detach()[0]


def _cell(case: Case, axis: int, position: int) -> Tensor:
    """Return position zero, and the one at `position` along an axis, zero on the others."""
    pos = torch.zeros(2, case.encoding.n_axes, dtype=torch.int64)
    pos[1, axis] = position
    return pos if case.encoding.n_axes > 1 else pos[:, 0]


def _last(case: Case, axis: int) -> int | None:
    """Return the last position along an axis that is accepted; None if `MOST` is accepted."""
    if takes(case, _cell(case, axis, MOST)):
        return None
    taken, not_taken = 0, MOST
    while not_taken - taken > 1:
        middle = (taken + not_taken) // 2
        taken, not_taken = (middle, not_taken) if takes(case, _cell(case, axis, middle)) else (taken, middle)
    return taken


def use(case: Case, pos: Tensor) -> Tensor:
    """Compute the layer's scores at positions."""
    x = case.tokens(len(pos), batch=1)
    placed = case.place(pos, x)
    q, k, _ = case.project(x, placed)
    return case.scores(q, k, placed)


def takes(case: Case, pos: Tensor) -> bool:
    """Return whether the layer accepts the positions."""
    try:
        use(case, pos)
    except REFUSALS:
        return False
    return True


def declared(case: Case, card: registry.Card) -> Iterator[str]:
    """Yield a message if a card declares a wrong last position or number of learned parameters for its example."""
    if case.dtype != torch.float64 or repr(case.original) != repr(card.cls(**card.example).eval()):
        return
    found = {"longest": Probe(case.original, torch.float32).longest}
    found["learned"] = sum(p.numel() for p in case.original.parameters())
    for trait, value in found.items():
        stated = card.traits.get(trait, value)
        if value != stated:
            yield f"declared {trait}={stated}, but it is {value}"
