"""Findings from measured cells: means with bootstrap intervals, paired differences, and their verdicts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from posenc.extend.evaluate.measures import NEEDLES, POSITION, SLIDING
from posenc.study.claims import CANNOT_TELL, CONTRADICTED, SEEN
from posenc.study.measures import FLAT

NONE = "none"
DRAWS = 2000
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Expected:
    """A published ranking: without training, one method is worse than another."""

    worse: str
    better: str
    claim: str
    source: str
    arxiv: str


_YARN = ("Peng et al. 2023", "2309.00071")
EXPECTED = (
    Expected(NONE, "ntk", "Without training, an NTK-aware base is better than unscaled RoPE", *_YARN),
    Expected("linear", "ntk", "Without training, an NTK-aware base is better than interpolation", *_YARN),
    Expected("ntk", "yarn", "Without training, YaRN is better than an NTK-aware base", *_YARN),
)


class Estimate(NamedTuple):
    """A mean, the ends of its 95 % interval, and the mean of each model."""

    mean: float
    low: float
    high: float
    models: tuple[float, ...]


def estimate(values: Array) -> Estimate:
    """Return the mean over models and pieces, with a bootstrap interval that draws both anew (Owen 2007, 0712.1111).

    Every model reads the same pieces, so a draw takes some models, some pieces, and all their pairs. With one model the
    interval covers only that model on other pieces; with a few models it hardly exceeds their range.

    Args:
        values: (models, pieces).

    >>> estimate(np.array([[1.0, 1.0], [1.0, 1.0]]))[:3]
    (1.0, 1.0, 1.0)
    """
    random = np.random.default_rng(0)
    of_models, of_pieces = (random.multinomial(n, [1 / n] * n, DRAWS) / n for n in values.shape)
    means = ((of_models @ values) * of_pieces).sum(1)
    low, high = np.quantile(means, (0.025, 0.975))
    return Estimate(float(values.mean()), float(low), float(high), tuple(values.mean(1).tolist()))


class Findings:
    """All measurements of a run, by method, measure and length.

    Args:
        run: The run's record, as saved.
        cells: The finished cells.
    """

    def __init__(self, run: Mapping[str, Any], cells: Sequence[Mapping[str, Any]]) -> None:
        self.methods: list[str] = run["methods"]
        self.lengths: list[int] = run["lengths"]
        self.short: list[int] = run["short"]
        self.trained_len: int = run["trained_len"]
        self._rows: dict[tuple[str, str, int], dict[str, Any]] = {}
        for cell in cells:
            of = self._rows.setdefault((cell["method"], cell["measure"], cell["length"]), {})
            of[cell["model"]] = cell["rows"]

    @property
    def kinds(self) -> list[str]:
        """The kinds of needles that were tested."""
        return [kind for kind in NEEDLES if any(measure == kind for _, measure, _ in self._rows)]

    def values(
        self, method: str, measure: str, length: int, fact: str = "bits", depth: float | None = None
    ) -> dict[str, Array]:
        """Return by model one number for each piece; for needles the mean over depths, or of one depth.

        Args:
            method: The method's label.
            measure: POSITION, SLIDING or a kind of needle.
            length: The length of the context.
            fact: The entry of a row: "bits", "exact", or "gain", the bits that a needle saves.
            depth: The depth of a needle; None for the mean over depths.
        """
        found = {}
        for model, rows in self._rows.get((method, measure, length), {}).items():
            by_piece: dict[int, list[float]] = {}
            for row in rows:
                if depth is None or row["depth"] == depth:
                    value = row["without"] - row["bits"] if fact == "gain" else row[fact]
                    by_piece.setdefault(row["piece"], []).append(value)
            found[model] = np.array([sum(own) / len(own) for own in by_piece.values()])
        return found

    def mean(
        self, method: str, measure: str, length: int, fact: str = "bits", depth: float | None = None
    ) -> Estimate | None:
        """Return the mean of those numbers, or None if nothing is measured."""
        found = self.values(method, measure, length, fact, depth)
        return estimate(np.stack(list(found.values()))) if found else None

    def difference(self, method: str, other: str, measure: str, length: int) -> Estimate | None:
        """Return how many bits one method is above another on the same pieces and models."""
        one, two = self.values(method, measure, length), self.values(other, measure, length)
        both = [one[model] - two[model] for model in one if model in two]
        return estimate(np.stack(both)) if both else None

    def ranking(self, length: int) -> list[tuple[str, Estimate, bool]]:
        """Return the methods at a length, best first, and whether each is significantly worse than the previous one."""
        found = [(method, mean) for method in self.methods if (mean := self.mean(method, POSITION, length))]
        found.sort(key=lambda one: one[1].mean)
        before = [None, *(name for name, _ in found)]
        gaps = [
            None if better is None else self.difference(name, better, POSITION, length)
            for (name, _), better in zip(found, before, strict=False)
        ]
        return [(*one, gap is not None and gap.low > 0) for one, gap in zip(found, gaps, strict=True)]

    def expectations(self, length: int) -> list[tuple[Expected, Estimate, str]]:
        """Return the published rankings of the methods in the run, the measured difference, and the verdict."""
        found = []
        for one in EXPECTED:
            gap = self.difference(one.worse, one.better, POSITION, length)
            if gap is not None:
                found.append((one, gap, SEEN if gap.low > 0 else CONTRADICTED if gap.high < 0 else CANNOT_TELL))
        return found

    def guard(self) -> list[tuple[str, list[Estimate | None], str]]:
        """Return the cost of each method on short texts, by length, and the verdict."""
        found = []
        for method in self.methods:
            costs = [self.difference(method, NONE, POSITION, length) for length in self.short]
            known = [cost for cost in costs if cost is not None]
            if method == NONE or not known:
                continue
            lost = any(cost.low > FLAT for cost in known)
            kept = all(cost.high <= FLAT for cost in known)
            found.append((method, costs, "lost" if lost else "kept" if kept else "cannot tell"))
        return found

    def summary(self) -> dict[str, Any]:
        """Return the main numbers as plain JSON values."""
        longest = self.lengths[-1]

        def means(measure: str, lengths: Sequence[int], fact: str = "bits") -> dict[str, Any]:
            return {
                method: {str(n): one._asdict() for n in lengths if (one := self.mean(method, measure, n, fact))}
                for method in self.methods
            }

        return {
            "bits": means(POSITION, sorted({*self.short, *self.lengths})),
            "sliding_bits": means(SLIDING, self.lengths),
            "needles": {
                fact: {kind: means(kind, self.lengths, fact) for kind in self.kinds} for fact in ("gain", "exact")
            },
            "order": [method for method, _, _ in self.ranking(longest)],
            "expected": [
                {"worse": one.worse, "better": one.better, "difference": gap._asdict(), "verdict": verdict}
                for one, gap, verdict in self.expectations(longest)
            ],
            "short_texts": {method: verdict for method, _, verdict in self.guard()},
        }
