"""Tables of sinusoids of distances, with rows from n - 1 to -(n - 1)."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from posenc.verify.engine import Choice, Fault, Seen
from posenc.verify.engine.records import Array, Model
from posenc.verify.families.added import Sinusoid
from posenc.verify.families.added_calls import Shape

DIRECTION = "distances have the opposite sign, which direction='any' allows: sines change their sign"
OPPOSITE = "row r has distance r - (n - 1), the opposite sign"
# Wrong distances of row r in a table of 2n - 1 rows.
DISTANCES: Mapping[str, tuple[Callable[[Array, int], Array], str]] = {
    "row r has distance |(n - 1) - r|, so that both sides look alike": (lambda r, n: abs(n - 1 - r), "sign_lost"),
    "row r has distance -|(n - 1) - r|, so that both sides look alike": (lambda r, n: -abs(n - 1 - r), "sign_lost"),
    OPPOSITE: (lambda r, n: r - n + 1, "direction"),
    "row r has position r, an absolute one": (lambda r, n: r, "absolute_used"),
}


class Distances(Sinusoid):
    """Transformer-XL's sinusoids of distances (Dai et al. 2019), with rows from n - 1 to -(n - 1)."""

    prefix, cut_wrong = "relative_sinusoid", "relative_sinusoid.slice_of_reversed_table"
    shapes = ((3,), (5,), (12,))
    single = (1,)
    later = ((5,), (9,), (3,), (24,), (9,))
    lengths = ()

    def grid(self, shape: Shape) -> Shape:
        """Return the rows of a table."""
        return (2 * shape[0] - 1,)

    def positions(self, model: Model, shape: Shape) -> tuple[Array, ...]:
        """Return the distances of the rows of a table (2n - 1,)."""
        n = shape[0]
        r = np.arange(2 * n - 1, dtype=np.float64)
        return ((DISTANCES[model["place"]][0](r, n) if model["place"] else n - 1 - r) + model["start"],)

    def free(self) -> Iterator[Choice]:
        """Yield the opposite direction too, if the specification allows it."""
        yield from super().free()
        if self.spec.get("direction") == "any":
            yield from (Choice({**reading, "place": OPPOSITE}, DIRECTION) for reading in self.readings)

    def start_fault(self, by: float) -> Fault:
        """Return the fault of distances that are off by a constant."""
        words = f"row r has distance (n - 1) - r {by:+g}"
        return Fault("relative_sinusoid.off_by_one", {"start": by}, {"words": words})

    def _places(self) -> Iterator[Fault]:
        """Yield wrong distances, also those that are off by one."""
        for words, (_, code) in DISTANCES.items():
            yield Fault(f"relative_sinusoid.{code}", {"place": words}, {"words": words})
        yield from (self.start_fault(by) for by in (1.0, -1.0))

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return the parts that were not judged."""
        return ["tables of more than 24 positions", *self.ignored()]
