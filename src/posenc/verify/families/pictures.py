"""Rotations of images: a table of angles by the size of the grid, or a function of positions on two axes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch

from posenc.verify import guard
from posenc.verify.engine import Case, Choice, Family, Fault, Seen
from posenc.verify.engine.judge import explains
from posenc.verify.engine.observe import fresh
from posenc.verify.engine.read import unrotated
from posenc.verify.engine.records import Array, Model, kind
from posenc.verify.families import served
from posenc.verify.families.axes import FAR, LADDERS, Angles, keeps_nothing, places, shares, speeds
from posenc.verify.families.mrope import MRope

SIZES = ((3, 5), (4, 2), (1, 6), (7, 1), (4, 6), (19, 40), (70, 3))
TURNED = SIZES[0][::-1]  # as many patches as in the first one
WIDE = FAR  # columns of an image that contains all places
SMALL = 7  # patches along a side, which every table has
Placed = Callable[[Array, int, int], tuple[Array, Array]]
# (row, column) of token t in a grid of h rows and w columns if tokens are misplaced
PLACES: Mapping[str, tuple[str, Placed]] = {
    "patches are counted column by column": ("grid_transposed", lambda t, h, w: (t % h, t // h)),
    "patches are counted down the columns of a (w, h) grid": ("axes_swapped", lambda t, h, w: (t // h, t % h)),
    "both axes follow the column": ("axis_repeated", lambda t, h, w: (t % w, t % w)),
    "both axes follow the row": ("axis_repeated", lambda t, h, w: (t // w, t // w)),
    "pairs follow the index of the patch, not its place": ("flat_index", lambda t, h, w: (t, t)),
    "rows are counted from the bottom": ("origin", lambda t, h, w: (h - 1 - t // w, t % w)),
    "columns are counted from the right": ("origin", lambda t, h, w: (t // w, w - 1 - t % w)),
    "every second row runs from right to left": (
        "patch_order",
        lambda t, h, w: (t // w, np.where(t // w % 2, w - 1 - t % w, t % w)),
    ),
    "patches are counted in blocks of 2 x 2": ("patch_order", lambda t, h, w: _merged(t, h, w)),
    "a row for a class token comes first": (
        "patch_order",
        lambda t, h, w: (np.maximum(t - 1, 0) // w, np.maximum(t - 1, 0) % w),
    ),
}
SPANS: Mapping[str, tuple[str, Callable[[Array, float], Array]]] = {  # coordinates of patches along n of them
    "unit": ("from -1 to 1 over {}, times 2 pi", lambda i, n: 2 * np.pi * ((2 * i + 1) / n - 1)),
    "half": ("from -1 to 1 over {}, without 2 pi", lambda i, n: (2 * i + 1) / n - 1),
    "ends": ("from -1 at the first patch to 1 at the last over {}", lambda i, n: 2 * i / max(n - 1, 1) - 1),
    "share": ("from 0 to 1 over {}", lambda i, n: i / n),
    "circle": ("from 0 to 2 pi over {}", lambda i, n: 2 * np.pi * i / n),
}
SIDES: Mapping[str, tuple[str, Callable[[int, int], tuple[int, int]]]] = {  # the lengths that they span
    "": ("each side", lambda h, w: (h, w)),
    "_longer": ("the longer side", lambda h, w: (max(h, w),) * 2),
    "_shorter": ("the shorter side", lambda h, w: (min(h, w),) * 2),
    "_height": ("the height", lambda h, w: (h, h)),
    "_width": ("the width", lambda h, w: (w, w)),
}
COORDINATES = ("cells", *(f"unit{side}" for side in list(SIDES)[:3]))  # that a specification may declare
PAIRINGS = {
    "interleaved": "neighbours, (2i, 2i + 1)",
    "block": "the halves of each axis's part",
    "head": "the halves of the head",
}


def _merged(t: Array, h: int, w: int) -> tuple[Array, Array]:
    """Return the places of patches in blocks of 2 x 2, row by row if the sides are odd."""
    if h % 2 or w % 2:
        return t // w, t % w
    block, inside = t // 4, t % 4
    return block // (w // 2) * 2 + inside // 2, block % (w // 2) * 2 + inside % 2


class Grid(Angles):
    """The common part of both conventions: two axes, in blocks or alternating, with one of three frequency series."""

    definition, mismatch, word, clockwise = "axial_rope", "rope2d.mismatch", "rope2d", ""

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        order, ladder = spec.get("order"), spec.get("ladder")
        self.section = shares(spec, self.n) or (self.n // 2, self.n // 2)
        if len(self.section) != 2 or sum(self.section) != self.n or isinstance(self.base, tuple):
            raise ValueError(
                f"verify: {convention} has two axes with {self.n} pairs together and one base; got section "
                f"{list(self.section)}, base {self.base}."
            )
        if self.section[0] != self.section[1] and (spec.get("interleaved") or ladder == "dealt"):
            raise ValueError(
                f"verify: axes that alternate have equally many pairs; got section {list(self.section)}. Remove "
                "interleaved, and ladder 'dealt'."
            )
        if order not in (None, "xy", "yx"):
            raise ValueError(
                f"verify: order must be 'xy' (the first pairs follow columns) or 'yx' (rows first); got {order!r:.60}."
            )
        usual = "shared" if spec.get("encoding") == "mrope" else "axis"
        own = {"ladder": ladder or usual, "interleaved": bool(spec.get("interleaved", False))}
        first = "row" if order == "yx" else "column"
        self.truth = {**self.truth, **own, "first": first, "place": None, "span": spec.get("coordinates", "cells")}
        if self.truth["span"] not in COORDINATES:
            raise ValueError(
                f"verify: coordinates must be one of {', '.join(COORDINATES)}; got {self.truth['span']!r:.60}."
            )
        self.open: list[tuple[Model, str]] = []  # what the specification leaves open, and how to declare it
        if ladder is None and own["interleaved"]:
            left = f"the distribution of frequencies: declare ladder ({', '.join(LADDERS)}) to have it judged"
            self.open.append(({"ladder": "shared"}, left))
        if order is None and convention == "rope_axes_fn":  # a table has columns first if no order is declared
            self.open.append(
                ({"first": "row"}, "which axis the first pairs follow: declare order (xy, yx) to have it judged")
            )

    def layout(self, model: Model) -> tuple[Any, Array]:
        """Return which axis (0: row, 1: column) each pair follows, and its frequency."""
        second = np.arange(self.n) % 2 if model["interleaved"] else np.repeat((0, 1), self.section)
        freq = speeds(model["ladder"], second, model["base"]) if model["freq"] is None else model["freq"]
        return second ^ (model["first"] == "column"), freq

    def cells(self, case: Case) -> tuple[Array, int, int]:
        """Return the index of each token in a grid, row by row, and the rows and columns of the grid."""
        raise NotImplementedError

    def given(self, model: Model, case: Case) -> Array:
        """Return row and column of each token, or their coordinates in the image."""
        t, h, w = self.cells(case)
        places = model["place"](t, h, w) if model["place"] else (t // w, t % w)
        if model["span"] != "cells":
            span, _, side = model["span"].partition("_")
            sides = SIDES[f"_{side}" if side else ""][1](h, w)
            places = tuple(SPANS[span][1](at, n) for at, n in zip(places, sides, strict=True))
        return np.stack(places, 1)

    def free(self) -> Iterator[Choice]:
        """Yield the opposite direction, and what the specification leaves open."""
        for changes in list(product(*[({}, change) for change, _ in self.open], ({}, {"sign": -1.0})))[1:]:
            change = {name: value for part in changes for name, value in part.items()}
            yield Choice(change, self.clockwise if "sign" in change else "")

    def faults(self) -> Iterator[Fault]:
        """Yield exchanged axes, and other ways to distribute axes and frequencies: right in other models."""
        asked, first = self.truth["interleaved"], self.truth["first"]
        other = "row" if first == "column" else "column"
        swapped = f"the first pairs follow the {other} and the others the {first}"
        yield Fault("rope2d.axes_swapped", {"first": other}, {"words": swapped})
        for words, (code, place) in PLACES.items():
            yield Fault(f"rope2d.{code}", {"place": place}, {"words": words})
        for ladder, words in LADDERS.items():
            for interleaved in (False, True):
                how = "alternate from pair to pair" if interleaved else "are two blocks of pairs"
                code = "frequency.shared" if interleaved == asked else "interleaved_axes"
                for axis in (first, other):
                    values = {"words": f"axes {how}, the first pairs follow the {axis}, and {words}"}
                    change = {"first": axis, "interleaved": interleaved, "ladder": ladder}
                    yield Fault(f"rope2d.{code}", change, values)
        if self.truth["ladder"] == "dealt":
            words = "the odd frequencies go to the first axis and the even ones to the second"
            yield Fault("rope2d.frequency.shared", {"ladder": "dealt_backwards"}, {"words": words})
        yield Fault("rope2d.frequency.width", {"ladder": "narrow"})
        yield from super().faults()

    def steps(self, seen: Seen, model: Model) -> tuple[Array, Array, str]:
        """Return by how much a step down and a step right rotate each pair, and in which image."""
        raise NotImplementedError

    def read(self, seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault | None:
        """Return a step that does not count as one, or frequencies that are no known series."""
        one = next((s for s in wrong if s.case.kind == "near" and min(self.cells(s.case)[1:]) > 1), None)
        if one is None:
            return None
        for choice in (Choice({}), *self.free()):
            chosen = {**self.truth, **choice.change}
            (below, sideways, where), (axes, right) = self.steps(one, chosen), self.layout(chosen)
            freq = chosen["sign"] * np.where(axes == 0, below, sideways)
            clear = np.abs(right - 0.1)  # a pair that no step rotates by half a rotation, and each step by enough
            pairs = [int(np.where(axes == axis, clear, np.inf).argmin()) for axis in (0, 1)]
            down, across = (float(freq[pair] / right[pair]) for pair in pairs)
            values = {"down": down, "right": across, "where": where}
            lost = {"found": unrotated(freq == 0) if (freq == 0).any() else "", "asked": 2 * self.n}
            width = Fault("rope.partial.width", {**choice.change, "freq": freq}, lost)
            faults = [width] if lost["found"] else []
            if self.truth["span"] == "cells":
                faults.append(Fault("rope2d.coordinates_wrong", {**choice.change, "step": (down, across)}, values))
            faults += [self.other_speeds("mismatch", freq)] if not lost["found"] else []
            for fault in faults:
                if explains(self, {**chosen, **fault.change}, [one]):
                    return fault
        return None

    def measured(self, seen: Sequence[Seen], model: Model) -> dict[str, Any]:
        """Return the frequencies of each axis, 0: row, 1: column, and how they are distributed over them."""
        return {**super().measured(seen, model), "ladder": model["ladder"]}

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return that the series of frequencies was accepted as measured."""
        return [*(words for _, words in self.open if words), *super().not_judged(seen)]


class Picture(Grid):
    """Judge table(h, w) -> angles (h * w, pairs), row by row."""

    kinds = (kind("rope.state_kept", "turned", "near"),)
    sizes: served.Sizes | None = None  # the image to ask for in place of each one
    left = ""  # which are left out

    def faults(self) -> Iterator[Fault]:
        """Yield coordinates that span the image otherwise."""
        yield from super().faults()
        ways, asked = {"cells": "count patches"}, self.truth["span"]
        ways |= {f"{a}{b}": f"run {how.format(of)}" for a, (how, _) in SPANS.items() for b, (of, _) in SIDES.items()}
        fix = (
            {}
            if asked == "cells"
            else {"fix": "Give the centre of patch i of n the coordinate 2 pi ((2i + 1) / n - 1)."}
        )
        for span, how in ways.items():
            hint = f" (if they are right, declare coordinates: {span})" * (span in COORDINATES)
            values = {"message": f"coordinates {how}; they should {ways[asked]}{hint}", **fix}
            yield Fault("rope2d.coordinates_wrong", {"span": span}, values)

    def read(self, seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault | None:
        """Return a table that is cut from one of a wider image, or what the steps show."""
        for n in range(2, 129):
            place = partial(lambda n, t, h, w: (t // n, t % n), n)
            if explains(self, {**model, "place": place}, wrong):
                words = f"patches are counted in rows of {n}, as in an image of {n} columns"
                return Fault("rope2d.patch_order", {"place": place}, {"words": words})
        return super().read(seen, wrong, model)

    def cases(self) -> Iterator[Case]:
        """Yield sizes of grids; large ones may be beyond the end of a table."""
        end = self.spec.get("max_positions")
        for h, w in SIZES:
            if not end or max(h, w) <= end:
                yield Case("near", (h, w), f"table({h}, {w})", optional=not end and max(h, w) > SMALL)
        if not end or max(TURNED) <= end:
            yield Case("turned", TURNED, f"table{TURNED}")

    def observe(self, subject: Any, case: Case) -> Seen:
        """Return the table of one size."""
        if self.sizes is None:
            ask = partial(guard.call, fresh(subject), what="table(h, w)")
            self.sizes, self.left = served.images(ask, SIZES[0], self.spec.get("grid"))
        h, w = self.sizes(*case.args)
        case = replace(case, args=(h, w), words=f"table({h}, {w})")
        found = guard.shaped(guard.call(fresh(subject), h, w, what=case.words), (h * w, self.n), case.words)
        keeps_nothing(subject, (w, h), (h, w), found, case.words)
        return Seen(case, found.detach().double().numpy())

    def cells(self, case: Case) -> tuple[Array, int, int]:
        """Return all patches."""
        return np.arange(np.prod(case.args), dtype=np.float64), *case.args

    def steps(self, seen: Seen, model: Model) -> tuple[Array, Array, str]:
        """Return the angles of the patches below and next to the first one."""
        (h, w), moved = seen.case.args, self.angles(seen, model)
        return moved[w], moved[1], f" in an image of {h} x {w}"

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return what the specification leaves open; a table has no other places than its own."""
        return [*(words for _, words in self.open if words), *filter(None, [self.left])]


class OfVectors(Angles):
    """The part of `rope(x, positions)` that does not depend on the number of axes; mixed into a table of angles.

    With layout "half" a pair is either (i, i + half of the axis's block) or (i, i + half of the head): both are in
    use, and the specification has no word for it.
    """

    kinds = (kind("rope2d.grad.severed", "grad", "near"),)
    clockwise = "queries and keys both rotate clockwise: the second dimension of each pair has the other sign"
    off = Family.off  # of scores, not of angles
    near: Array  # places in the order of the first case, the origin and a step along each axis first
    far: Array
    section: tuple[int, ...]
    blocks: bool  # whether each axis has a block of pairs

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        pairing = spec.get("layout") or "half"
        self.truth = {"gain": 1.0, **self.truth, "lanes": "interleaved" if pairing == "interleaved" else "block"}
        self.truth |= {"form": "", "tables": None}
        generator = torch.Generator().manual_seed(0)
        self.q, self.k = torch.randn(2, 1, 2, self.head_dim, generator=generator, dtype=torch.float32)

    def lanes_left_open(self) -> list[tuple[Model, str]]:
        """Return the other pairing that layout "half" allows."""
        words = "which of the two half pairings is right: halves of the head, or of each axis's part"
        return [] if self.truth["lanes"] == "interleaved" else [({"lanes": "head"}, words)]

    def cases(self) -> Iterator[Case]:
        """Yield places near and far, in two rows of a batch."""
        ends = [f"({', '.join(f'{int(c)}' for c in near.max(0))})" for near in (self.near, self.far)]
        yield Case("near", (self.near,), f"rope(x, positions) at places up to {ends[0]}")
        yield Case("rows", (self.near,), "the places in the other order, in the second row of the batch")
        yield Case("far", (self.far,), f"rope(x, positions) at places up to {ends[1]}", optional=True)
        yield Case("grad", (self.near,), "the gradient of rope(x, positions)", optional=True)

    def observe(self, subject: Any, case: Case) -> Seen:
        """Return rotated queries and keys, (2, heads, tokens, head_dim); for "grad", two gradients."""
        places = torch.from_numpy(case.args[0].astype(np.int64))
        positions, found = torch.stack((places, places.flip(0))), list[Array]()
        graded, turned = case.kind == "grad", case.kind == "rows"
        for vector in (self.q, self.k):
            x = vector[..., None, :].expand(2, -1, len(places), -1).contiguous().requires_grad_(graded)
            y = guard.call(fresh(subject), x, positions, what=case.words, grad=graded)
            y = guard.shaped(y, tuple(x.shape), case.words, grad=graded)
            if not (graded or turned):
                keeps_nothing(subject, (x, positions.flip(1)), (x, positions), y, case.words)
            eps = guard.rounding(y)
            if graded:
                y = torch.autograd.grad((y * y.detach()).sum() + 0 * x.sum(), x)[0]
            y = y[1].flip(1) if turned and found else y[0]  # queries of the first row, keys of the second
            found.append(y.detach().double().numpy())
        return Seen(case, np.stack(found), eps)

    def predict(self, model: Model, case: Case) -> Array:
        """Return rotated queries and keys; for "grad" the gradients of half their squares."""
        angles = self.rotated_by(model, case)
        a, b = self._pairs(model)
        if model["tables"]:
            number = np.empty(2 * self.n, dtype=int)
            for lanes in self._pairs({**model, "lanes": model["tables"]}):
                number[lanes] = np.arange(self.n)
            angles = tuple(t[:, number[lanes]] for t, lanes in zip(angles, (a, a, b, b), strict=True))
        y = np.repeat(torch.cat((self.q, self.k)).double().numpy()[:, :, None], len(angles[0]), 2)
        with np.errstate(invalid="ignore"):  # float16 does not hold all positions
            cosine, minus, sine, other = (
                model["gain"] * wave(angle)
                for wave, angle in zip((np.cos, np.sin, np.sin, np.cos), angles, strict=True)
            )
            minus = minus if model["form"] == "same" else -minus
            if model["form"] == "first":  # the second dimension is computed from the first one after that was rotated
                sine, other = cosine * sine, minus * sine + other
            first, second = y[..., a], y[..., b]
            y[..., a], y[..., b] = first * cosine + second * minus, first * sine + second * other
        if case.kind == "grad":
            first, second = y[..., a], y[..., b]
            y[..., a], y[..., b] = first * cosine + second * sine, first * minus + second * other
        if case.kind == "rows":
            y[0] = self.predict(model, replace(case, kind="near"))[0]
        return y

    def _pairs(self, model: Model) -> tuple[Any, Any]:
        """Return the first and the second dimension of each pair, in the order of the angles."""
        pairs = np.arange(self.n)
        if model["lanes"] == "interleaved":
            return 2 * pairs, 2 * pairs + 1
        if model["lanes"] == "head" or (model["lanes"] == "block" and not self.blocks):
            return pairs, pairs + self.n
        sizes = np.array(self.section)
        first = pairs + np.repeat(np.cumsum(sizes) - sizes, sizes)
        return first, first + np.repeat(sizes, sizes)

    def visible(self, value: Array, case: Case) -> Array:
        """Return the scores of all pairs of places."""
        return value if case.kind == "grad" else np.asarray(np.einsum("hpd,hqd->hpq", value[0], value[1]))

    def slack(self, seen: Seen, predicted: Array, model: Model) -> Array:
        """Return the tolerance of each score: float32 angles have errors that grow with the position."""
        far = np.abs(seen.case.args[0]).max(1)
        rounded: Array = 4e-5 * self.n + 6e-7 * self.n * (far[:, None] + far) + 2 * seen.eps * self.n
        scores: Array = self.truth["gain"] ** 2 * rounded
        return np.full(1, 1e-3 + 4 * seen.eps) if seen.case.kind == "grad" else scores

    def same(self, seen: Seen, predicted: Array) -> bool:
        """Return whether rotated vectors agree, not only scores."""
        return bool(np.abs(seen.value - predicted).max() < 1e-2 + 4 * seen.eps)

    def angles(self, seen: Seen, model: Model) -> Array:
        """Return the angles between the queries at each place and at the first one."""
        a, b = self._pairs(model)
        z = seen.value[0, 0][:, a] + 1j * seen.value[0, 0][:, b]
        return np.asarray(np.angle(z * z[:1].conj()))

    def faults(self) -> Iterator[Fault]:
        """Yield other pairings, blocks that are not rotations, and rows of a batch that share positions as well."""
        for used in PAIRINGS:
            if used != self.truth["lanes"]:
                values = {"asked": PAIRINGS[self.truth["lanes"]], "used": PAIRINGS[used]}
                yield Fault("rope2d.layout.wrong_pairing", {"lanes": used}, values)
        yield from super().faults()
        yield Fault("rope.batch.rows_share", {"shared": True})
        yield Fault("rope.applied_twice", {"step": 2.0}, {"how": "all angles are doubled"})
        yield Fault("rope.sign.same_twice", {"form": "same"})
        how = {"how": "y' = y cos + x' sin with x' = x cos - y sin"}
        yield Fault("rope.aliased_write", {"form": "first"}, how)
        what = {"what": "cos and sin are laid out for one pairing, but dimensions are paired in the other"}
        for used in PAIRINGS:
            yield Fault("rope.layout.mixed", {"tables": used}, what)

    def read(self, seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault | None:
        """Return a gain, or what the angles show."""
        if (near := next((s for s in wrong if s.case.kind == "near"), None)) is not None:
            a, b = self._pairs(model)
            gain = float(np.linalg.norm(near.value[0, 0, 0, [*a, *b]]) / np.linalg.norm(self.q[0, 0, [*a, *b]]))
            if explains(self, {**model, "gain": gain}, [near]):
                return Fault("rope.gain", {"gain": gain}, {"used": gain, "asked": self.truth["gain"]})
        return super().read(seen, wrong, model)

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return what a rotation of places leaves open."""
        return [*super().not_judged(seen), "half precision"]


class Rotated(OfVectors, Grid):
    """Judge rope(x, positions): x (batch, heads, seq, head_dim), positions (batch, seq, 2) of rows and columns."""

    near = np.array([(0, 0), (1, 0), (0, 1), (2, 5), (7, 3), (4, 4), (11, 30), (30, 11), (63, 2)], dtype=float)
    far = np.array([(0, 0), (257, 1), (1, 515), (1023, 64), (300, 4001)], dtype=float)

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        self.blocks = not self.truth["interleaved"]
        self.open += self.lanes_left_open()

    def faults(self) -> Iterator[Fault]:
        """Yield axes in opposite directions: scores do not show which of them is right."""
        words = "the two axes rotate in opposite directions"
        fix = "Rotate each pair by (u cos - v sin, v cos + u sin), with the same signs on both axes."
        yield Fault("rope2d.origin", {"step": (1.0, -1.0)}, {"words": words, "fix": fix})
        yield from (fault for fault in super().faults() if fault.code != "rope2d.origin")

    def cells(self, case: Case) -> tuple[Array, int, int]:
        """Return the places as patches of an image that contains all of them."""
        row, column = case.args[0].T
        return row * WIDE + column, WIDE, WIDE

    def steps(self, seen: Seen, model: Model) -> tuple[Array, Array, str]:
        """Return the angles between queries at (1, 0) or (0, 1) and at (0, 0)."""
        below, sideways = self.angles(seen, model)[1:3]
        return below, sideways, ""


class RotatedAxes(OfVectors, MRope):
    """Judge rope(x, positions): x (batch, heads, seq, head_dim), positions (batch, seq, axes) of three axes or more."""

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        if spec.get("order") not in (None, *["yx"] * (len(self.section) == 2)):
            raise ValueError(
                f"verify: order names two unscaled axes; got order {spec['order']!r}, {len(self.section)} axes and "
                f"scaling {self.asked.scaling!r}. Remove it: the first pairs follow the first axis."
            )
        self.blocks, all_places = self.arranged == "blocks", places(len(self.section))
        self.near = all_places[all_places.max(1) < 64]
        self.far = np.stack((all_places[0], *all_places[(all_places.max(1) >= 64) & (all_places.max(1) < 2048)]))

    def free(self) -> Iterator[Choice]:
        """Yield the other pairing of layout "half", and the opposite direction."""
        for change in ({}, *(change for change, _ in self.lanes_left_open())):
            yield from [Choice(change)] if change else []
            yield Choice({**change, "sign": -1.0}, self.clockwise)

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return what a rotation of places leaves open; scores show the gain."""
        lines = [line for line in super().not_judged(seen) if not line.startswith("the gain")]
        return [*(words for _, words in self.lanes_left_open()), *lines]
