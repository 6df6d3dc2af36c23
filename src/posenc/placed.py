"""Placed positions, and functions over the tensors in structures of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from posenc.private import register_pytree, within_transform
from posenc.versions import is_exporting

_Tree = TypeVar("_Tree")


@dataclass(frozen=True, eq=False)
class Placed:
    """Positions that an encoding has placed; opaque to hosts, and a pytree.

    Args:
        pos: The positions in int64 or float64.
        parts: The encoding's own values for them; the sequence dimension of tensors is that of `pos`.
        n_axes: The encoding's number of axes, which determines the sequence dimension.
    """

    pos: Tensor
    parts: tuple[Any, ...] = ()
    n_axes: int = 1

    @property
    def seq_dim(self) -> int:
        """The dimension of tokens: 0, or 1 after a batch."""
        return self.pos.ndim - 1 - (self.n_axes > 1)

    def cat(self, other: "Placed") -> "Placed":
        """Append later tokens, as in a cache; a sequence without a batch is broadcast to the other's batch."""
        here, there = self, other
        batches = [p.pos.shape[0] for p in (here, there) if p.seq_dim]
        if batches:
            here, there = here._batched(max(batches)), there._batched(max(batches))
        dim = here.seq_dim
        return map_tensors(lambda a, b: torch.cat((a, b), dim), here, there)

    def rows(self, begin: int, end: int, batch: slice = slice(None)) -> "Placed":
        """Keep the tokens begin .. end - 1, of some items of the batch if there is one."""
        dim = self.seq_dim
        return map_tensors(lambda t: (t[batch] if dim and len(t) > 1 else t).narrow(dim, begin, end - begin), self)

    def last(self, n: int) -> "Placed":
        """Keep the last `n` tokens, for example the queries of a call with a cache."""
        length, dim = self.pos.shape[self.seq_dim], self.seq_dim
        if n > length:
            raise ValueError(f"Placed: has {length} tokens; got last({n}). Pass at most {length}.")
        return map_tensors(lambda t: t.narrow(dim, length - n, n), self)

    def _batched(self, batch: int) -> "Placed":
        if self.seq_dim == 1 and self.pos.shape[0] == batch:
            return self
        begin = self.seq_dim  # after a batch of one, if there is one
        return map_tensors(lambda t: t.expand(batch, *t.shape[begin:]), self)


register_pytree(Placed, ("pos", "parts"), "n_axes")


def map_tensors(f: Callable[..., Tensor], tree: _Tree, *others: Any) -> _Tree:
    """Map the tensors of a structure.

    Args:
        f: A function of a tensor of `tree` and those in the same place of the `others`.
        tree: Tensors in Placed, tuples, lists and dictionaries; anything else is kept.
        others: Structures like `tree`.

    >>> map_tensors(torch.neg, (torch.tensor(1), [torch.tensor(2), "three"]))
    (tensor(-1), [tensor(-2), 'three'])
    """
    found: _Tree = _map(f, tree, *others)
    return found


def _map(f: Callable[..., Tensor], tree: Any, *others: Any) -> Any:
    if isinstance(tree, Tensor):
        return f(tree, *others)
    if isinstance(tree, Placed):
        pos = _map(f, tree.pos, *(other.pos for other in others))
        return Placed(pos, _map(f, tree.parts, *(other.parts for other in others)), tree.n_axes)
    if isinstance(tree, dict):
        return {key: _map(f, value, *(other[key] for other in others)) for key, value in tree.items()}
    if isinstance(tree, (tuple, list)):
        kind = list if isinstance(tree, list) else tuple
        return kind(_map(f, *each) for each in zip(tree, *others, strict=True))
    return tree


def once(parts: _Tree) -> _Tree:
    """Return parts that a compiled graph computes once.

    A compiler fuses a formula into each operation that reads it. It would compute the cosines and sines of a forward
    pass again in every layer and head. Exported files, which may run without posenc, have no such operator.
    """
    if not torch.compiler.is_dynamo_compiling() or is_exporting() or within_transform():
        return parts
    return map_tensors(lambda t: _once(t) if t.is_floating_point() else t, parts)


@torch.library.custom_op("posenc::once", mutates_args=())
def _once(t: Tensor) -> Tensor:
    return t.clone()


@_once.register_fake
def _(t: Tensor) -> Tensor:
    return t.clone()


def _same(ctx: Any, grad: Tensor) -> Tensor:
    return grad


_once.register_autograd(_same)


def tensors(tree: Any) -> list[Tensor]:
    """Return the tensors in Placed, tuples, lists and dictionaries, in order."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, Placed):
        return [*tensors(tree.pos), *tensors(tree.parts)]
    if isinstance(tree, dict):
        return tensors(list(tree.values()))
    return [t for part in tree for t in tensors(part)] if isinstance(tree, (tuple, list)) else []
