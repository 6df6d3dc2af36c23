"""What a registered bias may promise to attention: what it does not say of itself costs time, and no number."""

from collections.abc import Iterator

from posenc import registry
from posenc.families import Bias, ContentBias
from posenc.laws.case import Case


def unmade(case: Case, card: registry.Card) -> Iterator[str]:
    """Yield the promises that hold, as the card shows, and that are not made."""
    encoding = case.encoding
    vectors = isinstance(encoding, ContentBias) and type(encoding).vectors is not ContentBias.vectors
    if vectors and not encoding.by_distance:
        yield "defines vectors(), which attention never asks for, because by_distance is False"
    if not isinstance(encoding, Bias):
        return
    alone = encoding.n_axes == 1 and not encoding.reads_x
    if alone and card.traits["shift_invariant"] and not encoding.by_distance:
        yield "declared shift_invariant, but by_distance is False, so that attention forms each pair by itself"
