"""What a method of making texts longer does to a model's angles and scores."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from posenc import frequencies
from posenc.config.reading import Checked
from posenc.parity.compare import Meaning

Array = np.ndarray
Angles = Callable[[int, int], Array]  # of a distance and a text's length: what its last token sees, (n_pairs,) radians
SAME = 1e-9  # a relative difference that rounding makes
SCALED = ("linear", "dynamic", "yarn", "llama3", "longrope")


@dataclass(frozen=True)
class Effect:
    """What a method does to the pairs and scores of a model.

    Args:
        unseen_pairs: The pairs that see angles at the wanted length which training did not show: those without a full
            turn in training whose largest angle grows, counted from 0.
        fastest: The angle between neighbours at the wanted length over that in the longest text that the model reads
            now, for the fastest pair.
        median: The same for the median of the pairs that rotate.
        closer: How many pairs have a smaller angle between neighbours.
        fixed: Whether angles are the same for texts of all lengths, so that cached keys stay right.
        cos: By distance in positions, in texts that the model reads now: the mean over pairs of the cosine of the
            angle between its rotation and the new one, as `posenc parity` has it.
        gain: What multiplies the rotated dimensions of q and of k at the wanted length; None where that is fitted.
        logits: By how much scores are larger than now, at the wanted length; None where that is fitted.
        short_logits: The same for texts of the trained length.
    """

    unseen_pairs: tuple[int, ...]
    fastest: float
    median: float
    closer: int
    fixed: bool
    cos: Mapping[int, float] = field(hash=False)
    gain: float | None
    logits: float | None
    short_logits: float | None

    @property
    def unseen(self) -> int:
        """How many pairs see angles that training did not show."""
        return len(self.unseen_pairs)


@dataclass(frozen=True)
class Model:
    """A model as it is, and the length wanted."""

    source: Checked
    before: Meaning
    trained: int
    target: int

    def angles(self, distance: int, text: int) -> Array:
        """Return the angles that the model's rotation has now."""
        return np.asarray(self.before.at(text).inv_freq * distance)

    @property
    def seen(self) -> Array:
        """The largest angle of each pair in training: before a scaling that the file ships, and with it."""
        rotary = self.before.rotary
        if not self.is_scaled:
            return self.angles(self.far(self.trained), self.trained)
        plain = frequencies.geometric(rotary.rotary_dim // 2, base=rotary.base, width=rotary.rotary_dim)
        return np.asarray(np.maximum(plain * self.far(self.trained), self.angles(self.far(self.now), self.now)))

    def unseen_pairs(self, farthest: Array) -> tuple[int, ...]:
        """Return the pairs that reach angles which training did not show."""
        seen = self.seen
        return tuple(np.flatnonzero((seen < math.tau) & (farthest > seen * (1 + SAME))).tolist())

    @property
    def is_scaled(self) -> bool:
        """Whether the file ships a scaling, with which the model reads texts beyond the trained length."""
        return self.before.rotary.rope_type in SCALED

    @property
    def now(self) -> int:
        """The longest text that it reads now: as the file declares with its scaling, else the trained length."""
        declared = self.before.rotary.max_len if self.is_scaled else None
        return max(declared or 0, self.trained)

    @property
    def distances(self) -> list[int]:
        """Distances within the texts that the model reads now: near ones, the trained length, and the longest."""
        return sorted({self.far(d) for d in (100, 1000, self.trained, self.now) if d <= self.now})

    def far(self, length: int) -> int:
        """Return the largest distance that the layers see in a text of a length."""
        return min(length, self.before.rotary.window or length)

    def effect(self, angles: Angles, logits: Callable[[int], float] | None, gain: float | None) -> Effect:
        """Return what a method does that gives these angles and multiplies scores by this, by the text's length."""
        old, new = self.angles(1, self.now), angles(1, self.target)
        turning = old > 0
        ratio = new[turning] / old[turning]
        cos = {d: self._cos(angles, d) for d in self.distances}
        now = self.before.logits(self.trained)
        return Effect(
            unseen_pairs=self.unseen_pairs(angles(self.far(self.target), self.target)),
            fastest=float(ratio[old[turning].argmax()]),
            median=float(np.median(ratio)),
            closer=int((ratio < 1 - SAME).sum()),
            fixed=bool(np.allclose(angles(1, self.trained), new, rtol=SAME, atol=0.0)),
            cos=cos,
            gain=gain,
            logits=None if logits is None else logits(self.target) / now,
            short_logits=None if logits is None else logits(self.trained) / now,
        )

    def _cos(self, angles: Angles, distance: int) -> float:
        text = max(distance, self.trained)
        return float(np.cos(angles(distance, text) - self.angles(distance, text)).mean())
