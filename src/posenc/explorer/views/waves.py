"""Views of waves: wavelengths, and the error of the angles in each precision."""

import numpy as np
import torch

from posenc import measure, precision
from posenc.character import DTYPES
from posenc.encoding import Encoding
from posenc.explorer.frames import Frame
from posenc.explorer.views import fitting
from posenc.explorer.views.controls import Control, length
from posenc.explorer.views.subjects import Subject
from posenc.explorer.views.view import Floats, Series, Values, View, axis, code, log_spread, of_lines, refusal
from posenc.languages import tr
from posenc.probe import LENGTH

_MOST_ERRORS = 160  # positions


def _no_waves(encoding: Encoding) -> str | None:
    return refusal(encoding, "frequencies_of", lambda: measure.frequencies_of(encoding.resolve(trained(encoding))))


def trained(encoding: Encoding) -> int:
    """Return a typical length for an encoding that depends on the length."""
    return int(getattr(encoding, "original_max_len", None) or 1024)


def _wavelengths(subject: Subject, asked: Values) -> Frame:
    waves = measure.wavelengths(subject.encoding)
    waves = waves.reshape(-1, *waves.shape[-2:])
    n_heads, n_axes, n_pairs = waves.shape
    pair = np.arange(float(n_pairs))
    series, shown = list[Series](), min(n_heads, 8)
    for h in range(shown):
        for dim in range(n_axes):
            own = np.where(np.isfinite(waves[h, dim]), waves[h, dim], np.nan)
            series.append(Series(_label(h, shown, dim, n_axes), pair, own, group="wavelength"))
    constant = int(np.isinf(waves).sum())
    slow = int((waves > asked["length"]).sum())
    notes = [
        tr(
            "{slow:d} of {n:d} pairs make no full rotation within {length:,} positions.",
            slow=slow,
            n=waves.size,
            length=asked["length"],
        )
    ]
    if constant:
        notes.append(tr("{n:d} of them do not rotate, so they have no wavelength.", n=constant))
    if shown < n_heads:
        notes.append(tr("Heads 0 to {last:d} of {n_heads:d} are shown.", last=shown - 1, n_heads=n_heads))
    head = {
        "title": tr("{name:s}: wavelength of each pair", name=subject.encoding.name),
        "x": axis(tr("pair")),
        "y": axis(tr("wavelength"), tr("positions"), log=True),
        "lines": [{"label": tr("length {n:,}", n=asked["length"]), "y": asked["length"]}],
        "notes": notes,
        "code": code(
            subject,
            ["values = measure.wavelengths(encoding)"],
            subject.plot("wavelengths", fits=subject.length is None),
        ),
    }
    return of_lines(head, series)


def _label(head: int, n_heads: int, dim: int, n_axes: int) -> str:
    if n_heads > 1 and n_axes > 1:
        return tr("head {head:d}, axis {axis:d}", head=head, axis=dim)
    if n_heads > 1:
        return tr("head {head:d}", head=head)
    return tr("axis {axis:d}", axis=dim) if n_axes > 1 else tr("wavelength")


def _no_precision(encoding: Encoding) -> str | None:
    if not (hasattr(encoding, "frequencies") or encoding.family == "additive") or encoding.reads_x:
        return tr(
            "{name:s} has no numbers that belong to one position, so there is no precision to measure.",
            name=encoding.name,
        )
    return None


def _precision(subject: Subject, asked: Values) -> Frame:
    last = asked["up_to"] if subject.longest is None else min(asked["up_to"], subject.longest)
    pos = log_spread(last + 1, _MOST_ERRORS)
    series, notes = _errors(subject, pos)
    lines = [f"pos = np.array({pos.astype(int).tolist()})"]
    if series:
        lines += [
            "values = [",
            "    measure.phase_error(encoding, pos, dtype, formula=formula)",
            f"    for formula in (False, True) for dtype in {tuple(DTYPES)}",
            "]",
        ]
    found, searched = subject.collisions
    lines.append(f"collisions = measure.collisions(encoding, {searched})")
    head = {
        "title": tr("{name:s}: error of the angles, by position and precision", name=subject.encoding.name),
        "x": axis(tr("position"), tr("tokens"), log=True),
        "y": axis(tr("largest error over the pairs"), tr("radians"), log=True),
        "collisions": found,
        "searched": searched,
        "notes": notes,
        "code": code(subject, lines, subject.plot("precision", fits=bool(series) and subject.longest is None)),
    }
    return of_lines(head, series)


def _errors(asked: Subject, pos: Floats) -> tuple[list[Series], list[str]]:
    """Return the errors of posenc's tables and of the usual code's, in each precision.

    These are the numbers of six calls of `measure.phase_error`, but the encoding's tables are computed only once.
    """
    resolved = asked.encoding.resolve(max(int(pos[-1]) + 1, LENGTH))
    subject = asked.precise if resolved is asked.encoding else precision.find_subject(resolved)
    inv_freq, at = subject.task.inv_freq, torch.from_numpy(pos.astype(np.int64))
    if subject.tables is None or inv_freq is None:
        return [], list(subject.notes)
    exact, ours, series = torch.tensor(inv_freq, dtype=torch.float64), subject.tables(at), list[Series]()
    for group in ("posenc", "formula"):
        for name, dtype in DTYPES.items():
            tables = ours if group == "posenc" else precision.form_tables(inv_freq, dtype)(at)
            cos, sin = (t.to(dtype) for t in tables)
            error = precision.phase_error(cos, sin, at, exact).amax(-1).numpy()
            series.append(Series(name, pos, error, group=group))
    note = tr(
        "posenc computes angles in float64 and rounds cosine and sine; most code computes them in the dtype itself."
    )
    return series, [note, *subject.notes]


WAVELENGTHS = View(
    "wavelengths",
    "Wavelengths",
    "The number of positions for one full rotation of each pair, compared with a length.",
    (length(4096),),
    _wavelengths,
    _no_waves,
    fitting.has_waves,
)
PRECISION = View(
    "precision",
    "Precision",
    "The error of the angles by position in float32, bfloat16 and float16, and the first collision of two positions.",
    (Control("up_to", "int", 131_072, "The last position.", min=16, max=10_000_000, log=True),),
    _precision,
    _no_precision,
)
