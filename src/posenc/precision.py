"""Measure an encoding's precision: positions with equal numbers, and the errors of its angles.

The tables that `place` makes are measured after rounding to each dtype, next to those of a formula as in other code.
Learned numbers are drawn from N(0, 1), as in `posenc.character`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from posenc.character import CAP, DTYPES, first_repetition, silence
from posenc.encoding import Encoding
from posenc.families import Additive
from posenc.probe import Probe

# Powers of ten, and the last positions before powers of two, where rounding is coarsest relative to the number.
POSITIONS = tuple(sorted({*(10**i for i in range(8)), *(2**i - 1 for i in (8, 12, 16, 20, 23))}))
ANGULAR = 1e-5  # radians; tables further from pos * inv_freq at the first positions are not tables of these angles
Tables = Callable[[Tensor], Sequence[Tensor]]
Found = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """The measurements of tables, in plain values that can be sent to another process.

    Args:
        cap: The number of positions, from 0 on, that are searched for equal numbers.
        positions: The positions at which the phase error is measured.
        inv_freq: Radians per position of each pair; None if the numbers are not cosines and sines of angles.
    """

    cap: int
    positions: Sequence[int] = ()
    inv_freq: Sequence[float] | None = None


@dataclass(frozen=True)
class Subject:
    """The measurable tables of an encoding.

    Args:
        tables: A function from positions (n,) to tables (n, width): (cos, sin) or (vectors,); None if there are none.
        task: The measurements.
        notes: Sentences about missing measurements and conditions.
    """

    tables: Tables | None
    task: Task
    notes: tuple[str, ...] = ()


def measure(encoding: Encoding, formula: torch.dtype | Tables = torch.float32) -> Found:
    """Measure an encoding's precision and that of a formula of the same angles.

    Args:
        encoding: Any `Encoding`; it is copied, not changed. Measured are the vectors of an additive encoding and the
            tables of cos and sin of a rotary one; others have no numbers that belong to one position.
        formula: The dtype in which angles are computed, as in most code, or a function from positions (n,) in int64 to
            (cos, sin), each (n, n_pairs).

    Returns:
        Plain JSON values. `collisions`: for "ours" and "formula", by dtype, the first position whose rounded numbers
        equal those of an earlier one, `{"position", "same_as"}`, or None. `phase_error`: for each position the largest
        error over the pairs in radians, by dtype; None if a pair's numbers are not an angle. `cap`: the number of
        positions that were searched, from 0 on. `note`: missing measurements and conditions, or None.

    Raises:
        TypeError: The formula does not return floating-point numbers.
        ValueError: Its tables do not have a row for each position and a column for each pair.

    >>> from posenc import RoPE
    >>> found = measure(RoPE(head_dim=8), torch.bfloat16)
    >>> found["collisions"]["formula"]["bfloat16"]
    {'position': 257, 'same_as': 256}
    """
    subject = find_subject(encoding)
    theirs = None
    if subject.task.inv_freq is not None:
        tables = form_tables(subject.task.inv_freq, formula) if isinstance(formula, torch.dtype) else formula
        theirs = examine(tables, subject.task)
    return report(subject, theirs)


def find_subject(encoding: Encoding) -> Subject:
    """Find the measurable tables of an encoding, in float32 as for models."""
    rotates = hasattr(encoding, "frequencies")
    if encoding.reads_x or not (rotates or isinstance(encoding, Additive)):
        lacking = (
            f"{encoding.name} neither adds vectors to the tokens nor rotates queries and keys by tables of cos and"
        )
        return Subject(None, Task(0), (f"There is nothing to measure: {lacking} sin that belong to one position.",))
    probe = Probe(encoding, torch.float32)

    @torch.no_grad()
    def tables(pos: Tensor) -> Sequence[Tensor]:
        # positions of a rotation are equal on all axes, as in text; a table of vectors may be shorter along some axes
        placed = probe.place(pos[:, None].expand(-1, n) if rotates and n > 1 else probe.along(pos), None)
        return [t.reshape(len(pos), -1) for t in (placed.parts[:2] if rotates else placed.parts)]

    n, cap, last = probe.encoding.n_axes, len(probe.line(CAP)), probe.longest
    inv_freq = _find_frequencies(probe.encoding, tables) if rotates else None
    shown = () if inv_freq is None else tuple(p for p in POSITIONS if last is None or p <= last)
    return Subject(tables, Task(cap, shown, inv_freq), tuple(_list_notes(probe, rotates, inv_freq is None)))


def form_tables(inv_freq: Sequence[float], dtype: torch.dtype) -> Tables:
    """Return the formula of most code: the angles pos * inv_freq, and their cos and sin, all in one dtype."""
    rounded = torch.tensor(inv_freq, dtype=torch.float64).to(dtype)

    def tables(pos: Tensor) -> Sequence[Tensor]:
        angle = pos.to(dtype)[:, None] * rounded
        return angle.cos(), angle.sin()

    return tables


def examine(tables: Tables, task: Task) -> Found:
    """Measure tables: `collisions` by dtype, and `phase_error` by dtype for each position of the task.

    Raises:
        TypeError: They do not have floating-point numbers.
        ValueError: They do not have a row for each position and, if there are angles, a column for each pair.
    """
    near = torch.cat(_ask(tables, torch.arange(task.cap), task), -1)
    near = silence(near) if bool(near.isfinite().all()) else near
    errors: list[dict[str, float | None]] = [{} for _ in task.positions]
    if task.inv_freq is not None:
        pos, inv_freq = torch.tensor(task.positions), torch.tensor(task.inv_freq, dtype=torch.float64)
        cos, sin = _ask(tables, pos, task)
        for name, dtype in DTYPES.items():
            here = phase_error(cos.to(dtype), sin.to(dtype), pos, inv_freq).amax(-1)
            for row, error in zip(errors, here.tolist(), strict=True):
                row[name] = None if error != error else error
    return {
        "collisions": {name: find_collision(near.to(dtype)) for name, dtype in DTYPES.items()},
        "phase_error": errors,
    }


def find_collision(rows: Float[Tensor, "n width"]) -> dict[str, int] | None:
    """Return the first row that equals an earlier one, and the first that it equals; None if all differ.

    >>> find_collision(torch.tensor([[1.0], [0.0], [2.0], [-0.0]]))
    {'position': 3, 'same_as': 1}
    """
    rows = rows + 0.0  # makes -0.0 equal 0.0 in the comparison of bits below, which can compare NaN as well
    first = first_repetition(rows)
    if first is None:
        return None
    bits = rows.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[rows.element_size()])
    return {"position": first, "same_as": int((bits[:first] == bits[first]).all(-1).nonzero()[0])}


def phase_error(
    cos: Float[Tensor, "n n_pairs"],
    sin: Float[Tensor, "n n_pairs"],
    pos: Int64[Tensor, " n"],
    inv_freq: Float64[Tensor, " n_pairs"],
) -> Float64[Tensor, "n n_pairs"]:
    """Return the distance, in radians up to pi, of the angle of each cos and sin from pos * inv_freq.

    The reference is exact to 1e-15: cos and sin are rotated back by the exact angle, in two rotations whose angles are
    exact in float64 for positions below 2^26. Rounding the product once would cause an error of 1e-9 at 10,000,000. The
    result is NaN where cos and sin are NaN, or both zero.

    >>> half = torch.tensor([[0.5]], dtype=torch.float64)
    >>> round(float(phase_error(half.cos(), half.sin(), torch.tensor([1]), half[0])), 12)
    0.0
    """
    real, imaginary = cos.double(), sin.double()
    coarse = (inv_freq.view(torch.int64) >> 27 << 27).view(torch.float64)  # the upper 26 bits; 27 remain
    for part in (coarse, inv_freq - coarse):
        back = pos.double()[:, None] * part
        c, s = back.cos(), back.sin()
        real, imaginary = real * c + imaginary * s, imaginary * c - real * s
    nowhere = (cos == 0) & (sin == 0)
    return torch.atan2(imaginary, real).abs().masked_fill(nowhere, torch.nan)


def report(subject: Subject, theirs: Found | None) -> Found:
    """Measure an encoding's own tables and combine them with a formula's, as `measure` returns them."""
    ours = examine(subject.tables, subject.task) if subject.tables else {}
    both = {"ours": ours, "formula": theirs or {}}
    return {
        "collisions": {who: found.get("collisions") for who, found in both.items()},
        "phase_error": [
            {"position": p} | {who: found["phase_error"][i] for who, found in both.items() if found}
            for i, p in enumerate(subject.task.positions)
        ],
        "cap": subject.task.cap,
        "note": " ".join(subject.notes) or None,
    }


def _ask(tables: Tables, pos: Tensor, task: Task) -> list[Tensor]:
    """Return the tables at positions after a check of dtype and shape."""
    answer = [torch.as_tensor(t).detach().cpu() for t in tables(pos)]
    shapes = [tuple(t.shape) for t in answer]
    if not all(t.is_floating_point() for t in answer):
        raise TypeError(f"formula: cos and sin must be floating-point; got {', '.join(str(t.dtype) for t in answer)}.")
    if task.inv_freq is not None and shapes != [wanted := (len(pos), len(task.inv_freq))] * 2:
        raise ValueError(
            f"formula: cos and sin must have shape {wanted} each, a row for each position and a column for each pair; "
            f"got {' and '.join(map(str, shapes))}."
        )
    return answer


def _find_frequencies(encoding: Any, tables: Tables) -> tuple[float, ...] | None:
    """Return radians per position of each pair of each head; None if the tables do not have these angles."""
    pos = torch.arange(4)
    try:
        inv_freq = encoding.frequencies().detach().double().sum(-2).flatten()
        inv_freq = inv_freq.repeat(max(tables(pos)[0].shape[-1] // len(inv_freq), 1))  # heads may share them
        cos, sin = _ask(tables, pos, Task(0, (), inv_freq.tolist()))
    except (NotImplementedError, ValueError):  # a rotation of another kind
        return None
    wrong = bool(phase_error(cos, sin, pos, inv_freq).max() > ANGULAR)
    return None if wrong else tuple(inv_freq.tolist())


def _list_notes(probe: Probe, rotates: bool, no_angles: bool) -> list[str]:
    n_axes = probe.encoding.n_axes
    moves = "Positions are the same on all axes." if rotates else "Positions run along axis 0; the others stay at 0."
    notes = {
        "No phase error and no formula: these are not tables of cos and sin of pos * inv_freq.": no_angles,
        moves: n_axes > 1,
        "Learned numbers are drawn from N(0, 1).": any(True for _ in probe.encoding.parameters()),
    }
    return [sentence for sentence, applies in notes.items() if applies]
