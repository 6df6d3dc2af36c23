"""Which distance each row of a table (2n - 1, dim) is given: the right way, and those that people write by mistake."""

import numpy as np

from posenc.verify.additive.places import At, Formula, Place, Written, span

DISTANCE = Place("row r has distance (n - 1) - r", lambda s: ((s[0] - 1 - span(2 * s[0] - 1))[None],))
_SIGN = "Give sin(-p * w) to the keys ahead: the sine is odd, sin(-d) = -sin(d)."
_LINE_UP = "Row r holds distance (n - 1) - r: n - 1 first, 0 in the middle, -(n - 1) last."
_WHOLE = "Make rows for all 2n - 1 signed distances."
_WRONG: tuple[Written, ...] = (  # of row r and n
    (
        "row r has distance |(n - 1) - r|, so both sides look alike",
        lambda r, n: np.abs(n - 1 - r),
        "sign_lost",
        _SIGN,
    ),
    (
        "row r has distance -|(n - 1) - r|, so both sides look alike",
        lambda r, n: -np.abs(n - 1 - r),
        "sign_lost",
        _SIGN,
    ),
    ("row r has distance r - (n - 1), the other way round", lambda r, n: r - n + 1, "direction", _LINE_UP),
    ("row r has position r, an absolute one", lambda r, n: r, "absolute_used", _WHOLE),
    ("row r has position 2n - 2 - r, an absolute one", lambda r, n: 2 * n - 2 - r, "absolute_used", _WHOLE),
    ("row r has distance max((n - 1) - r, 0)", lambda r, n: np.maximum(n - 1 - r, 0), "future_clamped", _WHOLE),
    ("row r has distance min((n - 1) - r, 0)", lambda r, n: np.minimum(n - 1 - r, 0), "past_clamped", _WHOLE),
    ("row r has distance n - r", lambda r, n: n - r, "off_by_one", _LINE_UP),
    ("row r has distance n - 2 - r", lambda r, n: n - 2 - r, "off_by_one", _LINE_UP),
    (
        "the two sides run on from each other: n - 1, ..., 0, then 0, -1, ...",
        lambda r, n: np.where(r < n, n - 1 - r, n - r),
        "off_by_one",
        _LINE_UP,
    ),
    (
        "each side runs outwards from its own end: 0, ..., n - 1, then -1, -2, ...",
        lambda r, n: np.where(r < n, r, n - 1 - r),
        "side_reversed",
        _LINE_UP,
    ),
    (
        "the past is right and the future runs backwards: -(n - 1), ..., -1",
        lambda r, n: np.where(r < n, n - 1 - r, r - 2 * n + 1),
        "side_reversed",
        _LINE_UP,
    ),
)


def distances() -> list[Place]:
    """Return what may go wrong with the distances of a table (2n - 1, dim)."""

    def at(f: Formula) -> At:
        return lambda s: (f(span(2 * s[0] - 1), s[0])[None],)

    return [Place(words, at(f), code, mend) for words, f, code, mend in _WRONG]
