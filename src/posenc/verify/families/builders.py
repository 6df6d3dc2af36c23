"""Builders of M-RoPE positions: how code numbers text, images and video on the axes time, row and column."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from posenc.verify import guard
from posenc.verify.engine import Case, Choice, Family, Fault, Seen
from posenc.verify.engine.observe import fresh
from posenc.verify.engine.records import Array, Model, kind

Part = int | tuple[int, int, int]
# parts of a sequence with the steps of its images
SEQUENCES: tuple[tuple[tuple[Part, ...], tuple[float, ...]], ...] = (
    ((3, (1, 2, 3), 2), (1.0,)),
    ((2, (1, 1, 4), 1, (1, 2, 2), 3), (1.0, 1.0)),
    ((1, (4, 2, 3), 2), (2.0,)),
    ((1, (9, 2, 3), 2), (2.0,)),
    ((2, (4, 1, 2), 3), (1.5,)),
    ((2, (5, 4, 2), 1), (0.5,)),
    ((1, (2, 1, 1), 1, (3, 1, 2), 2), (2.0, 3.0)),
    ((1, (1, 2, 2), 1, (3, 1, 2), 2, (2, 2, 1), 1), (1.0, 2.0, 3.0)),
    ((40_000, (2, 2, 2), 3), (1.0,)),
)
AFTER = ("all_axes", "sides")
OTHERS: Mapping[str, Callable[[list[int], int], int]] = {
    # (frames of the pictures up to this one, number of steps) -> whose step is used
    "all videos use the step of the first": lambda frames, n: 0,
    "each video uses the step of the next one": lambda frames, n: min(len(frames), n - 1),
    "pictures take no step, so a video reads the step of an earlier part": lambda frames, n: max(
        sum(f > 1 for f in frames) - 1, 0
    ),
}
CELLS = {
    "columns": "cells are numbered column by column",
    "frames": "frames are counted in the inner loop, cell by cell",
    "times": "times are repeated in another order than the cells: tile and repeat_interleave are exchanged",
    "halves": "rows and columns are divided by 2",
}
STEPS: Mapping[str, Callable[[Array, float, float], Array]] = {  # (frames, step, start of the video) -> time
    "the step is floored before it is multiplied": lambda n, step, begin: n * np.floor(step),
    "the step is rounded before it is multiplied": lambda n, step, begin: n * np.round(step),
    "the product of frame and step is rounded, not floored": lambda n, step, begin: np.round(_product(n, step)),
    "frames are counted, and the step is ignored": lambda n, step, begin: n,
    "the start is multiplied by the step as well": lambda n, step, begin: np.floor((begin + n) * step) - begin,
    "all frames have one time": lambda n, step, begin: 0 * n,
}


PLACED = {
    (0, 0, 0): "all axes start at 0 again",
    (1, 0, 0): "only times start after the part before, rows and columns start at 0 again",
    (0, 1, 1): "only rows and columns start after the part before, times start at 0 again",
}
AFTERS = {  # where the part after an image starts
    "tokens": "the number of tokens before it",
    "one": "one after its start",
    "largest": "its largest position, not one more",
    "two": "two after its largest position",
    "halves": "as if each side had half as many cells",
}


def _product(n: Array, step: float) -> Array:
    """Return frames times step in float32."""
    return (n.astype(np.float32) * np.float32(step)).astype(np.float64)


class Builder(Family):
    """Judge positions(segments, time_steps) -> (3, seq_len), whole numbers.

    There are two definitions of where the part after an image starts; both are right if none is declared.
    """

    mismatch = "mrope_positions.mismatch"
    kinds = (kind("mrope_positions.far", "far", "near"),)

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        after = spec.get("next_after")
        if after not in (None, *AFTER):
            raise ValueError(f"verify: next_after must be one of {', '.join(AFTER)}; got {after!r:.60}.")
        self.open = after is None
        self.definition = f"mrope_positions {after or AFTER[0]}"
        self.truth = {"after": after or AFTER[0], "step": "", "cells": "rows", "exchanged": False, "start": 0}
        self.truth |= {"placed": (1, 1, 1), "text": (1, 1, 1), "begun": (1, 1, 1)}  # axes that get starts and numbers
        self.truth["stride"] = 1

    def cases(self) -> Iterator[Case]:
        """Yield sequences of parts."""
        for parts, steps in SEQUENCES:
            name = "far" if parts[0] == 40_000 else "near"
            yield Case(name, (parts, steps), f"positions({list(parts)}, {list(steps)})")

    def observe(self, subject: Any, case: Case) -> Seen:
        """Return the positions of one sequence."""
        parts, steps = case.args
        found = guard.array(guard.call(fresh(subject), list(parts), list(steps), what=case.words), case.words)
        length = sum(part if isinstance(part, int) else math.prod(part) for part in parts)
        return Seen(case, guard.shaped(found, (3, length), case.words).double().numpy(), 0.0)

    def predict(self, model: Model, case: Case) -> Array:
        """Return the positions of a model's rule."""
        parts, steps = case.args
        videos, columns, begin = list[int](), list[Array](), float(model["start"])
        for part in parts:
            if isinstance(part, int):
                counted = np.outer(model["text"], np.arange(part, dtype=np.float64))
                columns.append(counted + begin * np.array(model["begun"])[:, None])
                begin += part - (model["after"] == "last")
                continue
            videos.append(part[0])
            sides, frames = part[1:], np.arange(part[0], dtype=np.float64)
            step = steps[OTHERS[model["step"]](videos, len(steps)) if model["step"] in OTHERS else len(videos) - 1]
            rule = STEPS.get(model["step"])
            times = rule(frames, step, begin) if rule else np.floor(_product(frames, step))
            grid = np.indices(sides[::-1])[::-1] if model["cells"] == "columns" else np.indices(sides)
            cells = model["stride"] * grid.reshape(2, -1)[:: -1 if model["exchanged"] else 1]
            cells = cells // (1 + (model["cells"] == "halves"))
            outer = np.tile if model["cells"] in ("frames", "times") else np.repeat
            inner: Any = np.repeat if model["cells"] == "frames" else np.tile
            block = np.stack((outer(times, math.prod(sides)), *(inner(axis, len(times)) for axis in cells)))
            columns.append(begin * np.array(model["placed"])[:, None] + block)
            end = columns[-1].max()
            ends = {"all_axes": end + 1, "sides": begin + max(sides), "one": begin + 1, "largest": end, "last": end}
            ends |= {"so_far": max(c.max() for c in columns) + 1, "two": end + 2}
            ends |= {"halves": begin + max(times[-1] + 1, *(-(-n // 2) for n in sides))}
            begin = {**ends, "tokens": float(sum(c.shape[1] for c in columns))}[model["after"]]
        return np.concatenate(columns, 1)

    def off(self, seen: Seen, predicted: Array, model: Model) -> Array:
        """Return the difference: positions are whole, so rounding explains nothing."""
        return np.abs(seen.value - predicted) * 1e3

    def free(self) -> Iterator[Choice]:
        """Yield the other definition, and another first number, which does not change scores."""
        if self.open:
            yield Choice({"after": AFTER[1]})
        for after in AFTER if self.open else (self.truth["after"],):
            yield Choice({"after": after, "start": 1}, "all positions are one higher, which does not change scores")

    def faults(self) -> Iterator[Fault]:
        """Yield wrong rules, those of public reports first."""
        for words in (*STEPS, *OTHERS):
            yield Fault("mrope_positions.time_step", {"step": words}, {"words": words})
        yield Fault("mrope_positions.axes_exchanged", {"exchanged": True})
        for cells, words in CELLS.items():
            yield Fault("mrope_positions.cell_order", {"cells": cells}, {"words": words})
        for placed, words in PLACED.items():
            yield Fault("mrope_positions.start", {"placed": placed}, {"words": words})
            yield Fault("mrope_positions.start", {"placed": placed, "after": "so_far"}, {"words": words})
        yield Fault("mrope_positions.not_merged", {"stride": 2})
        for begun in ((1, 0, 0), (1, 1, 1)):
            yield Fault("mrope_positions.text_axes", {"text": (1, 0, 0), "begun": begun})
        for after, words in AFTERS.items():
            yield Fault("mrope_positions.after_picture", {"after": after}, {"words": words})
        words = "each part starts at the largest position so far, not one after it"
        yield Fault("mrope_positions.after_picture", {"after": "last"}, {"message": words})
        if not self.open:
            other, asked = AFTER[1 - AFTER.index(self.truth["after"])], self.truth["after"]
            yield Fault("mrope_positions.next_after", {"after": other}, {"used": other, "asked": asked})

    def smallest(self, seen: Seen, predicted: Array, off: Array) -> dict[str, Any]:
        """Return the first wrong token of a sequence."""
        token = int((off > 1).any(0).argmax())
        found, expected = (t[:, token].tolist() for t in (seen.value, predicted))
        return {"parts": list(seen.case.args[0]), "token": token, "found": found, "expected": expected}

    def measured(self, seen: Sequence[Seen], model: Model) -> dict[str, Any]:
        """Return which of the two definitions the model follows."""
        return {"next_after": model["after"]}

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return that no definition was declared."""
        left = "which of the two definitions places the text after a video: declare next_after to have it judged"
        return [left] if self.open else []


family = Builder
