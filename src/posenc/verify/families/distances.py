"""Tables of sinusoids of distances, a row for each from n - 1 to -(n - 1)."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from posenc.verify import guard
from posenc.verify.engine import Case, Choice, Fault, Seen
from posenc.verify.engine.records import Array, Model
from posenc.verify.families.added import Sinusoid
from posenc.verify.families.added_calls import Calls, Shape, finding, ready
from posenc.verify.families.added_faults import DISTANCES
from posenc.verify.families.added_reading import positions
from posenc.verify.guard import SubjectError

DIRECTION = "distances are counted the other way round, and direction='any' was declared: sines change their sign"


class Distances(Sinusoid):
    """Transformer-XL's sinusoids of distances (Dai et al. 2019), a row for each from n - 1 to -(n - 1)."""

    prefix = "relative_sinusoid"
    shapes = ((3,), (5,), (12,))
    single = (1,)
    parts = ("places", "misplaced", "orders", "rules", "bases")
    later = ((5,), (9,), (3,), (24,), (9,))

    def _more(self) -> Iterator[Case]:
        for order in (self.later, self.later[::-1]):
            yield Case("again", tuple(order), "calls of one object, one after another")

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
            yield from (Choice({**reading, "place": turned}, DIRECTION) for reading in self.readings())

    def misplaced(self) -> Iterator[Fault]:
        """Yield distances that are off by a constant."""
        for by in (1.0, -1.0):
            yield Fault(
                "relative_sinusoid.off_by_one", {"start": by}, {"words": f"row r has distance (n - 1) - r {by:+g}"}
            )

    def places(self) -> Iterator[Fault]:
        """Yield wrong distances."""
        for words, (_, code) in DISTANCES.items():
            yield Fault(f"relative_sinusoid.{code}", {"place": words}, {"words": words})

    def read_places(self, near: Sequence[Seen], model: Model) -> Fault | None:
        """Return what the distances of rows show."""
        return of_distances(self, near, model)

    def neighbours(self, near: Sequence[Seen], model: Model) -> Array | None:
        """Return rows of neighbouring distances, ascending."""
        rows: Array = max(near, key=lambda s: s.value.size).value[::-1]
        return rows

    def refusal(self, subject: Any, case: Case, error: SubjectError) -> SubjectError:
        """Return the finding behind a table of another number of rows."""
        return rows_missing(self.calls, subject, case.args[0], error)

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return what was not looked at."""
        return ["tables of more than 24 positions", *self.ignored()]


def of_distances(family: Sinusoid, near: Sequence[Seen], model: Model) -> Fault | None:
    """Return what the distances of the rows of the longest table say."""
    longest = max(near, key=lambda s: s.case.args[0])
    n = longest.case.args[0][0]
    found = positions(family, longest.value, model, 6000)
    if found is None:
        return None
    if np.isnan(found).any():
        return Fault("sinusoidal.table.row_zeroed", {}, {"words": f"row {int(np.isnan(found).argmax())} is zero"})
    listed = ", ".join(f"{p:g}" for p in found[:4])
    steps, words = np.diff(found), f"rows have distances {listed}, ..., where {n - 1}, {n - 2}, ... are right"
    code = "distance.other"
    if (steps == -1).all():
        constant = family.fits({**model, "start": found[0] - n + 1}, near)
        code = "off_by_one" if constant else "slice_of_reversed_table"
    elif (np.abs(steps) == 1).all() and found.min() >= 0:
        code = "sign_lost"
    return Fault(f"relative_sinusoid.{code}", {}, {"words": words})


def rows_missing(calls: Calls, subject: Any, shape: Shape, error: SubjectError) -> SubjectError:
    """Return the finding behind a table of distances with another number of rows, else the error."""
    n = shape[0]
    if error.cause.code != "subject.shape":
        return error
    found = guard.call(ready(subject), n, what=calls.words(shape))
    sizes = [size for size in getattr(found, "shape", ()) if size != 1]
    codes = {n: "absolute_used", 2 * n: "off_by_one", 2 * n - 2: "off_by_one", 2 * n + 1: "off_by_one"}
    if n < 3 or len(sizes) != 2 or sizes[1] != calls.dim or sizes[0] not in codes:
        return error
    words = f"table({n}) has {sizes[0]} rows; the signed distances from {n - 1} to {1 - n} are {2 * n - 1}"
    return finding(f"relative_sinusoid.{codes[sizes[0]]}", {"n": n}, float(sizes[0]), words=words)
