"""Trained tables, added to the tokens: which row each token gets, read off the gradient of the table."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from posenc.verify import guard
from posenc.verify.additive import learned2d
from posenc.verify.additive.asked import Asked
from posenc.verify.additive.places import Shape
from posenc.verify.additive.probe import Probe, gradients, leaves, tokens, width
from posenc.verify.additive.rows import factor, match, named
from posenc.verify.additive.waves import Array
from posenc.verify.report import Cause, Findings

_LARGEST = 2**23  # numbers of a text that is only asked for to see its end
F = "learned"


def check(subject: Any, convention: str, asked: Asked) -> Findings:
    """Return what is wrong with a trained table that is added to the tokens."""
    findings = Findings(definitions=["learned"])
    probe = Probe(subject, convention)
    probe.dim = asked.dim or width(probe.fresh(), convention)
    _fill(probe)
    first = (2, *learned2d.first(probe, asked)) if convention == "additive_2d_module" else (2, 5)
    try:
        probe.raw(first)
    except guard.SubjectError as error:
        findings.causes = [_refused(probe, first, error.cause)]
        return findings
    findings.causes += tokens(probe, F, first)
    if any(c.code.endswith((".state_kept", ".random", ".dropout_in_eval", ".input.changed")) for c in findings.causes):
        return findings
    findings.causes += gradients(probe, F, first, trained=True)
    if convention == "additive_2d_module":
        _image(probe, first, findings)
        if not findings.causes:
            learned2d.check(probe, asked, findings)
    else:
        _rows(probe, asked, findings)
    return findings


def _fill(probe: Probe) -> None:
    """Give a copy's parameters random numbers, rows all different: fresh tables are often zeros."""
    made = probe.fresh()
    if not isinstance(made, nn.Module) or made is probe.subject:
        return
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for t in made.parameters():
            if t.ndim >= 2 and t.is_floating_point():
                # rows that are zero as padding rows are stay zero
                noise = torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t.dtype)
                zero = (t == 0).all(-1, keepdim=True) & bool(t.any())
                t.copy_(torch.where(zero, t, noise))
    probe.subject = made


def _refused(probe: Probe, shape: Shape, cause: Cause) -> Cause:
    if cause.code not in {"subject.raises", "subject.shape"} or probe.kind != "additive_module":
        return cause
    try:
        probe.raw((1, shape[1]))
    except guard.SubjectError:
        return cause
    message = f"{probe.say(shape)} fails and one of batch 1 works: rows are counted along the batch"
    help_ = "Number the rows along the sequence: arange(x.size(1))."
    return Cause(f"{F}.axis.batch", message, 1.0, {"x": list(probe.full(shape))}, help_, (cause.code,))


def _table(probe: Probe, shape: Shape) -> Tensor | None:
    """Return the table: the largest leaf of the graph with `dim` lanes, else a buffer of this width."""
    subject = probe.fresh()
    fits = [t for t in leaves(probe, shape, subject) if t.ndim >= 2 and t.shape[-1] == probe.dim]
    if not fits and isinstance(subject, nn.Module):
        fits = [t for t in (*subject.parameters(), *subject.buffers()) if t.ndim >= 2 and t.shape[-1] == probe.dim]
    return max(fits, key=lambda t: t.numel(), default=None)


def _first_row(asked: Asked) -> int:
    said = asked.said
    offset, start, padding = said.get("offset"), said.get("start"), said.get("padding")
    if offset is None and start is None and isinstance(padding, int) and not isinstance(padding, bool):
        return padding + 1
    return int(offset or 0) + int(start or 0)


def _rows(probe: Probe, asked: Asked, findings: Findings) -> None:
    shape = (2, 5)
    code = probe.code(shape)
    if np.abs(code).max() < 1e-7:
        findings.causes.append(
            Cause(
                f"{F}.not_used",
                "nothing is added: forward(x) returns x",
                0.0,
                {"x": [1, 1, probe.dim]},
                "Return x + table[rows].",
            )
        )
        return
    table = _table(probe, shape)
    if table is None:
        findings.unknown = (
            "no table was found among the parameters or in the graph of the result: its rows cannot be told"
        )
        return
    flat = table.detach().double().reshape(-1, probe.dim).numpy()
    findings.measured["table_rows"] = len(flat)
    if all(t.shape != table.shape for t in leaves(probe, shape, probe.fresh())):
        message = f"the table of {len(flat)} rows takes no gradient: it will not learn"
        findings.causes.append(
            Cause(f"{F}.frozen", message, float(len(flat)), {"x": [1, 1, probe.dim]}, "Make it a Parameter.")
        )
    first = _first_row(asked)
    findings.causes += _judged(probe, shape, code, flat, first, findings)
    if not findings.causes:
        findings.causes += (
            _unlearned(probe, table, first) + _later(probe, flat, first) + _ends(probe, asked, flat, first)
        )


def _judged(probe: Probe, shape: Shape, code: Array, table: Array, first: int, findings: Findings) -> list[Cause]:
    rows = match(code, table)
    gain = 1.0
    if (rows == -1).any():
        gain, rows = factor(code, table, rows)
    right = first + np.arange(shape[1])
    if gain == 1.0 and (rows == right).all():
        findings.measured["first_row"] = first
        return []
    bad = np.argwhere(rows != right)
    case: dict[str, Any] = {"x": [1, 1, probe.dim], "rows": rows[0].tolist(), "expected": right.tolist()}
    if gain != 1.0:
        message = f"the row of the table is multiplied by {gain:.6g} before it is added"
        return [
            Cause(
                f"{F}.{'added_twice' if abs(gain - 2) < 1e-3 else 'scaled'}",
                message,
                gain,
                case,
                "Add the row as it is.",
            )
        ]
    if len(bad):
        case["x"] = [int(bad[0][0]) + 1, int(bad[0][1]) + 1, probe.dim]
    name, words, mend = named(rows, first)
    ahead = rows[0, 0] - 1
    if name in {"start", "offset_hardwired"} and not first and ahead >= 0 and not table[ahead].any():
        name = "padding_idx_as_offset"
        words += f", one past the padding row {ahead}"
    message = f"{words}; token t should get row {first} + t"
    return [Cause(f"{F}.{name}", message, float(len(bad)) / rows.size, case, mend)]


def _unlearned(probe: Probe, table: Tensor, first: int) -> list[Cause]:
    """Return whether a row in use takes no gradient or is zero, as a padding row does."""
    subject = probe.fresh()
    n = min(5, len(table.reshape(-1, probe.dim)) - first)
    free = [t for t in leaves(probe, (1, n), subject) if t.shape == table.shape]
    if not free:
        return []
    out = probe.raw((1, n), subject=subject, grad=True)
    (grad,) = torch.autograd.grad(out.double().sum(), free[:1], allow_unused=True)
    used = grad.reshape(-1, probe.dim)[first : first + n].abs().sum(-1) if grad is not None else torch.zeros(n)
    zero = (used == 0).nonzero().flatten().tolist()
    if not zero:
        return []
    message = f"row {first + zero[0]}, that of token {zero[0]}, never learns: it is the table's padding_idx"
    case = {"x": [1, zero[0] + 1, probe.dim], "row": first + zero[0]}
    return [
        Cause(f"{F}.padding_row_zeroed", message, float(len(zero)), case, "Give the position table no padding_idx.")
    ]


def _later(probe: Probe, table: Array, first: int) -> list[Cause]:
    """Return whether calls depend on calls before, or on the length."""
    for order in ((5, 3, 8, 1, 5), (8, 5, 3)):
        subject = probe.fresh()
        for i, n in enumerate(order):
            if first + n > len(table):
                continue
            rows = match(probe.code((3, n), subject=subject), table)
            if not (rows == first + np.arange(n)).all():
                message = f"after calls of lengths {list(order[:i])}, one of {n} gives rows {rows[0].tolist()}"
                case = {"lengths": list(order[: i + 1])}
                return [Cause(f"{F}.state_kept", message, 1.0, case, "Choose the rows from this call's length alone.")]
    return []


def _ends(probe: Probe, asked: Asked, table: Array, first: int) -> list[Cause]:
    """Return whether the table is too short for what was asked, or goes on silently beyond its end."""
    said = asked.said.get("table_rows")
    top = asked.max_positions
    help_ = "Make max_positions + offset rows."
    if isinstance(said, int) and len(table) < said:
        message = f"the table has {len(table)} rows; {said} were asked for"
        return [Cause(f"{F}.table_too_short", message, float(len(table)), {"table_rows": len(table)}, help_)]
    ends = max(len(table) - first, 0)
    if far := _far(probe, table, first, min(ends, top or ends)):
        return far
    if top and ends < top:
        message = f"the table has {len(table)} rows: {top} positions from row {first} on need {top + first}"
        return [Cause(f"{F}.table_too_short", message, float(len(table)), {"x": [1, ends + 1, probe.dim]}, help_)]
    n = top or (ends + 3 if math.prod((ends + 3, probe.dim)) < 2**22 else 0)
    if not n:
        return []
    try:
        code = probe.code((1, n)) if n * probe.dim <= _LARGEST else None
        rows = match(code, table)[0][:n] if code is not None and n <= 4096 else np.arange(n) + first
    except guard.SubjectError as error:
        if top:
            message = f"{top} positions were asked for, and {probe.say((1, top))} fails: {error.cause.message[:160]}"
            return [Cause(f"{F}.table_too_short", message, float(top), {"x": [1, top, probe.dim]}, help_)]
        return []
    wrong = np.flatnonzero(rows != first + np.arange(n))
    if not len(wrong):
        return []
    m = int(wrong[0])
    message = f"token {m} gets row {rows[m]}: the table of {len(table)} rows has none for it, and nothing says so"
    return [
        Cause(
            f"{F}.table_too_short",
            message,
            float(m),
            {"x": [1, m + 1, probe.dim]},
            "Raise beyond the last row, or make more rows.",
        )
    ]


def _far(probe: Probe, table: Array, first: int, n: int) -> list[Cause]:
    """Return whether the rows of a long text are others, as where their numbers end at 15 bits."""
    if n <= 4096 or n * probe.dim > _LARGEST:
        return []
    try:
        code = probe.code((1, n))[0]
    except guard.SubjectError:  # what ends before its table does may say so
        return []
    wrong = np.flatnonzero(np.abs(code - table[first : first + n]).max(-1) > 1e-4 * max(np.abs(table).max(), 1e-6))
    if not len(wrong):
        return []
    m = int(wrong[0])
    row = int(match(code[None, m : m + 1], table)[0, 0])
    got = f"row {row}" if row >= 0 else "no row"
    message = f"token {m} gets {got} of the table, where row {first + m} is its own: texts of {m} tokens are right"
    case = {"x": [1, m + 1, probe.dim], "row": row, "expected": first + m}
    return [Cause("learned.wrapped", message, float(m), case, "Form row numbers in int64, and take no modulo of them.")]


def _image(probe: Probe, shape: Shape, findings: Findings) -> None:
    """Say whether every cell of an image has a vector of its own."""
    code = probe.code(shape)
    if np.abs(code).max() < 1e-7:
        findings.causes.append(
            Cause(
                f"{F}.not_used",
                "nothing is added: forward(x) returns x",
                0.0,
                {"x": [1, probe.dim, 1, 1]},
                "Return x + code.",
            )
        )
        return
    if np.abs(code - code[:1]).max() > 1e-5:
        findings.causes.append(
            Cause(
                f"{F}.axis.batch",
                "the code differs from image to image",
                1.0,
                {"x": list(probe.full(shape))},
                "Number the cells of one image.",
            )
        )
    cells = code[0].reshape(-1, probe.dim)
    same = [(i, j) for i in range(len(cells)) for j in range(i) if np.abs(cells[i] - cells[j]).max() < 1e-6]
    if same:
        message = f"{len(same)} pairs of cells share one code, such as {same[0]} of {shape[1]} x {shape[2]}"
        findings.causes.append(
            Cause(
                f"{F}.cells_collide",
                message,
                float(len(same)),
                {"x": list(probe.full(shape))},
                "Number cells by row * width + column.",
            )
        )
