"""The encodings that add to the scores of a call, and their properties that backends depend on."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from posenc.encoding import Encoding, Placed
from posenc.families import Bias, ContentBias
from posenc.families.bias import keeps_promise
from posenc.placed import map_tensors, tensors
from posenc.positions.checks import may_look
from posenc.versions import FOLLOWS_VARS

REACH = 4  # biases are looked up if positions spread over at most so many times the lengths of q and k


@dataclass(frozen=True, eq=False)
class Leaf:
    """One encoding that adds to the scores, with its placed positions."""

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
        """Position minus index of the queries, less that of the keys, if it is one number; computed once per call."""
        one = all(bool((away == away[:1, :1]).all()) for away in self.away)
        return int(self.away[0][0, 0] - self.away[1][0, 0]) if one else None

    @cached_property
    def extremes(self) -> tuple[int, int]:
        """The smallest and the largest distance that occur; read once per call, since reading waits for a GPU."""
        ends = torch.stack((*self.placed.pos.aminmax(), *self.k_placed.pos.aminmax())).tolist()
        return int(ends[0] - ends[3]), int(ends[1] - ends[2])

    @property
    def is_near(self) -> bool:
        """Whether a vector over all distances that occur is not much longer than q and k."""
        low, high = self.extremes
        return high - low <= reach(self.placed.pos.shape[-1] + self.k_placed.pos.shape[-1])


class BiasModule(nn.Module):
    """An encoding's bias or score map as a module's forward, so that `functional_call` can replace its parameters."""

    def __init__(self, encoding: Encoding) -> None:
        super().__init__()
        self.encoding = encoding

    def forward(self, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed, *rescored: Any) -> Tensor | None:
        """Return the bias; or, given scores and the mask of visible pairs, the mapped scores."""
        if not rescored:
            return self.encoding.bias(q, k, placed, k_placed)
        scores, allowed = rescored
        return self.encoding.rescore(scores, q, k, placed, k_placed, allowed)


def biased(q: Tensor, k: Tensor, encoding: Encoding, placed: Placed, k_placed: Placed) -> list[Leaf]:
    """Return the encodings that add to the scores."""
    pairs = zip(encoding.leaves(placed), encoding.leaves(k_placed), strict=True)
    leaves = [Leaf(leaf, part, k_part) for (leaf, part), (_, k_part) in pairs]
    return [leaf for leaf in leaves if _has_bias(leaf, q, k)]


def sees_distance(leaf: Leaf) -> bool:
    """Whether a bias is one number for each integer distance, and positions can be read."""
    return isinstance(leaf.encoding, Bias) and may_slice(leaf)


def may_slice(leaf: Leaf) -> bool:
    """Whether an encoding depends only on integer distances, and positions can be read."""
    return is_by_distance(leaf) and all(may_look(p.pos) for p in (leaf.placed, leaf.k_placed))


def is_by_distance(leaf: Leaf) -> bool:
    """Whether an encoding depends only on distances between positions, and these are integers here."""
    return (
        isinstance(leaf.encoding, (Bias, ContentBias))
        and leaf.encoding.by_distance
        and keeps_promise(
            leaf.encoding, "by_distance", "bias", "parts", *(["at"] if isinstance(leaf.encoding, Bias) else [])
        )
        and not any(p.pos.is_floating_point() or p.n_axes > 1 for p in (leaf.placed, leaf.k_placed))
    )


def reach(n_tokens: int) -> int:
    """Return the longest vector of distances that is looked up for `n_tokens` queries and keys in all."""
    return REACH * n_tokens + 64


def unregistered(encoding: Encoding) -> str | None:
    """Name a tensor that carries gradients but is not a parameter, so a backward pass cannot find it; or None."""
    if torch.compiler.is_compiling() and not FOLLOWS_VARS:
        return None
    for module in encoding.modules():
        for name, t in vars(module).items():
            if isinstance(t, Tensor) and t.requires_grad:
                return f"{type(module).__name__}.{name}"
    return None


def learning(tree: Any) -> list[Tensor]:
    """Return the tensors of placed positions that carry gradients."""
    return [t for t in tensors(tree) if t.requires_grad]


def with_parts(tree: Any, others: Sequence[Tensor]) -> Any:
    """Return placed positions with other tensors in place of the `learning` ones."""
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
