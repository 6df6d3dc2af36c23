"""Tables of angles of a picture: the first half of the pairs follows x, the second y."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from posenc.verify.guard import SubjectError, call, shaped
from posenc.verify.report import Cause, Findings
from posenc.verify.rotary.matrix import Array
from posenc.verify.rotary.speeds import CLOSE, apart, speeds, width

SIZES = ((3, 5), (4, 2), (1, 6), (7, 1), (19, 40), (70, 3))
SMALL = 7  # patches along a side, which every table has
_HELP = "Row i of the table is patch (y, x) = divmod(i, w): the first half of the pairs turns by x, the second by y."


def check(subject: Any, spec: Mapping[str, Any]) -> Findings:
    """Check table(h, w) -> angles (h*w, head_dim / 2): the first half of the pairs follows x, the second y."""
    n, base = width(spec) // 2, float(spec.get("base", 10000.0))
    half = n // 2
    freq = base ** (-np.arange(half) / half)
    found, end = Findings(definitions=["axial_rope"], measured={"pairs": n}), spec.get("max_positions")
    for h, w in SIZES:
        if end and max(h, w) > end:
            continue
        what = f"table({h}, {w})"
        try:
            got = shaped(call(subject, h, w, what=what), (h * w, n), what).detach().double().numpy()
        except SubjectError as error:
            if end or max(h, w) <= SMALL or error.cause.code != "subject.raises":
                raise
            found.measured["not_judged"] = {f"pictures of {h} x {w}": error.cause.message}  # it may have its end
            continue
        cause, same = _picture(_Picture(got, h, w, freq, base))
        if cause is not None:
            found.causes.append(cause)
            return found
        if not same:
            found.equivalent = "a constant is added to the coordinates of all patches, which no score sees"
    return found


@dataclass(frozen=True)
class _Picture:
    """A table of angles of a picture, (h * w, pairs), and what it should be made of."""

    got: Array
    h: int
    w: int
    freq: Array
    base: float

    @property
    def places(self) -> tuple[Array, Array]:
        """X and y of each patch, in the order of rows."""
        y, x = (t.ravel().astype(float) for t in np.mgrid[0 : self.h, 0 : self.w])
        return x, y

    @property
    def slack(self) -> float:
        """What an angle may be off."""
        return CLOSE * max(self.h, self.w)

    def angles(self, first: Array, second: Array, speed: Array | None = None) -> Array:
        """Return angles whose first half follows one coordinate, and whose second half another."""
        of = self.freq if speed is None else speed
        found: Array = np.concatenate((np.outer(first, of), np.outer(second, of)), 1)
        return found

    def is_like(self, table: Array) -> bool:
        """Whether it is a table, but for a constant of all patches."""
        return apart(self.got - self.got[0], table - table[0]) < self.slack

    def off(self) -> Array:
        """Return how far angles are from the right ones."""
        right = self.angles(*self.places)
        found: Array = np.abs(self.got - self.got[0] - right + right[0])
        return found


def _picture(picture: _Picture) -> tuple[Cause | None, bool]:
    """Return why a table is wrong, None if it is right, and whether it is the right one to the last constant."""
    right = picture.angles(*picture.places)
    if picture.is_like(right):
        return None, bool(np.abs(picture.got - right).max() < picture.slack)
    return _placed(picture) or _stretched(picture) or _unknown(picture), True


def _placed(picture: _Picture) -> Cause | None:
    """Tell patches, axes or pairs that stand for each other."""
    (x, y), angles, h, w = picture.places, picture.angles, picture.h, picture.w
    flipped_x, flipped_y = (t.ravel().astype(float) for t in np.mgrid[0:w, 0:h])
    half = len(picture.freq)
    full = picture.base ** (-np.arange(half) / (2 * half))
    turns = np.stack((np.outer(x, picture.freq), np.outer(y, picture.freq)), -1)
    both, crossed = turns.reshape(len(x), -1), turns[..., ::-1].reshape(len(x), -1)
    guesses = [
        ("rope2d.axes_swapped", "the first half of the pairs follows y and the second x", angles(y, x)),
        ("rope2d.grid_transposed", "patches are counted column by column", angles(flipped_x, flipped_y)),
        ("rope2d.axes_swapped", "patches are counted down columns of a (w, h) picture", angles(flipped_y, flipped_x)),
        ("rope2d.axis_repeated", "both halves follow x", angles(x, x)),
        ("rope2d.axis_repeated", "both halves follow y", angles(y, y)),
        ("rope2d.flat_index", "pairs follow the patch's number, not its place", angles(y * w + x, y * w + x)),
        ("rope2d.interleaved_axes", "x and y take turns from pair to pair; they should be halves", both),
        ("rope2d.interleaved_axes", "y and x take turns from pair to pair; they should be halves", crossed),
        ("rope2d.frequency.width", "exponents count over all pairs, not half", angles(x, y, full)),
        ("rope2d.square_assumed", "rows have as many patches as columns", angles((y * w + x) % h, (y * w + x) // h)),
        ("rope2d.origin", "y runs from the bottom", angles(x, h - 1 - y)),
        ("rope2d.origin", "x runs from the right", angles(w - 1 - x, y)),
    ]  # fmt: skip
    for code, says, table in guesses:
        if picture.is_like(table):
            message = f"{says} (a picture of {h} x {w})"
            return Cause(code, message, float(picture.off().max()), {"h": h, "w": w}, _HELP)
    return None


def _stretched(picture: _Picture) -> Cause | None:
    """Tell coordinates or frequencies that are right but for their size."""
    (x, y), freq, h, w = picture.places, picture.freq, picture.h, picture.w
    moved, half = picture.got - picture.got[0], len(picture.freq)
    of_x, of_y = (moved[1, 0] / freq[0] if w > 1 else 1.0), (moved[w, half] / freq[0] if h > 1 else 1.0)
    if max(abs(of_x - 1), abs(of_y - 1)) > CLOSE and picture.is_like(picture.angles(of_x * x, of_y * y)):
        message = (
            f"a step right counts as {of_x:.4g} and a step down as {of_y:.4g} in a picture of {h} x {w}; both are one"
        )
        help_ = "Count patches: x = 0 .. w - 1, y = 0 .. h - 1."
        return Cause("rope2d.coordinates_wrong", message, float(of_x), {"h": h, "w": w}, help_)
    part = moved[1][:half] if w > 1 else moved[w][half:]
    if (np.abs(part) > 1e-12).all() and apart(moved, picture.angles(x, y, part)) < picture.slack:
        return speeds("rope2d", part, freq, picture.base, half)
    return None


def _unknown(picture: _Picture) -> Cause:
    off = picture.off()
    row, pair = (int(i) for i in np.unravel_index(int(off.argmax()), off.shape))
    wrong, case = float(off.max()), {"h": picture.h, "w": picture.w, "patch": row, "pair": pair}
    message = (
        f"angles are off by up to {wrong:.3g}, at patch {row} of {picture.h} x {picture.w} and pair {pair}, in no way "
        "that is known"
    )
    return Cause("rope2d.mismatch", message, wrong, case, _HELP)
