"""How precise an encoding's numbers are: where two positions get the same ones, and how wrong its angles are.

What is measured are the tables that `place` makes, rounded to each dtype, and beside them those of a formula, as
other code forms them. What is learned is drawn from N(0, 1), as `posenc.character` does.
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

# Powers of ten, and the last positions before powers of two, where numbers are the coarsest for their size.
POSITIONS = tuple(sorted({*(10**i for i in range(8)), *(2**i - 1 for i in (8, 12, 16, 20, 23))}))
ANGULAR = 1e-5  # radians; tables that are further from pos * inv_freq at the first positions mean something else
Tables = Callable[[Tensor], Sequence[Tensor]]
Found = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """What tables are asked, in plain values, so that another process can ask them as well.

    Args:
        cap: How many positions from 0 on are searched for two that have the same numbers.
        positions: Where the phase error is measured.
        inv_freq: Radians per position of each pair; None where the numbers stand for no angle.
    """

    cap: int
    positions: Sequence[int] = ()
    inv_freq: Sequence[float] | None = None


@dataclass(frozen=True)
class Subject:
    """What of an encoding can be measured.

    Args:
        tables: Maps positions (n,) to numbers, (n, width) each: (cos, sin) or (vectors,); None if there are none.
        task: What they are asked.
        notes: Sentences about what is not measured, or how.
    """

    tables: Tables | None
    task: Task
    notes: tuple[str, ...] = ()


def measure(encoding: Encoding, formula: torch.dtype | Tables = torch.float32) -> Found:
    """Measure an encoding's precision and that of a formula of the same angles.

    Args:
        encoding: Any `Encoding`; it is copied, not changed. Of an additive one the vectors are measured, of a rotary
            one the tables of cos and sin; others have no numbers that belong to one position.
        formula: The dtype in which angles are formed, as most code does, or a function of positions (n,), int64, that
            returns (cos, sin), each (n, n_pairs).

    Returns:
        Plain JSON values. `collisions`: for "ours" and "formula" by dtype the first position whose numbers, rounded to
        it, are those of an earlier one, `{"position", "same_as"}`, or None. `phase_error`: for each position the
        largest error in radians over the pairs, by dtype; None where a pair's numbers are no angle. `cap`: how many
        positions from 0 on were searched. `note`: what was not measured, or how; or None.

    Raises:
        TypeError: The formula does not return floating-point numbers.
        ValueError: Its tables do not have a row a position and a column a pair.

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
    """Find what of an encoding can be measured; `place` makes it in float32, as it does for models."""
    turns = hasattr(encoding, "frequencies")
    if encoding.reads_x or not (turns or isinstance(encoding, Additive)):
        lacking = f"{encoding.name} neither adds vectors to the tokens nor turns queries and keys by tables of cos and"
        return Subject(None, Task(0), (f"There is nothing to measure: {lacking} sin that belong to one position.",))
    probe = Probe(encoding, torch.float32)

    @torch.no_grad()
    def tables(pos: Tensor) -> Sequence[Tensor]:
        # all axes of a turn move at once, as in text; a table of vectors may be shorter along some of them
        placed = probe.place(pos[:, None].expand(-1, n) if turns and n > 1 else probe.along(pos), None)
        return [t.reshape(len(pos), -1) for t in (placed.parts[:2] if turns else placed.parts)]

    n, cap, last = probe.encoding.n_axes, len(probe.line(CAP)), probe.longest
    inv_freq = _find_frequencies(probe.encoding, tables) if turns else None
    shown = () if inv_freq is None else tuple(p for p in POSITIONS if last is None or p <= last)
    return Subject(tables, Task(cap, shown, inv_freq), tuple(_list_notes(probe, turns, inv_freq is None)))


def form_tables(inv_freq: Sequence[float], dtype: torch.dtype) -> Tables:
    """Return the formula of most code: angles pos * inv_freq, their cos and their sin, all in one dtype."""
    rounded = torch.tensor(inv_freq, dtype=torch.float64).to(dtype)

    def tables(pos: Tensor) -> Sequence[Tensor]:
        angle = pos.to(dtype)[:, None] * rounded
        return angle.cos(), angle.sin()

    return tables


def examine(tables: Tables, task: Task) -> Found:
    """Return what tables do: `collisions` by dtype, and `phase_error`, by dtype for each position of the task.

    Raises:
        TypeError: They are not of floating-point numbers.
        ValueError: They do not have a row a position and, where there are angles, a column a pair.
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
    rows = rows + 0.0  # -0.0 is 0.0 from here on, while what is no number stays comparable bit by bit
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
    """Return how far, in radians, the angle that each cos and sin stand for is from pos * inv_freq.

    Half a turn at most. The reference is good to 1e-15: cos and sin are turned back by the exact angle, in two turns
    that float64 holds without rounding for positions below 2^26. Rounding the product once would be off by 1e-9 at
    10,000,000. NaN where cos and sin are no numbers, or both zero.

    >>> half = torch.tensor([[0.5]], dtype=torch.float64)
    >>> round(float(phase_error(half.cos(), half.sin(), torch.tensor([1]), half[0])), 12)
    0.0
    """
    real, imaginary = cos.double(), sin.double()
    coarse = (inv_freq.view(torch.int64) >> 27 << 27).view(torch.float64)  # 26 bits, and 27 are left
    for part in (coarse, inv_freq - coarse):
        back = pos.double()[:, None] * part
        c, s = back.cos(), back.sin()
        real, imaginary = real * c + imaginary * s, imaginary * c - real * s
    nowhere = (cos == 0) & (sin == 0)
    return torch.atan2(imaginary, real).abs().masked_fill(nowhere, torch.nan)


def report(subject: Subject, theirs: Found | None) -> Found:
    """Examine an encoding's own tables and set what was found of a formula's beside it, as `measure` returns it."""
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
    """Return the tables at positions, once they are what was asked for."""
    answer = [torch.as_tensor(t).detach().cpu() for t in tables(pos)]
    shapes = [tuple(t.shape) for t in answer]
    if not all(t.is_floating_point() for t in answer):
        raise TypeError(f"formula: cos and sin must be floating-point; got {', '.join(str(t.dtype) for t in answer)}.")
    if task.inv_freq is not None and shapes != [wanted := (len(pos), len(task.inv_freq))] * 2:
        raise ValueError(
            f"formula: cos and sin must have shape {wanted} each, a row a position and a column a pair; "
            f"got {' and '.join(map(str, shapes))}."
        )
    return answer


def _find_frequencies(encoding: Any, tables: Tables) -> tuple[float, ...] | None:
    """Return radians per position of each pair of each head; None if the tables do not hold those angles."""
    pos = torch.arange(4)
    try:
        inv_freq = encoding.frequencies().detach().double().sum(-2).flatten()
        inv_freq = inv_freq.repeat(max(tables(pos)[0].shape[-1] // len(inv_freq), 1))  # heads may share them
        cos, sin = _ask(tables, pos, Task(0, (), inv_freq.tolist()))
    except (NotImplementedError, ValueError):  # a rotation of another kind
        return None
    wrong = bool(phase_error(cos, sin, pos, inv_freq).max() > ANGULAR)
    return None if wrong else tuple(inv_freq.tolist())


def _list_notes(probe: Probe, turns: bool, no_angles: bool) -> list[str]:
    n_axes = probe.encoding.n_axes
    moves = "Positions are the same on all axes." if turns else "Positions run along axis 0; the others stay at 0."
    told = {
        "No phase error and no formula: these are not tables of cos and sin of pos * inv_freq.": no_angles,
        moves: n_axes > 1,
        "What is learned is drawn from N(0, 1).": any(True for _ in probe.encoding.parameters()),
    }
    return [sentence for sentence, applies in told.items() if applies]
