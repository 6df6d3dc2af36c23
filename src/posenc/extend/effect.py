"""The effects of a context extension method on a model's angles and scores."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from posenc import frequencies
from posenc.config.reading import Checked
from posenc.parity.compare import Meaning

Array = np.ndarray
Angles = Callable[[int, int], Array]  # (distance, length of the text) -> angles for the last token, (n_pairs,) radians
SAME = 1e-9  # relative differences up to this are rounding
SCALED = ("linear", "dynamic", "yarn", "llama3", "longrope")


@dataclass(frozen=True)
class Effect:
    """The effects of a method on the pairs and scores of a model.

    Args:
        unseen_pairs: The pairs that reach angles absent from training at the wanted length: those that complete no
            period in training and whose largest angle grows, counted from 0.
        fastest: For the fastest pair, the angle between neighbours at the wanted length, divided by that in today's
            longest text.
        median: The same for the median of the pairs that rotate.
        closer: How many pairs have a smaller angle between neighbours.
        fixed: Whether angles are the same for texts of all lengths, so that cached keys stay valid.
        cos: By distance in positions, in texts of today's lengths: the mean over pairs of the cosine of the angle
            between today's rotation and the new one, as in `posenc parity`.
        gain: The factor on the rotated dimensions of q and of k at the wanted length; None if it is fitted.
        logits: The factor on today's scores at the wanted length; None if it is fitted.
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
        """The number of pairs that reach angles absent from training."""
        return len(self.unseen_pairs)


@dataclass(frozen=True)
class Model:
    """A model before the extension, and the wanted length."""

    source: Checked
    before: Meaning
    trained: int
    target: int

    def angles(self, distance: int, text: int) -> Array:
        """Return the angles of the model's present rotation."""
        return np.asarray(self.before.at(text).inv_freq * distance)

    @property
    def seen(self) -> Array:
        """The largest angle of each pair in training, both without and with the scaling in the file."""
        rotary = self.before.rotary
        if not self.is_scaled:
            return self.angles(self.far(self.trained), self.trained)
        plain = frequencies.geometric(rotary.rotary_dim // 2, base=rotary.base, width=rotary.rotary_dim)
        return np.asarray(np.maximum(plain * self.far(self.trained), self.angles(self.far(self.now), self.now)))

    def unseen_pairs(self, farthest: Array) -> tuple[int, ...]:
        """Return the pairs that reach angles absent from training."""
        seen = self.seen
        return tuple(np.flatnonzero((seen < math.tau) & (farthest > seen * (1 + SAME))).tolist())

    @property
    def is_scaled(self) -> bool:
        """Whether the file has a scaling that extends the context beyond the trained length."""
        return self.before.rotary.rope_type in SCALED

    @property
    def now(self) -> int:
        """Today's longest length: the declared length if the file has a scaling, else the trained length."""
        declared = self.before.rotary.max_len if self.is_scaled else None
        return max(declared or 0, self.trained)

    @property
    def distances(self) -> list[int]:
        """Distances within today's texts: near ones, the trained length, and the longest."""
        return sorted({self.far(d) for d in (100, 1000, self.trained, self.now) if d <= self.now})

    def far(self, length: int) -> int:
        """Return the largest distance between a query and a key in a text of a length."""
        return min(length, self.before.rotary.window or length)

    def effect(self, angles: Angles, logits: Callable[[int], float] | None, gain: float | None) -> Effect:
        """Return the effects of a method with these angles and, by the text's length, this factor on scores."""
        old, new = self.angles(1, self.now), angles(1, self.target)
        rotates = old > 0
        ratio = new[rotates] / old[rotates]
        cos = {d: self._cos(angles, d) for d in self.distances}
        now = self.before.logits(self.trained)
        return Effect(
            unseen_pairs=self.unseen_pairs(angles(self.far(self.target), self.target)),
            fastest=float(ratio[old[rotates].argmax()]),
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
