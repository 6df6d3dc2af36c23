"""Ways to count the tokens of packed documents, right and wrong."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

Formula = Callable[[Sequence[int]], Tensor]


def bounds(lengths: Sequence[int]) -> Tensor:
    """Return where documents of these lengths begin, and where the last one ends."""
    return torch.tensor([0, *lengths]).cumsum(0)


def right(lengths: Sequence[int]) -> Tensor:
    """Count from 0 in every document: what is right."""
    return torch.cat([torch.arange(n) for n in lengths]).double()


def not_reset(lengths: Sequence[int]) -> Tensor:
    """Count on through all documents."""
    return torch.arange(sum(lengths)).double()


def _previous_length(lengths: Sequence[int]) -> Tensor:
    index, before = not_reset(lengths), (0, *lengths[:-1])
    return index - torch.repeat_interleave(torch.tensor(before), torch.tensor(lengths))


def _late(lengths: Sequence[int]) -> Tensor:
    """Let the first token of a document be counted to the one before it."""
    out, begin = right(lengths), 0
    for before, n in pairwise(lengths):
        begin += before
        out[begin] = before if n else out[begin]
    return out


def _early(lengths: Sequence[int]) -> Tensor:
    """Let the last token of a document be counted to the one after it, as its position 0."""
    out, end = right(lengths), 0
    for n in lengths[:-1]:
        end += n
        out[end - 1] = 0
    return out


def _from_one(lengths: Sequence[int]) -> Tensor:
    """Begin at 0 in the first document, at 1 in all others."""
    out = right(lengths)
    out[lengths[0] :] += 1
    return out


def _second_late(lengths: Sequence[int]) -> Tensor:
    out = right(lengths)
    out[lengths[0] :] -= 1
    return out


def _ids(lengths: Sequence[int]) -> Tensor:
    return torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)).double()


def _by_first(lengths: Sequence[int]) -> Tensor:
    return not_reset(lengths) % lengths[0]


def _by_longest(lengths: Sequence[int]) -> Tensor:
    return not_reset(lengths) % max(lengths)


def _first_only(lengths: Sequence[int]) -> Tensor:
    """Reset after the first document only."""
    index = not_reset(lengths)
    index[lengths[0] :] -= lengths[0]
    return index


def _last_lost(lengths: Sequence[int]) -> Tensor:
    """Give the last document no reset."""
    out = right(lengths)
    if len(lengths) > 1:
        out[-lengths[-1] :] += lengths[-2]
    return out


def _last_absolute(lengths: Sequence[int]) -> Tensor:
    out, n = right(lengths), lengths[-1]
    out[-n:] = not_reset(lengths)[-n:]
    return out


def _last_zero(lengths: Sequence[int]) -> Tensor:
    out = right(lengths)
    out[-lengths[-1] :] = 0
    return out


def _backwards(lengths: Sequence[int]) -> Tensor:
    return torch.cat([torch.arange(n - 1, -1, -1) for n in lengths]).double()


def _from_the_end(last: int) -> Formula:
    """Count all tokens from the last one of the last document."""
    return lambda lengths: not_reset(lengths).flip(0) + last


def _backwards_from_one(lengths: Sequence[int]) -> Tensor:
    return _backwards(lengths) + 1


def _half(dtype: torch.dtype) -> Formula:
    return lambda lengths: right(lengths).to(dtype).double()


def _difference_in_half(dtype: torch.dtype) -> Formula:
    """Round the running index and the starts before they are subtracted."""

    def formula(lengths: Sequence[int]) -> Tensor:
        starts = torch.repeat_interleave(bounds(lengths)[:-1], torch.tensor(lengths))
        return (not_reset(lengths).to(dtype) - starts.to(dtype)).double()

    return formula


def _short_difference(lengths: Sequence[int]) -> Tensor:
    """Form the running index and the starts in int16, and subtract afterwards."""
    starts = torch.repeat_interleave(bounds(lengths)[:-1], torch.tensor(lengths))
    return not_reset(lengths).to(torch.int16).double() - starts.to(torch.int16).double()


WRAP = "takes the running index modulo a length, so that documents restart in the middle and not where they begin"
_PRECISION = "forms positions in half precision, in which neighbours become equal"
_SHORT = "counts in int16, which ends at 32767"
FORMULAS: list[tuple[Formula, str, str]] = [
    (not_reset, "positions.packed_not_reset", "counts on through all documents"),
    (_first_only, "positions.packed.first_reset_only", "begins anew at the second document only"),
    (_previous_length, "positions.packed.previous_length", "subtracts the length of the document before, not its end"),
    (_by_first, "positions.packed.modulo_wrap", WRAP + " (that of the first document)"),
    (_by_longest, "positions.packed.modulo_wrap", WRAP + " (that of the longest document)"),
    (_late, "positions.packed.boundary", "counts the first token of a document to the document before it"),
    (_early, "positions.packed.boundary", "gives the last token of a document to the one after it"),
    (_from_one, "positions.packed.off_by_one", "begins at 0 in the first document and at 1 in all others"),
    (_second_late, "positions.packed.off_by_one", "begins at 0 in the first document and at -1 in all others"),
    (_last_lost, "positions.packed.last_document", "does not restart at the last document"),
    (_last_absolute, "positions.packed.last_document", "gives the last document the running index"),
    (_last_zero, "positions.packed.last_document", "gives all tokens of the last document position 0"),
    (_ids, "positions.packed.document_index", "returns the number of the document instead of the position in it"),
    (_backwards, "positions.packed.reversed", "counts from the end of each document"),
    (_backwards_from_one, "positions.packed.reversed", "counts from the end of each document, whose last token has 1"),
    (_from_the_end(0), "positions.packed.from_the_end", "counts all tokens from the end of the last document"),
    (_from_the_end(1), "positions.packed.from_the_end", "counts all tokens from the end of the last document"),
    (_half(torch.bfloat16), "positions.precision", _PRECISION),
    (_half(torch.float16), "positions.precision", _PRECISION),
    (_half(torch.int16), "positions.wrapped", _SHORT),
    (_short_difference, "positions.wrapped", _SHORT),
    (_difference_in_half(torch.bfloat16), "positions.precision", _PRECISION),
    (_difference_in_half(torch.float16), "positions.precision", _PRECISION),
]
