"""Calls and blocks in parts of their heads, so that what is formed for some lies in the memory of those before."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from posenc.attention.call import Call
from posenc.attention.leaves import Leaf, tensors
from posenc.attention.scratch import Scratch
from posenc.families import Bias
from posenc.positions.checks import all_plain


class Heads(NamedTuple):
    """Some heads: those of the queries, and those of the keys that they share."""

    of_q: slice
    of_k: slice


ALL = Heads(slice(None), slice(None))
Run = Callable[[Call, slice, Scratch | None, Tensor | None], Tensor]
AT_ONCE = 2**22  # scores that are formed: four heads' of 256 queries and 4,096 keys, of which caches hold some


def by_heads(
    call: Call,
    run: Run,
    n_parts: int,
    *,
    least: int,
    by_thread: bool = False,
) -> Tensor:
    """Run some heads after the others where that saves memory; all at once where gradients are kept, or on a GPU.

    Args:
        call: The call.
        run: Computes one part, given which of the heads it has, memory that the next is given again, and where its
            result is to lie; both None where it has all of them, as where gradients may need them.
        n_parts: How many there are to be.
        least: Numbers of q, from which on memory counts for more than a few calls.
        by_thread: A part has a head for each thread at least.
    """
    batch, n_heads, q_len, _ = call.shape
    if not cuts(call, least):
        return run(call, slice(None), None, None)
    out = call.q.new_empty((batch, n_heads, q_len, call.v.shape[-1]), dtype=call.out_dtype)
    size = max(torch.get_num_threads() if by_thread else 1, n_heads // n_parts)
    q, k = call.turned()
    scratch = Scratch()
    for rows, part in _parts(replace(call, q=q, k=k, rotated=True), size):
        into = out[:, rows]
        if (found := run(part, rows, scratch, into)) is not into:
            into.copy_(found)
    return out


def cuts(call: Call, least: int) -> bool:
    """Whether `by_heads` runs some heads after the others."""
    if torch.compiler.is_compiling() or torch.is_grad_enabled() or call.q.device.type != "cpu":
        return False
    if call.q.numel() < least or call.encoding.rescores or not all(map(_splits, call.leaves)):
        return False
    return all_plain(
        (call.q, call.k, call.v, *call.encoding.parameters(), *tensors(call.placed), *tensors(call.k_placed))
    )


def _splits(leaf: Leaf) -> bool:
    """Whether a bias says itself what it is for one head, as a product."""
    if not isinstance(leaf.encoding, Bias):
        return False
    shapes = _of(leaf, 0, 1).shapes
    return shapes is not None and all(shape[1] == 1 for shape in shapes)


def _parts(call: Call, size: int) -> Iterator[tuple[slice, Call]]:
    n_heads = call.shape[1]
    group = n_heads // call.k.shape[1]
    # whole groups that share a key's head, or a share of one
    size = size // group * group if size >= group else max(n for n in range(1, size + 1) if group % n == 0)
    for at in range(0, n_heads, size):
        rows = slice(at, min(at + size, n_heads))
        keys = slice(at // group, (rows.stop - 1) // group + 1)
        mask = call.mask if call.mask is None or call.mask.shape[1] == 1 else call.mask[:, rows]
        leaves = [_of(leaf, at, rows.stop - at) for leaf in call.leaves]
        yield rows, replace(call, q=call.q[:, rows], k=call.k[:, keys], v=call.v[:, keys], mask=mask, leaves=leaves)


def _of(leaf: Leaf, first: int, n: int) -> Leaf:
    assert isinstance(leaf.encoding, Bias)  # as `_splits` has looked
    begin = leaf.encoding.held[0]
    return replace(leaf, encoding=leaf.encoding.of_heads(begin + first, n))


def parts_of_heads(batch: int, n_heads: int, n_kv: int, size: tuple[int, int], *, rows: bool) -> list[Heads]:
    """Return heads of a block of so many queries and keys, some at a time: what is formed for few stays in a cache.

    A part has a head for each thread, and `AT_ONCE` scores, at least: half of them where `rows` of as many numbers are
    formed beside them.
    """
    group = n_heads // n_kv
    at_least = max(1, batch) * group
    at_once = AT_ONCE // 2 if rows else AT_ONCE
    n = max(-(-torch.get_num_threads() // at_least), at_once // (at_least * size[0] * size[1]))
    ends = [(first, min(first + n, n_kv)) for first in range(0, n_kv, n)]
    return [Heads(slice(first * group, end * group), slice(first, end)) for first, end in ends]
