"""Tables of sinusoids of distances, a row for each from n - 1 to -(n - 1)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from posenc.verify import guard
from posenc.verify.engine import Case, Choice, Fault, Seen
from posenc.verify.engine.records import Array, Model
from posenc.verify.families.added import Sinusoid
from posenc.verify.families.added_calls import Shape, finding, ready
from posenc.verify.guard import SubjectError

DIRECTION = "distances are counted the other way round, and direction='any' was declared: sines change their sign"
# Distances of a table by mistake, of row r of 2n - 1.
DISTANCES: Mapping[str, tuple[Callable[[Array, int], Array], str]] = {
    "row r has distance |(n - 1) - r|, so that both sides look alike": (lambda r, n: abs(n - 1 - r), "sign_lost"),
    "row r has distance -|(n - 1) - r|, so that both sides look alike": (lambda r, n: -abs(n - 1 - r), "sign_lost"),
    "row r has distance r - (n - 1), the other way round": (lambda r, n: r - n + 1, "direction"),
    "row r has position r, an absolute one": (lambda r, n: r, "absolute_used"),
    "row r has position 2n - 2 - r, an absolute one": (lambda r, n: 2 * n - 2 - r, "absolute_used"),
    "row r has distance max((n - 1) - r, 0)": (lambda r, n: np.maximum(n - 1 - r, 0), "future_clamped"),
    "row r has distance min((n - 1) - r, 0)": (lambda r, n: np.minimum(n - 1 - r, 0), "past_clamped"),
    "the two sides run on from each other: n - 1, ..., 0, then 0, -1, ...": (
        lambda r, n: np.where(r < n, n - 1 - r, n - r),
        "off_by_one",
    ),
}


class Distances(Sinusoid):
    """Transformer-XL's sinusoids of distances (Dai et al. 2019), a row for each from n - 1 to -(n - 1)."""

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
        """Yield the other direction too, where the specification leaves it free."""
        yield from super().free()
        if self.spec.get("direction") == "any":
            turned = next(words for words, (_, code) in DISTANCES.items() if code == "direction")
            yield from (Choice({**reading, "place": turned}, DIRECTION) for reading in self.readings)

    def start_fault(self, by: float) -> Fault:
        """Return the fault of distances that are off by a constant."""
        return Fault(
            "relative_sinusoid.off_by_one", {"start": by}, {"words": f"row r has distance (n - 1) - r {by:+g}"}
        )

    def _places(self) -> Iterator[Fault]:
        """Yield wrong distances, also those that are off by one."""
        for words, (_, code) in DISTANCES.items():
            yield Fault(f"relative_sinusoid.{code}", {"place": words}, {"words": words})
        yield from (self.start_fault(by) for by in (1.0, -1.0))

    def refusal(self, subject: Any, case: Case, error: SubjectError) -> SubjectError:
        """Return the finding behind a table of another number of rows, else the error."""
        n = case.args[0][0]
        if error.cause.code != "subject.shape":
            return error
        found = guard.call(ready(subject), n, what=self.calls.words((n,)))
        sizes = [size for size in getattr(found, "shape", ()) if size != 1]
        codes = {n: "absolute_used", 2 * n: "off_by_one", 2 * n - 2: "off_by_one", 2 * n + 1: "off_by_one"}
        if n < 3 or len(sizes) != 2 or sizes[1] != self.calls.dim or sizes[0] not in codes:
            return error
        words = f"table({n}) has {sizes[0]} rows; the signed distances from {n - 1} to {1 - n} are {2 * n - 1}"
        return finding(f"relative_sinusoid.{codes[sizes[0]]}", {"n": n}, float(sizes[0]), words=words)

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return what was not looked at."""
        return ["tables of more than 24 positions", *self.ignored()]
