"""The gradients of the pieces of a block's bias, gathered from some heads after the others."""

from collections.abc import Sequence

import torch
from torch import Tensor

from posenc.attention.heads import Heads
from posenc.attention.scratch import Scratch
from posenc.families import Piece


class Gathered:
    """What comes together from the gradients of scores.

    Pieces that have a number for each pair see one memory, of the keys that any of them is of; of the others sums are
    kept.

    Args:
        pieces: All of a block's bias; those that need no gradients are left out.
        shape: (batch, heads, q_len, k_len) of the block.
        scratch: Where memory comes from.
        like: A tensor of the dtype and on the device of scores.
    """

    def __init__(self, pieces: Sequence[Piece], shape: tuple[int, ...], scratch: Scratch, like: Tensor) -> None:
        learned = [piece for piece in pieces if piece.term.requires_grad]
        self.full = [piece for piece in learned if piece.term.shape == (*shape[:3], piece.end - piece.first)]
        self.rest = [piece for piece in learned if piece.term.shape != (*shape[:3], piece.end - piece.first)]
        self.first = min((piece.first for piece in self.full), default=0)
        self.end = max((piece.end for piece in self.full), default=0)
        self.is_all = self.end - self.first == shape[3]
        self.memory = scratch.take("d_bias", (*shape[:3], self.end - self.first), like)
        self.sums = [torch.zeros_like(piece.term) for piece in self.rest]

    def memory_of(self, heads: Heads) -> Tensor | None:
        """Return where gradients of the scores of some heads may be formed, to be found there; None to copy them."""
        here = self.memory[:, heads.of_q]
        return here if self.is_all and here.is_contiguous() else None  # that of several items is not

    def add(self, heads: Heads, d_scores: Tensor) -> None:
        """Take the gradients of the scores of some heads."""
        here = self.memory[:, heads.of_q]
        if here.data_ptr() != d_scores.data_ptr():
            here.copy_(d_scores[..., self.first : self.end])
        for (first, end, _), total in zip(self.rest, self.sums, strict=True):
            part = some(total, heads)
            part += d_scores[..., first:end].sum_to_size(part.shape)

    def found(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return the terms that learn, and their gradients."""
        grads = [self.memory[..., first - self.first : end - self.first] for first, end, _ in self.full]
        return [piece.term for piece in (*self.full, *self.rest)], [*grads, *self.sums]


def some(t: Tensor, heads: Heads) -> Tensor:
    """Return what terms (... heads | 1, q_len, k_len), or of fewer dimensions, have for some heads."""
    return t[..., heads.of_q, :, :] if t.ndim > 2 and t.shape[-3] > 1 else t
