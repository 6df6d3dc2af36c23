"""What a registered bias may promise to attention: what it does not say of itself costs time, and no number."""

from collections.abc import Iterator

import torch

from posenc import registry
from posenc.families import Bias, ContentBias
from posenc.laws.case import TOLERANCE, Case


def unmade(case: Case, card: registry.Card) -> Iterator[str]:
    """Yield the promises that hold, as the card or a measurement shows, and that are not made."""
    encoding = case.encoding
    vectors = isinstance(encoding, ContentBias) and type(encoding).vectors is not ContentBias.vectors
    if vectors and not encoding.by_distance:
        yield "defines vectors(), which attention never asks for, because by_distance is False"
    if not isinstance(encoding, Bias):
        return
    alone = encoding.n_axes == 1 and not encoding.reads_x
    if alone and card.traits["shift_invariant"] and not encoding.by_distance:
        yield "declared shift_invariant, but by_distance is False, so that attention forms each pair by itself"
    if case.dtype == torch.float64 and not encoding.factors_ahead and _holds_ahead(case, encoding):
        yield "factors() holds for keys ahead as well, but factors_ahead is False"


def _holds_ahead(case: Case, encoding: Bias) -> bool:
    """Tell whether the product of factors is the bias, but for something of the row, also where keys are ahead."""
    x, pos = case.tokens(9), case.positions(9)
    placed = case.place(pos, x)
    factors = encoding.factors(placed, placed)
    if factors is None:
        return False
    q, k, _ = case.project(x, placed)
    off = factors[0] @ factors[1].mT - encoding.bias(q, k, placed, placed)
    largest = max(1.0, float(factors[1].detach().abs().max()))
    return bool((off - off[..., :1]).abs().max() <= TOLERANCE[case.dtype] * largest)
