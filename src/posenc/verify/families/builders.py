"""Builders of M-RoPE positions: how code numbers text, pictures and video on the axes time, row and column."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from posenc.verify import guard
from posenc.verify.engine import Case, Choice, Family, Fault, Seen
from posenc.verify.engine.observe import fresh
from posenc.verify.engine.records import Array, Model, kind
from posenc.verify.report import Cause

Part = int | tuple[int, int, int]
# parts of a sequence with the steps of its pictures, and the kind of case
TEXTS: tuple[tuple[str, tuple[Part, ...], tuple[float, ...]], ...] = (
    ("text", (5,), ()),
    ("near", (3, (1, 2, 3), 2), (1.0,)),
    ("near", ((1, 3, 2), 4), (1.0,)),
    ("near", (2, (1, 1, 4), 1, (1, 2, 2), 3), (1.0, 1.0)),
    ("video", (3, (3, 2, 2), 2), (1.0,)),
    ("video", (1, (4, 2, 3), 2), (2.0,)),
    ("long", (1, (9, 2, 3), 2), (2.0,)),
    ("fraction", (2, (4, 1, 2), 3), (1.5,)),
    ("fraction", (2, (5, 4, 2), 1), (0.5,)),
    ("several", (1, (2, 1, 1), 1, (3, 1, 2), 2), (2.0, 3.0)),
    ("far", (40_000, (2, 2, 2), 3), (1.0,)),
)
AFTER = ("all_axes", "sides")
STEPS = {
    "step_floored": "the step is floored before it is multiplied",
    "rounded": "the product of frame and step is rounded, not floored",
    "ceiled": "the product of frame and step is rounded up",
    "ignored": "frames are counted, whatever the step is",
    "start_scaled": "the beginning of the video is multiplied by the step as well",
    "still": "all frames have one time",
}


def family(convention: str, spec: Mapping[str, Any]) -> Family:
    """Return the family of a builder of positions."""
    return Builder(convention, spec)


class Builder(Family):
    """Judges positions(segments, time_steps) -> (3, seq_len), whole numbers.

    Two definitions exist of where the part after a picture begins (`definitions.positions.mrope_positions`): both are
    right where the specification has no `next_after`.
    """

    mismatch = "mrope_positions.mismatch"
    kinds = (kind("mrope_positions.far", "far", "near text video long fraction several"),)

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        after = spec.get("next_after")
        if after not in (None, *AFTER):
            raise ValueError(f"verify: next_after must be one of {', '.join(AFTER)}; got {after!r:.60}.")
        self.open = after is None
        self.definition = f"mrope_positions {after or AFTER[0]}"
        self.truth = {
            "next_after": after or AFTER[0],
            "step": "right",
            "one_step": False,  # all videos have the step of the first
            "exchanged": False,  # rows and columns
            "column_by_column": False,  # the order of cells
            "text": "next",  # what follows a picture begins there, or at the number of "tokens", or "one" after it
            "start": 0,
        }

    def cases(self) -> Iterator[Case]:
        """Yield sequences of parts."""
        for name, parts, steps in TEXTS:
            yield Case(name, (parts, steps), f"positions({list(parts)}, {list(steps)})")

    def observe(self, subject: Any, case: Case) -> Seen:
        """Return the positions of one sequence."""
        parts, steps = case.args
        found = guard.call(fresh(subject), list(parts), list(steps), what=case.words)
        found = torch.as_tensor(found)
        length = sum(part if isinstance(part, int) else math.prod(part) for part in parts)
        found = guard.shaped(found, (3, length), case.words)
        if found.is_complex() or (found.is_floating_point() and bool((found != found.round()).any())):
            message = f"{case.words} must return whole numbers; got {found.flatten()[:6].tolist()}"
            raise guard.SubjectError(Cause("mrope_positions.not_whole", message, 1.0, {"call": case.words}))
        return Seen(case, found.double().numpy(), 0.0)

    def predict(self, model: Model, case: Case) -> Array:
        """Return the positions of a model's rule."""
        parts, steps = case.args
        left, columns, begin, tokens = iter(steps), list[Array](), float(model["start"]), 0
        for part in parts:
            if isinstance(part, int):
                columns.append(np.repeat(begin + np.arange(part, dtype=np.float64)[None], 3, 0))
                begin += part
                tokens += part
                continue
            step = next(left)
            times = _times(model["step"], part[0], steps[0] if model["one_step"] else step, begin)
            columns.append(_cells(model, times, part[1:]) + begin)
            tokens += math.prod(part)
            begin = self._after(model, begin, times, part, tokens)
        return np.concatenate(columns, 1)

    def _after(self, model: Model, begin: float, times: Array, part: tuple[int, int, int], tokens: int) -> float:
        """Return where the part after a picture begins."""
        if model["text"] == "tokens":
            return float(tokens)
        if model["text"] == "one":
            return begin + 1
        last = times[-1] + 1 if model["next_after"] == "all_axes" else 0
        return begin + float(max(last, *part[1:]))

    def off(self, seen: Seen, predicted: Array, model: Model) -> Array:
        """Return the difference: positions are whole, so that none is explained by rounding."""
        return np.abs(seen.value - predicted) * 2

    def same(self, seen: Seen, predicted: Array) -> bool:
        """Return True: `off` has compared every number."""
        return True

    def free(self) -> Iterator[Choice]:
        """Yield the other definition, and another first number, which no score sees."""
        if self.open:
            yield Choice({"next_after": AFTER[1]})
        for after in AFTER if self.open else (self.truth["next_after"],):
            yield Choice({"next_after": after, "start": 1}, "all positions are one higher, which no rotation sees")

    def faults(self) -> Iterator[Fault]:
        """Yield wrong rules, those of public reports first."""
        for step, words in STEPS.items():
            yield Fault("mrope_positions.time_step", {"step": step}, {"words": words})
        words = "all videos have the step of the first"
        yield Fault("mrope_positions.time_step", {"one_step": True}, {"words": words})
        yield Fault("mrope_positions.axes_exchanged", {"exchanged": True})
        yield Fault("mrope_positions.cell_order", {"column_by_column": True})
        yield Fault("mrope_positions.after_picture", {"text": "tokens"}, {"words": "the number of tokens before it"})
        yield Fault("mrope_positions.after_picture", {"text": "one"}, {"words": "one after the picture's beginning"})
        if not self.open:
            other = AFTER[1 - AFTER.index(self.truth["next_after"])]
            yield Fault(
                "mrope_positions.next_after", {"next_after": other}, {"used": other, "asked": self.truth["next_after"]}
            )

    def smallest(self, seen: Seen, predicted: Array, off: Array) -> dict[str, Any]:
        """Return the first wrong token of a sequence."""
        token = int((off > 1).any(0).argmax())
        listed = [seen.value[:, token].astype(int).tolist(), predicted[:, token].astype(int).tolist()]
        return {"parts": list(seen.case.args[0]), "token": token, "found": listed[0], "expected": listed[1]}

    def measured(self, seen: Sequence[Seen], model: Model) -> dict[str, Any]:
        """Return which of the two definitions it follows."""
        return {"next_after": model["next_after"]}

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return which definition was not asked for."""
        left = ["which of the two definitions of what follows a video the model has: say next_after"]
        return left if self.open else []


def _times(rule: str, frames: int, step: float, begin: float) -> Array:
    """Return the time of each frame after the picture's beginning; "right" is the floor of a float32 product."""
    product = (np.arange(frames, dtype=np.float32) * np.float32(step)).astype(np.float64)
    if rule == "start_scaled":
        scaled: Array = np.floor((begin + np.arange(frames)) * step) - begin
        return scaled
    rules = {
        "step_floored": np.arange(frames) * np.floor(step),
        "rounded": np.round(product),
        "ceiled": np.ceil(product),
        "ignored": np.arange(frames, dtype=np.float64),
        "still": np.zeros(frames),
    }
    times: Array = rules.get(rule, np.floor(product))
    return times


def _cells(model: Model, times: Array, sides: tuple[int, int]) -> Array:
    """Return (time, row, column) of each cell, frame by frame."""
    rows, columns = sides
    grid = np.mgrid[0:rows, 0:columns].reshape(2, -1)
    if model["column_by_column"]:
        grid = np.mgrid[0:columns, 0:rows].reshape(2, -1)[::-1]
    if model["exchanged"]:
        grid = grid[::-1]
    cells: Array = np.stack((np.repeat(times, rows * columns), *np.tile(grid, len(times)))).astype(np.float64)
    return cells
