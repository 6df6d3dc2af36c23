"""What an additive subject does later: after other calls, in long sequences, with tokens in bfloat16."""

from typing import Any

import numpy as np
import torch

from posenc.verify import guard
from posenc.verify.additive import reading
from posenc.verify.additive.asked import Asked, coded
from posenc.verify.additive.looks import call, works
from posenc.verify.additive.models import Model
from posenc.verify.additive.places import Shape, from_table
from posenc.verify.additive.probe import Probe
from posenc.verify.additive.waves import Array
from posenc.verify.report import Cause, Findings

_ORDERS: dict[str, list[Shape]] = {
    "additive_module": [(2, 5), (2, 9), (2, 3), (3, 5), (2, 40), (2, 9), (2, 5)],
    "additive_2d_module": [(2, 3, 5), (2, 5, 3), (2, 6, 7), (2, 3, 5), (3, 2, 4)],
    "relative_table_fn": [(5,), (9,), (3,), (24,), (9,)],
}
_LENGTHS = (40, 130, 600, 2100)
_FAR = 33_000  # 16 bits count to 32767
_LARGEST = 2**23


def later(probe: Probe, asked: Asked, model: Model) -> list[Cause]:
    """Return what an object that was called before does otherwise: longer after shorter, shorter after longer."""
    for order in (_ORDERS[probe.kind], _ORDERS[probe.kind][::-1]):
        subject = probe.fresh()
        called: list[Any] = []
        for shape in order:
            if asked.max_positions and shape[-1] > asked.max_positions:
                continue
            called.append(call(probe, shape))
            try:
                found = probe.code(shape, subject=subject)
            except guard.SubjectError as error:
                if len(called) > 1 and works(probe, shape):
                    tail = f"and fails after {called[-2]}: {error.cause.message[:160]}"
                    message = f"{probe.say(shape)} works on a fresh object {tail}"
                    return [_kept(asked, "state_kept", message, 1.0, called)]
                break  # a table that ends, and says so
            if model.ratio({shape: found}) > 1:
                return [_stale(probe, asked, model, shape, found, called)]
    return []


def _kept(asked: Asked, code: str, message: str, evidence: float, calls: list[Any]) -> Cause:
    help_ = "Compute the code from this call's sizes, or make the kept table longer from where it ended."
    return Cause(coded(asked.family, code), message, evidence, {"calls": calls}, help_)


def _stale(probe: Probe, asked: Asked, model: Model, shape: Shape, found: Array, called: list[Any]) -> Cause:
    code, _ = model.predict(shape)
    off = float(np.abs(found - code).max())
    words, name = "rows are wrong", "state_kept"
    if probe.kind == "additive_module":
        places = reading.positions(found[0], model, max(4 * shape[-1], 128))
        if places is not None and not np.isnan(places).any():
            kind, words = from_table(places - asked.starts[0])
            name = kind if kind.startswith("table.") else name
    before = f"after {called[-2]}, " if len(called) > 1 else ""
    message = f"{before}{probe.say(shape)} is off by {off:.3g}: {words}"
    return _kept(asked, name, message, off, called)


def long(probe: Probe, asked: Asked, model: Model, findings: Findings) -> list[Cause]:
    """Return what goes wrong in long sequences: tables that end, wrap or start again, coarse positions."""
    if probe.kind != "additive_module":
        return []
    top = asked.max_positions
    lengths = [n for n in _LENGTHS if (not top or n < top) and (n <= 600 or n * probe.dim <= 2**18)]
    if not top and _FAR * probe.dim <= _LARGEST:
        lengths.append(_FAR)
    if top and top * probe.dim <= _LARGEST:
        lengths += [_FAR, top] if top > _FAR else [top]
    for n in lengths:
        try:
            found = probe.code((1, n))
        except guard.SubjectError as error:
            if top:
                message = f"{top} positions were asked for and {probe.say((1, n))} fails: {error.cause.message[:160]}"
                case = {"x": [1, n, probe.dim]}
                return [Cause(coded(asked.family, "table.too_short"), message, float(n), case, f"Make {top} rows.")]
            findings.measured["refuses_length"] = n
            return []
        if model.ratio({(1, n): found}) > 1:
            return [_far(probe, asked, model, n, found)]
    return []


def _far(probe: Probe, asked: Asked, model: Model, n: int, found: Array) -> Cause:
    code, slack = model.predict((1, n))
    wrong = np.asarray((np.abs(found - code) > slack + 2e-5).any(-1))[0]
    m = int(wrong.argmax())
    off = float(np.abs(found - code).max())
    first = max(m - 40, 0)
    name, words = "mismatch", f"rows from {m} on are wrong"
    places = reading.positions(found[0][first : m + 40], model, n + 64, near=m)
    if places is not None and np.isnan(places).any():
        name, words = "table.too_short", f"rows from {m} on are zero: the table ends there"
    elif places is not None:
        name, words = from_table(places - asked.starts[0] - first)
        words = f"row {m} has position {places[m - first]:g}"
        if places[m - first] == -m and m.bit_count() == 1:
            name, words = "position.wrapped", f"{words}: positions are formed in {m.bit_length()} bits"
    if name in {"mismatch", "position.other"}:
        told = reading.rounding({(1, n): found}, model)
        if told is not None and told[2] < 0.02 * off:
            name, words = f"precision.{told[0]}", told[1]
    message = f"{probe.say((1, n))} is off by {off:.3g} from row {m} on: {words}"
    help_ = "Make the table as long as the sequence, or raise; new rows go on from where it ended."
    return Cause(coded(asked.family, name), message, off, {"x": [1, m + 1, probe.dim], "row": m}, help_)


def low_precision(probe: Probe, asked: Asked, model: Model) -> list[Cause]:
    """Return whether tokens in bfloat16 make the positions, frequencies or angles coarse."""
    if probe.kind != "additive_module":
        return []
    n = min(600, asked.max_positions or 600)
    subject = probe.fresh()
    if asked.said.get("activation_dtype") and isinstance(subject, torch.nn.Module):
        subject = subject.to(torch.bfloat16)
    try:
        found = probe.code((1, n), torch.zeros((1, n, probe.dim), dtype=torch.bfloat16), subject)
    except guard.SubjectError:
        return []
    code, slack = model.predict((1, n))
    off = np.abs(found - code)
    bad = np.asarray((off > slack + 2.0**-7).any(-1))[0]
    if not bad.any():
        return []
    row = int(bad.argmax())
    told = reading.rounding({(1, n): found}, model)
    name, what = (told[0], told[1]) if told is not None else ("product_bf16", "angles are rounded")
    message = f"with bfloat16 tokens the code is off by {off.max():.3g}, from row {row} on: {what}"
    help_ = "Form positions, frequencies and their product in float32 and round the finished code alone."
    case = {"x": [1, row + 1, probe.dim], "dtype": "bfloat16"}
    return [Cause(coded(asked.family, f"precision.{name}"), message, float(off.max()), case, help_)]
