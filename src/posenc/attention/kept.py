"""The bias of one query, kept from one step of generation to the next: only the first step pays for forming it."""

from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from posenc.attention.leaves import over
from posenc.encoding import Placed
from posenc.families import Bias

LEAST = 1024  # distances that are formed at once


class Kept(NamedTuple):
    """What one encoding gave, and all that it may depend on."""

    state: list[tuple[dict[str, Any], list[Any]]]  # its attributes and its modules', compared by identity
    learned: Sequence[tuple[Tensor, Tensor]]  # what it learned, and copies: a number may change and leave no mark
    vector: Tensor  # (heads, n) over distances n - 1, ..., 0
    rising: Tensor  # 0, ..., n - 1


_kept: WeakKeyDictionary[Bias, Kept] = WeakKeyDictionary()  # beside the encodings, which stay as they are


def row(encoding: Bias, placed: Placed, k_placed: Placed) -> Tensor | None:
    """Return the bias (heads, k_len) of one query on keys at rising positions up to its own; None if they are others.

    For a bias that sees distances alone, whole ones. What is returned is a view of memory that later steps share, and
    must not be written to. Nothing here has gradients.
    """
    k_pos, n = k_placed.pos, k_placed.pos.shape[0]
    first = int(placed.pos) + 1 - n
    if first < 0:
        return None
    kept = _kept.get(encoding)
    if kept is None or kept.rising.shape[0] < n or not _holds(kept, placed):
        kept = _kept[encoding] = _form(encoding, placed, max(LEAST, 2 * n))
    if first:
        k_pos = k_pos - first
    return kept.vector[:, kept.rising.shape[0] - n :] if torch.equal(k_pos, kept.rising[:n]) else None


def _form(encoding: Bias, placed: Placed, n: int) -> Kept:
    rising = torch.arange(n, device=placed.pos.device)
    learned = [(p, p.detach().clone()) for p in encoding.parameters()]
    state = [(names, list(names.values())) for module in encoding.modules() for names in _of(module)]
    return Kept(state, learned, over(encoding, placed, rising.flip(0)), rising)


def _of(module: nn.Module) -> tuple[dict[str, Any], ...]:
    return vars(module), module._parameters, module._buffers, module._modules


def _holds(kept: Kept, placed: Placed) -> bool:
    """Whether an encoding is as it was when its bias was formed, number by number."""
    if (kept.vector.dtype == torch.float64) != placed.parts[0].is_floating_point():
        return False
    for names, values in kept.state:
        if [*map(id, names.values())] != [*map(id, values)]:
            return False
    return all(torch.equal(now, then) for now, then in kept.learned)
