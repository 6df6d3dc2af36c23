"""Tables of sinusoids of distances, a row for each from n - 1 to -(n - 1)."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from posenc.verify import guard
from posenc.verify.engine import Case, Choice, Fault, Seen
from posenc.verify.engine.records import Array, Model
from posenc.verify.families.added import Sinusoid
from posenc.verify.families.added_calls import Shape, finding, ready
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
            words = f"row r has distance (n - 1) - r {by:+g}"
            yield Fault("relative_sinusoid.off_by_one", {"start": by}, {"words": words})

    def places(self) -> Iterator[Fault]:
        """Yield wrong distances."""
        for words, (_, code) in DISTANCES.items():
            yield Fault(f"relative_sinusoid.{code}", {"place": words}, {"words": words})

    def read_places(self, near: Sequence[Seen], model: Model) -> Fault | None:
        """Return what the distances of the rows of the longest table show."""
        found = positions(self, near[-1].value, model, 6000)
        if found is None or not (np.diff(found) == -1).all():
            return None
        right = near[-1].case.args[0][0] - 1
        constant = self.fits({**model, "start": found[0] - right}, near)
        code = "off_by_one" if constant else "slice_of_reversed_table"
        words = f"row 0 has distance {found[0]:g}, where {right} is right"
        return Fault(f"relative_sinusoid.{code}", {}, {"words": words})

    def neighbours(self, near: Sequence[Seen], model: Model) -> Array | None:
        """Return rows of neighbouring distances, ascending."""
        rows: Array = near[-1].value[::-1]
        return rows

    def refusal(self, subject: Any, case: Case, error: SubjectError) -> SubjectError:
        """Return the finding behind a table of another number of rows."""
        n = case.args[0][0]
        found = guard.call(ready(subject), n, what="table(n)") if error.cause.code == "subject.shape" else None
        rows = next((size for size in getattr(found, "shape", ()) if size > 1), 0)
        words = f"table({n}) has {rows} rows; the signed distances from {n - 1} to {1 - n} are {2 * n - 1}"
        code = {n: "absolute_used", 2 * n: "off_by_one", 2 * n - 2: "off_by_one"}.get(rows)
        return finding(f"relative_sinusoid.{code}", {"n": n}, words=words) if code else error

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return what was not looked at."""
        return ["tables of more than 24 positions", *self.ignored()]
