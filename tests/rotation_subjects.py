"""Rotations with a switch for each way to be wrong, which tests of rotations share."""

import torch

DIM = 32
SPEC = {"encoding": "rope", "head_dim": DIM, "base": 10000.0, "layout": "half"}
FREQ = 10000.0 ** (-torch.arange(0, DIM, 2).double() / DIM)
BF16, FP16 = torch.bfloat16, torch.float16


def rotate(x, angle, *, layout="half", cut=None):
    """Rotate x (..., seq, dim) by angles (seq, dim / 2)."""
    x64 = x.double()
    cos, sin = (t if cut is None else t.to(cut).double() for t in (angle.cos(), angle.sin()))
    a, b = x64.chunk(2, -1) if layout == "half" else (x64[..., ::2], x64[..., 1::2])
    c, d = a * cos - b * sin, b * cos + a * sin
    out = torch.cat((c, d), -1) if layout == "half" else torch.stack((c, d), -1).flatten(-2)
    return out.to(x.dtype)


def rope(*, freq=FREQ, place=None, gain=1.0, layout="half", steps=(), dtype=BF16, table=False, after=None, before=None):
    """Return rope(x, positions).

    Args:
        freq: Frequencies, or a function of the positions that returns them.
        place: A function of the positions: where tokens stand.
        gain: What multiplies the result.
        layout: The pairing.
        steps: Which of "positions", "frequencies", "products" are rounded to a dtype.
        dtype: That dtype.
        table: Whether cosines and sines are rounded, too.
        after: A function of the result and the positions.
        before: A function of x.
    """

    def call(x, positions):
        p = (positions if place is None else place(positions)).double()
        f = freq(positions) if callable(freq) else freq
        p = p.to(dtype).double() if "positions" in steps else p
        f = f.to(dtype).double() if "frequencies" in steps else f
        angle = p[:, None] * f
        angle = angle.to(dtype).double() if "products" in steps else angle
        out = gain * rotate(x if before is None else before(x), angle, layout=layout, cut=dtype if table else None)
        return out if after is None else after(out, positions)

    return call


def by_offset(place):
    """Return rope(x, offset) whose tokens stand at place(offset, number of tokens)."""
    return lambda x, offset: rotate(x, place(offset, x.shape[-2]).double()[:, None] * FREQ)


def code(report):
    return report.causes[0].code if report.causes else report.status
