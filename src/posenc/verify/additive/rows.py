"""Rows of a trained table: which one a vector is, and what is wrong with those that tokens get."""

import numpy as np

from posenc.verify.additive.waves import Array

_START = "Row t + offset of the table is that of position t."


def match(code: Array, table: Array) -> Array:
    """Return the row of the table that each vector (..., d) equals, -1 where none does, -2 where it is zero."""
    flat = code.reshape(-1, code.shape[-1])
    found = np.full(len(flat), -1)
    for i, v in enumerate(flat):
        off = np.abs(table - v).max(-1)
        best = int(off.argmin())
        if off[best] <= 2e-5 * max(1.0, float(np.abs(v).max())):
            found[i] = best
        elif not np.abs(v).max() > 1e-6:
            found[i] = -2
    return found.reshape(code.shape[:-1])


def factor(code: Array, table: Array, rows: Array) -> tuple[float, Array]:
    """Return the factor under which vectors are rows of the table, if one does it, and the rows."""
    v = code[0, -1]
    norms = np.linalg.norm(table, axis=-1)
    cosines = table @ v / np.maximum(norms * np.linalg.norm(v), 1e-30)
    best = int(np.abs(cosines).argmax())
    if abs(cosines[best]) < 1 - 1e-6:
        return 1.0, rows
    gain = float(v @ table[best] / norms[best] ** 2)
    again = match(code / gain, table)
    return (gain, again) if (again >= 0).all() else (1.0, rows)


def named(rows: Array, first: int) -> tuple[str, str, str]:
    """Return a code, words and help for the rows (batch, seq) that tokens get, `first` + t being right."""
    line = rows[0]
    t = np.arange(len(line))
    found = f"tokens 0, 1, 2, ... get rows {line.tolist()}"
    if (rows != rows[:1]).any():
        return _by_sequence(rows)
    if (line == line[0]).all():
        return "slice.single_row", f"every token gets row {line[0]}", "Give token t its own row."
    if (np.diff(line) == 1).all() and line[0] >= 0:
        if first and line[0] == 0:
            return "offset_missing", f"{found}: the offset of {first} rows is left out", _START
        if not first and line[0] == 2:
            return (
                "offset_hardwired",
                f"{found}: an offset of 2 is built in",
                "Take the offset from the configuration; only OPT, BART and RoBERTa have 2.",
            )
        return "start", f"{found}: {line[0] - first:+d} from the right row", _START
    if (np.diff(line) == -1).all():
        return "position.reversed", f"{found}: counted from the end", _START
    if (line == -2).any() and ((line == first + t) | (line == -2)).all():
        return (
            "padding_row_zeroed",
            f"token {int((line == -2).argmax())} gets a row of zeros",
            "Give the table no padding_idx.",
        )
    if (line == -1).any():
        return "mismatch", "what is added is no row of the table", _START
    return "mismatch", found, _START


def _by_sequence(rows: Array) -> tuple[str, str, str]:
    """Return a code, words and help for rows that differ from sequence to sequence."""
    if (rows[:, :1] == rows).all() and (np.diff(rows[:, 0]) == 1).all():
        words = "every token of sequence b gets row b: rows are counted along the batch"
        return "axis.batch", words, "Use arange(x.size(1))."
    words = f"the rows differ from sequence to sequence: {rows.tolist()}"
    return "axis.batch", words, "Use arange(x.size(1)) for every sequence."
