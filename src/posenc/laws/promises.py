"""Properties that a registered bias should declare, because attention is faster with them."""

from collections.abc import Iterator

from posenc import registry
from posenc.families import Bias, ContentBias
from posenc.laws.case import Case


def missing(case: Case, card: registry.Card) -> Iterator[str]:
    """Yield a message for each property that holds, according to the card, but is not declared."""
    encoding = case.encoding
    vectors = isinstance(encoding, ContentBias) and type(encoding).vectors is not ContentBias.vectors
    if vectors and not encoding.by_distance:
        yield "defines vectors(), but attention never calls it because by_distance is False"
    if not isinstance(encoding, Bias):
        return
    only_positions = encoding.n_axes == 1 and not encoding.reads_x
    if only_positions and card.traits["shift_invariant"] and not encoding.by_distance:
        yield "declared shift_invariant, but by_distance is False, so attention computes every pair"
