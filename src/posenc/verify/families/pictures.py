"""Rotations of pictures: a table of angles by the size of the grid, or a function on positions of two axes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from posenc.verify import guard
from posenc.verify.engine import Case, Choice, Fault, Seen, precision
from posenc.verify.engine.observe import fresh
from posenc.verify.engine.records import Array, Model, kind
from posenc.verify.families.axes import CLOSE, Angles

SIZES = ((3, 5), (4, 2), (1, 6), (7, 1), (19, 40), (70, 3))
SMALL = 7  # patches along a side, which every table has
LADDERS = {
    "axis": "each axis has all frequencies",
    "shared": "one series of frequencies runs over all pairs, whichever axis they follow",
    "dealt": "the even frequencies go to the first axis and the odd ones to the second",
}
# how tokens are placed in a grid of h rows and w columns: (row, column) of token t
PLACES = {
    "rows": lambda t, h, w: (t // w, t % w),
    "columns": lambda t, h, w: (t % h, t // h),
    "columns_exchanged": lambda t, h, w: (t // h, t % h),
    "flat": lambda t, h, w: (t, t),
    "both_column": lambda t, h, w: (t % w, t % w),
    "both_row": lambda t, h, w: (t // w, t // w),
    "square": lambda t, h, w: (t // h, t % h),
    "from_below": lambda t, h, w: (h - 1 - t // w, t % w),
    "from_the_right": lambda t, h, w: (t // w, w - 1 - t % w),
}
MISPLACED = {
    "columns": ("rope2d.grid_transposed", "patches are counted column by column"),
    "columns_exchanged": ("rope2d.axes_swapped", "patches are counted down the columns of a (w, h) grid"),
    "both_column": ("rope2d.axis_repeated", "both axes follow the column"),
    "both_row": ("rope2d.axis_repeated", "both axes follow the row"),
    "flat": ("rope2d.flat_index", "pairs follow the patch's number, not its place"),
    "from_below": ("rope2d.origin", "rows are counted from the bottom"),
    "from_the_right": ("rope2d.origin", "columns are counted from the right"),
}


class Grid(Angles):
    """What both conventions share: two axes, in blocks or alternating, with one of three series of frequencies."""

    definition, mismatch, word = "axial_rope", "rope2d.mismatch", "rope2d"

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        order, self.ladder = spec.get("order", "xy"), spec.get("ladder")
        if order not in ("xy", "yx"):
            raise ValueError(
                f"verify: order must be 'xy' (columns in the first pairs) or 'yx' (rows first); got {order!r:.60}."
            )
        if self.ladder not in (None, *LADDERS):
            raise ValueError(f"verify: ladder must be one of {', '.join(LADDERS)}; got {self.ladder!r:.60}.")
        self.first, self.interleaved = (1, 0)[order == "yx"], bool(spec.get("interleaved", False))
        self.truth = {
            "place": "rows",
            "step": (1.0, 1.0),  # what a row and a column count
            "axes": self.axes(self.interleaved),
            "freq": self.series(self.ladder or "axis", self.interleaved),
            "sign": 1.0,
            "round_positions": None,
        }

    def axes(self, interleaved: bool) -> Any:
        """Return which axis (0: row, 1: column) each pair follows."""
        block = np.arange(self.n) % 2 if interleaved else (np.arange(self.n) >= self.n // 2).astype(int)
        return block ^ self.first

    def series(self, ladder: str, interleaved: bool) -> Array:
        """Return the frequency of each pair for a way to give frequencies to axes."""
        half, pairs = self.n // 2, np.arange(self.n)
        number = pairs // 2 if interleaved else pairs % half
        own: Array = self.base ** (-number / half)
        shared: Array = self.base ** (-pairs / self.n)
        dealt = shared if interleaved else np.concatenate((shared[0::2], shared[1::2]))
        return {"axis": own, "shared": shared, "dealt": dealt}[ladder]

    def free(self) -> Iterator[Choice]:
        """Yield the other direction, and the other series where axes alternate and the specification names none."""
        yield from super().free()
        if self.ladder is None and self.interleaved:
            yield Choice({"freq": self.series("shared", True)})

    def faults(self) -> Iterator[Fault]:
        """Yield exchanged axes, misplaced patches, and other frequencies."""
        half = self.n // 2
        exchanged = 1 - self.truth["axes"]
        yield Fault("rope2d.axes_swapped", {"axes": exchanged}, {"words": self._order(exchanged)})
        for place, (code, words) in MISPLACED.items():
            yield Fault(code, {"place": place}, {"words": words})
        yield from self._dealt()
        full = self.base ** (-(np.arange(self.n) % half) / self.n)
        yield Fault("rope2d.frequency.width", {"freq": full})
        yield Fault("rope2d.square_assumed", {"place": "square"})
        yield from precision.faults("rope2d", ("positions",))
        yield from self.speeds(self.truth["axes"], half)

    def _order(self, axes: Any) -> str:
        return f"the first pairs follow the {('row', 'column')[axes[0]]} and the others the other axis"

    def _dealt(self) -> Iterator[Fault]:
        """Yield other ways to give axes and frequencies to pairs: right in models that are defined so."""
        for ladder, words in LADDERS.items():
            for interleaved in (False, True):
                for axes in (self.axes(interleaved), 1 - self.axes(interleaved)):
                    code = "rope2d.frequency.shared" if interleaved == self.interleaved else "rope2d.interleaved_axes"
                    how = "alternate from pair to pair" if interleaved else "are two blocks of pairs"
                    values = {"words": f"axes {how}, {self._order(axes)}, and {words}", "ladder": ladder}
                    yield Fault(code, {"axes": axes, "freq": self.series(ladder, interleaved)}, values)

    def measured(self, seen: Sequence[Seen], model: Model) -> dict[str, Any]:
        """Return the layout in words with the frequencies of each axis, 0: row, 1: column."""
        for ladder in LADDERS:
            for interleaved in (False, True):
                if np.array_equal(model["freq"], self.series(ladder, interleaved)):
                    return {**super().measured(seen, model), "ladder": ladder}
        return super().measured(seen, model)

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return that the series of frequencies was taken as found."""
        if self.ladder is None and self.interleaved:
            return [f"how frequencies are given to the axes: say ladder ({', '.join(LADDERS)}) to have it judged"]
        return []


class Picture(Grid):
    """Judges table(h, w) -> angles (h * w, pairs), row by row."""

    def cases(self) -> Iterator[Case]:
        """Yield sizes of grids; large ones may be beyond the end of a table."""
        end = self.spec.get("max_positions")
        for h, w in SIZES:
            if not end or max(h, w) <= end:
                yield Case("near", (h, w), f"table({h}, {w})", optional=not end and max(h, w) > SMALL)

    def observe(self, subject: Any, case: Case) -> Seen:
        """Return the table of one size."""
        h, w = case.args
        found = guard.shaped(guard.call(fresh(subject), h, w, what=case.words), (h * w, self.n), case.words)
        return Seen(case, found.detach().double().numpy())

    def coordinates(self, model: Model, case: Case) -> Array:
        """Return row and column of each patch."""
        h, w = case.args
        row, column = PLACES[model["place"]](np.arange(h * w, dtype=np.float64), h, w)
        down, right = model["step"]
        return np.stack((row * down, column * right), 1)

    def slack(self, seen: Seen, predicted: Array, model: Model) -> Array:
        """Return what an angle may be off, which grows with the grid."""
        slack: Array = super().slack(seen, predicted, model) * max(seen.case.args)
        return slack

    def smallest(self, seen: Seen, predicted: Array, off: Array) -> dict[str, Any]:
        """Return the size of the grid, and the patch and pair that are farthest off."""
        patch, pair = np.unravel_index(int(off.argmax()), off.shape)
        h, w = seen.case.args
        return {"h": h, "w": w, "patch": int(patch), "pair": int(pair)}

    def read(self, seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault | None:
        """Return a step that does not count as one, or frequencies that are no known series."""
        one = wrong[0]
        (h, w), moved = one.case.args, self.visible(one.value, one.case)
        row_pair, column_pair = (int(np.flatnonzero(self.truth["axes"] == axis)[0]) for axis in (0, 1))
        down = moved[w, row_pair] / self.truth["freq"][row_pair] if h > 1 else 1.0
        right = moved[1, column_pair] / self.truth["freq"][column_pair] if w > 1 else 1.0
        step = {"step": (down, right)}
        off = self.off(one, self.predict({**self.truth, **step}, one.case), self.truth)
        if max(abs(down - 1), abs(right - 1)) > CLOSE and (off <= 1).all():
            return Fault("rope2d.coordinates_wrong", step, {"down": down, "right": right, "h": h, "w": w})
        if h == 1 or w == 1:
            return None
        freq = np.where(self.truth["axes"] == 0, moved[w], moved[1])
        off = self.off(one, self.predict({**self.truth, "freq": freq}, one.case), self.truth)
        return self.other_speeds(freq) if (off <= 1).all() and (freq != 0).all() else None


class Rotated(Grid):
    """Judges rope(x, positions): x (batch, heads, seq, head_dim), positions (batch, seq, 2) of rows and columns.

    With layout "half" a pair is either (i, i + half of the axis's block) or (i, i + half of the head): both are in use,
    and the specification has no word for it.
    """

    kinds = (kind("rope2d.grad.severed", "grad", "near"),)

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        pairing = spec.get("layout") or "half"
        self.truth = {**self.truth, "lanes": "interleaved" if pairing == "interleaved" else "block"}
        generator = torch.Generator().manual_seed(0)
        self.q, self.k = torch.randn(2, 1, 2, 2 * self.n, generator=generator, dtype=torch.float32)

    def cases(self) -> Iterator[Case]:
        """Yield places near and far, in two rows of a batch."""
        near = [(0, 0), (0, 1), (1, 0), (2, 5), (7, 3), (4, 4), (11, 30), (30, 11), (63, 2)]
        far = [(0, 0), (257, 1), (1, 515), (1023, 64), (300, 4001)]
        yield Case("near", (np.array(near, dtype=np.float64),), "rope(x, positions) at places up to (63, 30)")
        yield Case("far", (np.array(far, dtype=np.float64),), "rope(x, positions) at places up to 4,001", optional=True)
        yield Case("grad", (np.array(near, dtype=np.float64),), "the gradient of rope(x, positions)", optional=True)

    def coordinates(self, model: Model, case: Case) -> Array:
        """Return rows and columns."""
        places: Array = case.args[0]
        return places[:, ::-1] if model["place"] == "columns" else places

    def observe(self, subject: Any, case: Case) -> Seen:
        """Return queries and keys as they are rotated, (2, heads, tokens, head_dim); of "grad", two gradients."""
        places = torch.from_numpy(case.args[0].astype(np.int64))
        positions, found, graded = torch.stack((places, places.flip(0))), [], case.kind == "grad"
        for vector in (self.q, self.k):
            x = vector[..., None, :].expand(2, -1, len(places), -1).contiguous().requires_grad_(graded)
            y = guard.call(fresh(subject), x, positions, what=case.words, grad=graded)
            y = guard.shaped(y, tuple(x.shape), case.words)
            if graded:
                weight = vector[..., None, :].expand_as(x)
                y = torch.autograd.grad(y, x, weight)[0] if y.requires_grad else torch.zeros_like(x)
            found.append(y[0].detach().double().numpy())
            if not np.allclose(found[-1], y[1].flip(1).detach().double().numpy(), atol=1e-4):
                found[-1] = np.full_like(found[-1], np.nan)  # the second row of the batch is rotated otherwise
        return Seen(case, np.stack(found))

    def predict(self, model: Model, case: Case) -> Array:
        """Return rotated queries and keys; their gradients are rotated back."""
        angles = super().predict(model, case) * (-1 if case.kind == "grad" else 1)
        a, b = self._pairs(model)
        found = []
        for x in (self.q, self.k):
            y = np.repeat(x[0].double().numpy()[:, None], len(angles), 1)
            u, v = y[..., a], y[..., b]
            rotated = np.empty_like(y)
            rotated[..., a] = u * np.cos(angles) - v * np.sin(angles)
            rotated[..., b] = u * np.sin(angles) + v * np.cos(angles)
            found.append(rotated)
        return np.stack(found)

    def _pairs(self, model: Model) -> tuple[Any, Any]:
        """Return the first and the second dimension of each pair, in the order of the angles."""
        pairs, half = np.arange(self.n), self.n // 2
        if model["lanes"] == "interleaved":
            return 2 * pairs, 2 * pairs + 1
        if model["lanes"] == "head" or self.interleaved:
            return pairs, pairs + self.n
        first = pairs + half * (pairs >= half)
        return first, first + half

    def visible(self, value: Array, case: Case) -> Array:
        """Return the scores of all pairs of places."""
        if case.kind == "grad":
            return value
        scores: Array = np.einsum("hpd,hqd->hpq", value[0], value[1])
        return scores

    def slack(self, seen: Seen, predicted: Array, model: Model) -> Array:
        """Return what a score may be off: float32 angles err with the position."""
        far = np.abs(seen.case.args[0]).max(1)
        if seen.case.kind == "grad":
            return np.full(seen.value.shape, 1e-3)
        slack: Array = 4e-5 * self.n + 6e-7 * self.n * (far[:, None] + far)
        return np.broadcast_to(slack, (len(self.q[0]), len(far), len(far)))

    def same(self, seen: Seen, predicted: Array) -> bool:
        """Return whether rotated vectors agree, not only scores."""
        return bool(np.abs(seen.value - predicted).max() < 1e-2)

    def unlike(self, seen: Sequence[Seen]) -> str:
        """Return what differs where scores are the same."""
        return "rotated vectors differ in a way that is the same for queries and keys, which no score sees"

    def free(self) -> Iterator[Choice]:
        """Yield what the specification has no word for, and what no score sees."""
        clockwise = "queries and keys both rotate clockwise: the second dimension of each pair has the other sign"
        series = [choice.change for choice in super().free() if "freq" in choice.change]
        lanes = ({}, {"lanes": "head"}) if self.truth["lanes"] == "block" else ({},)
        for change in ({}, *series):
            for pairs in lanes:
                yield Choice({**change, **pairs})
                yield Choice({**change, **pairs, "sign": -1.0}, clockwise)

    def faults(self) -> Iterator[Fault]:
        """Yield the faults of a grid that positions can have, and the other pairing."""
        other = "block" if self.truth["lanes"] == "interleaved" else "interleaved"
        yield Fault("rope2d.layout.wrong_pairing", {"lanes": other}, {"asked": self.truth["lanes"], "used": other})
        yield from (f for f in super().faults() if f.change.get("place") in (None, "columns"))

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return what a rotation of places leaves open."""
        return [*super().not_judged(seen), "places that are no whole numbers, and half precision"]
