"""The encodings that join the scores of a call, and what may be known of them before a score is formed."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from posenc.encoding import Encoding, Placed
from posenc.families import Bias, ContentBias
from posenc.placed import map_tensors, tensors
from posenc.positions.checks import may_look
from posenc.versions import FOLLOWS_VARS

REACH = 4  # times the lengths of q and k that positions may spread over, for a bias to be looked up


@dataclass(frozen=True, eq=False)
class Leaf:
    """One encoding that joins the scores, and what was placed for it."""

    encoding: Encoding
    placed: Placed
    k_placed: Placed

    @cached_property
    def away(self) -> tuple[Tensor, Tensor]:
        """Position minus index of queries and of keys, (batch | 1, length) each."""
        q, k = (p.pos - torch.arange(p.pos.shape[-1], device=p.pos.device) for p in (self.placed, self.k_placed))
        return torch.atleast_2d(q), torch.atleast_2d(k)

    @cached_property
    def shift(self) -> int | None:
        """By how much that of any query exceeds that of any key, if it is one number; asked once in a call."""
        one = all(bool((away == away[:1, :1]).all()) for away in self.away)
        return int(self.away[0][0, 0] - self.away[1][0, 0]) if one else None

    @cached_property
    def extremes(self) -> tuple[int, int]:
        """The smallest and the largest distance that occur: read once in a call, since a GPU is waited for."""
        ends = torch.stack((*self.placed.pos.aminmax(), *self.k_placed.pos.aminmax())).tolist()
        return int(ends[0] - ends[3]), int(ends[1] - ends[2])

    @property
    def is_near(self) -> bool:
        """Whether a vector of all distances that occur is not much longer than q and k."""
        low, high = self.extremes
        return high - low <= reach(self.placed.pos.shape[-1] + self.k_placed.pos.shape[-1])


class Door(nn.Module):
    """An encoding's bias, or map of scores, as a module's forward, so that its parameters can be given as arguments."""

    def __init__(self, encoding: Encoding) -> None:
        super().__init__()
        self.encoding = encoding

    def forward(self, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed, *rescored: Any) -> Tensor | None:
        """Return the bias, or the map of scores where these are given, and who sees whom."""
        if not rescored:
            return self.encoding.bias(q, k, placed, k_placed)
        scores, allowed = rescored
        return self.encoding.rescore(scores, q, k, placed, k_placed, allowed)


def biased(q: Tensor, k: Tensor, encoding: Encoding, placed: Placed, k_placed: Placed) -> list[Leaf]:
    """Return the encodings that join the scores."""
    pairs = zip(encoding.leaves(placed), encoding.leaves(k_placed), strict=True)
    leaves = [Leaf(leaf, part, k_part) for (leaf, part), (_, k_part) in pairs]
    return [leaf for leaf in leaves if _has_bias(leaf, q, k)]


def sees_distance(leaf: Leaf) -> bool:
    """Whether a bias is one number for each distance between two whole positions, which may be looked at."""
    return isinstance(leaf.encoding, Bias) and may_slice(leaf)


def may_slice(leaf: Leaf) -> bool:
    """Whether an encoding sees only distances, whole ones, which may be looked at."""
    return is_by_distance(leaf) and all(may_look(p.pos) for p in (leaf.placed, leaf.k_placed))


def is_by_distance(leaf: Leaf) -> bool:
    """Whether an encoding sees only distances between positions, which are whole numbers here."""
    return (
        isinstance(leaf.encoding, (Bias, ContentBias))
        and leaf.encoding.by_distance
        and knows(leaf.encoding, "by_distance", "bias", "parts", *(["at"] if isinstance(leaf.encoding, Bias) else []))
        and not any(p.pos.is_floating_point() or p.n_axes > 1 for p in (leaf.placed, leaf.k_placed))
    )


def knows(encoding: Encoding, promise: str, *methods: str) -> bool:
    """Whether what a class says of its methods is said of those that an encoding has.

    A subclass that defines one of them anew, and not the promise, has promised nothing.
    """
    order = type(encoding).__mro__
    promised, *defined = (next(i for i, cls in enumerate(order) if n in vars(cls)) for n in (promise, *methods))
    return promised <= min(defined)


def reach(n_tokens: int) -> int:
    """Return how long a vector of distances may be for queries and keys of so many tokens in all."""
    return REACH * n_tokens + 64


def hidden(encoding: Encoding) -> str | None:
    """Name a tensor that carries gradients and is no parameter, which no backward pass could be given; or None."""
    if torch.compiler.is_compiling() and not FOLLOWS_VARS:
        return None
    for module in encoding.modules():
        for name, t in vars(module).items():
            if isinstance(t, Tensor) and t.requires_grad:
                return f"{type(module).__name__}.{name}"
    return None


def learning(tree: Any) -> list[Tensor]:
    """Return the tensors of what was placed that carry gradients."""
    return [t for t in tensors(tree) if t.requires_grad]


def with_parts(tree: Any, others: Sequence[Tensor]) -> Any:
    """Return what was placed with others in place of its `learning` tensors."""
    given = iter(others)
    return map_tensors(lambda t: next(given) if t.requires_grad else t, tree)


def _has_bias(leaf: Leaf, q: Tensor, k: Tensor) -> bool:
    encoding = leaf.encoding
    if isinstance(encoding, Bias):
        encoding.check_heads(q)
        return True
    if type(encoding).bias is Encoding.bias:
        return False
    return encoding.bias(q[:, :, :0], k[:, :, :0], leaf.placed.last(0), leaf.k_placed.last(0)) is not None
