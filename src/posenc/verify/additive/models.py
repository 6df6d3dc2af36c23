"""Models of a code: a rule of angles, an order of lanes and a map of positions, and what they predict."""

import itertools
import math
from dataclasses import dataclass

import numpy as np

from posenc.verify.additive import waves
from posenc.verify.additive.asked import Asked
from posenc.verify.additive.distances import DISTANCE
from posenc.verify.additive.grid import cells
from posenc.verify.additive.places import Place, Shape, shifted
from posenc.verify.additive.waves import Array, Layout, Rule

EPS = 1.2e-7
Seen = dict[Shape, Array]


@dataclass(frozen=True)
class Model:
    """A code in full.

    Args:
        rule: How angles are formed.
        layout: The order of lanes (of each axis).
        place: The positions.
        base: Of the powers.
        gain: A factor on all of it.
        join: How two axes share the lanes.
        faults: (code, words, help) of each part that is no definition.
        lanes_moved: It shows the lanes of the definition in another order, where the spec declares none.
        shift: The first position less the definition's.
        turned: Distances are counted the other way.
        dim: Lanes that are kept of an image's two runs.
        second: The order of the lanes of columns, where it is not that of the rows.
    """

    rule: Rule
    layout: Layout
    place: Place
    base: float
    gain: float = 1.0
    join: str = "yx"
    faults: tuple[tuple[str, str, str], ...] = ()
    lanes_moved: bool = False
    shift: float = 0.0
    turned: bool = False
    dim: int | None = None
    second: Layout | None = None

    def predict(self, shape: Shape) -> tuple[Array, Array]:
        """Return the code of a call (batch | 1, ..., dim) and how far honest float32 may be off."""
        axes = self.place.at(shape)
        width = len(self.layout.lanes)
        orders = (self.layout, self.second or self.layout)
        runs = [waves.wave(p, self.rule, lanes, width, self.base) for p, lanes in zip(axes, orders, strict=False)]
        code, angle = _joined([r[0] for r in runs], self.join), _joined([r[1] for r in runs], self.join)
        slack = np.minimum(angle * EPS * (4 + math.log(max(self.base, 2))), 0.2)
        return self.gain * code[..., : self.dim], abs(self.gain) * slack[..., : self.dim]

    def ratio(self, seen: Seen, eps: float = EPS, enough: float = 1e3) -> float:
        """Return the largest error in tolerances over what was seen; stop once it is `enough`."""
        worst = 0.0
        for shape, found in seen.items():
            code, slack = self.predict(shape)
            if code.shape[1:] != found.shape[1:]:
                return math.inf
            with np.errstate(invalid="ignore"):
                off = np.abs(found - code) / (slack + 16 * eps * np.maximum(np.abs(code), 1.0))
            worst = max(worst, float(off.max(initial=0.0)))
            if not worst < enough:
                break
        return worst


def _joined(runs: list[Array], join: str) -> Array:
    if len(runs) == 1:
        return runs[0]
    if join == "sum":
        return runs[0] + runs[1]
    a, b = runs if join.endswith("yx") else runs[::-1]
    if not join.startswith("woven"):
        return np.concatenate([a, b], -1)
    pairs = [r.reshape(*r.shape[:-1], -1, 2) for r in (a, b)]
    return np.stack(pairs, -2).reshape(*a.shape[:-1], -1)


def truths(asked: Asked, dim: int) -> list[Model]:
    """Return every reading of the definition that a spec allows, the likeliest first."""
    image = asked.family == "sinusoidal2d"
    widths = [2 * math.ceil(dim / 4), *([dim // 2] if dim % 4 == 2 else [])] if image else [dim]
    found = []
    for width, rule, name in itertools.product(widths, asked.rules, asked.layouts):
        orders = waves.layouts(width)
        if name not in orders:
            continue
        for join in (j for j in asked.joins if not (j.startswith("woven") and width % 2)):
            for place in _right_places(asked):
                found.append(Model(rule, orders[name], place, asked.base, join=join, dim=dim))
    return found


def _right_places(asked: Asked) -> list[Place]:
    if asked.family == "relative_sinusoid":
        return [DISTANCE]
    if asked.family == "sinusoidal2d":
        return [cells(s)[0] for s in asked.scalings]
    return [shifted(start, "") for start in asked.starts]
