"""Precision: the first collision of positions in each dtype, and the error of angles."""

import numpy as np
import torch
from jaxtyping import Float64

from posenc import precision
from posenc.character import DTYPES
from posenc.config.values import short
from posenc.encoding import Encoding
from posenc.measure.asking import check
from posenc.measure.values import Array, Numbers, count, reals
from posenc.probe import LENGTH

_LIMIT = 2**26  # beyond it the reference angle is no longer exact


def collisions(encoding: Encoding, up_to: int | None = None) -> dict[str, dict[str, int] | None]:
    """Return for each dtype the first position whose rounded numbers equal those of an earlier one.

    For "float32", "bfloat16" and "float16" the result is {"position", "same_as"}, or None if all positions differ.

    Args:
        encoding: One that adds vectors, or rotates by tables of cos and sin; parameters are drawn from N(0, 1).
        up_to: The number of positions from 0 on that are searched; at most 65,536, which is the default.

    >>> from posenc import Integer
    >>> collisions(Integer(d_model=1), 4096)["float16"]
    {'position': 2049, 'same_as': 2048}
    """
    check("collisions", encoding)
    subject = precision.find_subject(encoding.resolve(max(up_to or 0, LENGTH)))
    if subject.tables is None:
        raise ValueError(f"collisions: {subject.notes[0]}")
    cap = subject.task.cap if up_to is None else min(subject.task.cap, count("collisions", "up_to", up_to))
    return dict(precision.examine(subject.tables, precision.Task(cap))["collisions"])


def phase_error(
    encoding: Encoding, positions: Numbers, dtype: str | torch.dtype = "float32", *, formula: bool = False
) -> Float64[Array, " n"]:
    """Return the error of the angle of cos and sin in radians, the largest over the pairs.

    It is at most half a rotation, and NaN if a pair's numbers are not a cosine and a sine.

    Args:
        encoding: One that rotates by tables of cos and sin of pos * inv_freq; parameters are drawn from N(0, 1).
        positions: Integers, (n,), of magnitude below 2^26; the same on all axes if there are several.
        dtype: "float32", "bfloat16" or "float16", to which tables are rounded.
        formula: True measures the usual formula instead, which computes the angles in that dtype.

    >>> from posenc import RoPE
    >>> bool(phase_error(RoPE(head_dim=4), 100_000, "float32")[0] < 1e-6)
    True
    >>> phase_error(RoPE(head_dim=4), 257, "bfloat16", formula=True).round(3).tolist()  # as for position 256
    [1.0]
    """
    who = "phase_error"
    check(who, encoding)
    pos = reals(who, "positions", positions)
    if (pos != np.round(pos)).any() or (np.abs(pos) >= _LIMIT).any():
        raise ValueError(
            f"{who}: positions must be whole and below {_LIMIT:,} in magnitude, so that the reference is exact."
        )
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise ValueError(f"{who}: dtype must be one of {', '.join(DTYPES)}; got {short(dtype)}.")
    subject = precision.find_subject(encoding.resolve(max(int(np.abs(pos).max()) + 1, LENGTH)))
    inv_freq = subject.task.inv_freq
    if subject.tables is None or inv_freq is None:
        raise ValueError(
            f"{who}: {encoding.name} has no tables of cos and sin of pos * inv_freq, so it has no angles to measure."
        )
    tables = precision.form_tables(inv_freq, DTYPES[name]) if formula else subject.tables
    at = torch.from_numpy(pos.astype(np.int64))
    cos, sin = (t.to(DTYPES[name]) for t in tables(at))
    exact = torch.tensor(inv_freq, dtype=torch.float64)
    return precision.phase_error(cos, sin, at, exact).amax(-1).numpy()
