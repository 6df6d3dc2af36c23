"""A bias that is put together of terms of some keys each, so that most of it need not be formed."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor


class Piece(NamedTuple):
    """A term of some keys: it broadcasts to (batch, heads, q_len, n), n keys from `first` on.

    Attributes:
        first: The first of the keys.
        end: The key after the last.
        term: What their scores are added.
    """

    first: int
    end: int
    term: Tensor


def join(pieces: Sequence[Piece], out: Tensor | None = None) -> Tensor:
    """Return the sum of pieces that leave no key out (..., q_len, k_len): in `out`, where that is given.

    Raises:
        ValueError: A key is left out, or a term has neither a number for each of its keys nor one for all.
    """
    rows = torch.broadcast_shapes(*(term.shape[:-1] for *_, term in pieces)) if out is None else out.shape[:-1]
    parts = []
    for a, b in pairwise(_edges(pieces)):
        here = [_within(piece, a, b) for piece in pieces if piece.first <= a and b <= piece.end]
        if not here:
            raise ValueError(f"Pieces leave no key out, and are zero where nothing is added: none has keys {a} to {b}.")
        if out is None:
            parts.append(sum(here[1:], start=here[0]).expand(*rows, b - a))
            continue
        part = out[..., a:b]
        if len(here) == 1:
            part.copy_(here[0])
        else:
            torch.add(here[0].expand_as(part), here[1], out=part)  # each number is written once
        for term in here[2:]:
            part += term
    return torch.cat(parts, -1) if out is None else out


def _edges(pieces: Sequence[Piece]) -> list[int]:
    """Return the keys at which pieces begin or end."""
    n_keys = pieces[0].end if pieces else 0
    if all(first == 0 and end == n_keys for first, end, _ in pieces):
        return [0, n_keys]  # a compiler sorts no lengths that it leaves open, and compiles for each that is hashed
    return sorted({0} | {edge for first, end, _ in pieces for edge in (first, end)})


def _within(piece: Piece, a: int, b: int) -> Tensor:
    first, end, term = piece
    if term.shape[-1:] in ((), (1,)):
        return term
    if term.shape[-1] != end - first:
        raise ValueError(
            f"A piece of the keys {first} to {end} adds a number for each of these {end - first}, or one for all; got "
            f"a term of shape {tuple(term.shape)}."
        )
    return term[..., a - first : b - first]
