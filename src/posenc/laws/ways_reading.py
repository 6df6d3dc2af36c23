"""Ways that differ in what the code reads: long texts, other contents, and positions whose values are hidden."""

import copy
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.func import vmap

from posenc.encoding import Encoding, Placed
from posenc.families.bias import Bias
from posenc.families.embedded import Additive, Embedded
from posenc.laws.case import Case
from posenc.probe import REFUSALS, form_scores

LOOKUPS = ("additive", "bias", "content_bias")  # families that look positions up in tables
LONG = 8192  # tokens, after which sums in float32 have lost the differences between neighbours


def other_contents(encoding: Encoding, q: Tensor, k: Tensor, placed: Placed) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield the bias and the score map of other queries and keys, if an encoding declares that it reads none."""
    if encoding.reads_qk:
        return
    other = q.flip(2) + 1.0, 2.0 - k.flip(2)
    got, wanted = (encoding.bias(*qk, placed, placed) for qk in (other, (q, k)))
    if got is not None and wanted is not None:
        yield "bias of other queries and keys, without reads_qk", got, wanted
    if encoding.rescores:
        scores = q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT
        got, wanted = (encoding.rescore(scores, *qk, placed, placed, None) for qk in (other, (q, k)))
        yield "rescore of other queries and keys, without reads_qk", got, wanted


def embedded(case: Case, x: Tensor, pos: Tensor, placed: Placed) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield the module call of an encoding that changes tokens, its vectors, and one text without a batch."""
    encoding = case.encoding
    if not isinstance(encoding, Embedded):
        return
    whole = encoding.embed(x, placed)
    yield "forward", encoding(x, pos), whole
    if isinstance(encoding, Additive) and case.dtype == torch.float32:
        yield "vectors", encoding.vectors(placed.pos).to(x.dtype), placed.parts[0]
    if placed.seq_dim == 0:
        yield "embed, without a batch", encoding.embed(x[0], placed), whole[0]


@torch.no_grad()
def end_of_text(case: Case) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield the bias of the last of many tokens in float32, and in float64."""
    encoding = case.encoding
    if not (isinstance(encoding, Bias) and encoding.reads_x) or encoding.n_axes > 1 or case.max_len is not None:
        return
    x, pos = case.tokens(LONG, batch=1), case.positions(LONG)
    q = x.new_zeros(1, case.n_heads, 16, case.head_dim)
    last = encoding.place(pos, x).last(16)
    exact = copy.deepcopy(encoding).double()
    wide = exact.place(pos, x.double(), dtype=torch.float64).last(16)
    wanted = exact.bias(q.double(), q.double(), wide, wide)
    yield "bias, at the end of a long text", encoding.bias(q, q, last, last).double(), wanted


@torch.no_grad()
def hidden_positions(case: Case) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield the scores at positions whose values the code cannot read, as on a GPU: they must be the same.

    A position that is otherwise refused must give NaN there, or fail in the table look-up: as a query, and as a key.
    """
    if case.encoding.family not in LOOKUPS or case.encoding.reads_x:
        return
    for pos in _edges(case):
        first, other = pos[:1], pos[1:]
        try:
            seen = _scores(case, pos, pos)
        except REFUSALS:
            for q_pos, k_pos in ((other, first), (first, other)):
                hidden = _hidden(case, q_pos, k_pos)
                if hidden is not None and bool(hidden.isfinite().any()):
                    yield (
                        f"place with hidden values, at the refused position {other[0].tolist()}",
                        hidden,
                        hidden + 1,
                    )
            continue
        hidden = _hidden(case, pos, pos)
        if hidden is not None and bool(seen.isfinite().all()):
            yield "place with hidden values", hidden, seen


def _scores(case: Case, q_pos: Tensor, k_pos: Tensor) -> Tensor:
    x = case.token.expand(1, len(q_pos), -1)
    placed, k_placed = case.place(q_pos, x), case.place(k_pos, x)
    q, k = case.project(x, placed)[0], case.project(x, k_placed)[1]
    encoding, placed = case.encoding.layer(case.index, placed)
    return form_scores(encoding, placed, q, k, case.encoding.layer(case.index, k_placed)[1])


def _hidden(case: Case, q_pos: Tensor, k_pos: Tensor) -> Tensor | None:
    """Return the scores at positions that a transform hides; None if the look-up or the transform refuses them."""
    try:
        return vmap(lambda a, b: _scores(case, a, b))(q_pos[None], k_pos[None])[0]
    except REFUSALS:
        return None


def _edges(case: Case) -> Iterator[Tensor]:
    """Yield position zero with another: the last along each axis, those after it, and negative ones."""
    n_axes = case.encoding.n_axes
    last = case.longest if case.max_len is None else case.max_len - 1
    ends = (-1, -2) if last is None else (last, last + 1, last + 2, -1, -2)
    for axis in range(n_axes):
        for end in ends:
            pos = torch.zeros(2, n_axes, dtype=torch.int64)
            pos[1, axis] = end
            yield pos if n_axes > 1 else pos[:, 0]
