"""Rotations over several axes: which coordinate each pair of dimensions follows, and how fast it rotates."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from posenc import config
from posenc.verify import guard
from posenc.verify.engine import Case, Choice, Family, Fault, Seen, precision
from posenc.verify.engine.observe import fresh
from posenc.verify.engine.read import BASES
from posenc.verify.engine.records import Array, Model
from posenc.verify.report import Cause

CLOSE = 1e-4  # tolerance of a frequency (relative) or an angle (radians)
AXES = ("time", "height", "width")
OF_PICTURES = (256.0, 2000.0, 10.0)  # bases of HunyuanVideo, FLUX.2 and vision transformers
FAR = 1 << 15  # far enough that slow pairs rotate as well
LADDERS = {
    "axis": "each axis has all frequencies",
    "shared": "one series of frequencies runs over all pairs, whichever axis they follow",
    "dealt": "the even frequencies go to the first axis and the odd ones to the second",
}
USUAL = {"axial_rope": "axis", "rope2d": "axis", "mrope": "shared"}  # ladders of encodings
LAYOUTS = ("blocks", "interleaved", "time_last", "time_unrotated")
ENDS = (14, 16, 24, *(1 << power for power in range(5, 16)))  # of tables, and of short integer types
POSITIONS: dict[str, Callable[[Array], Array]] = {  # wrong positions, in words
    **{f"positions restart at {n:,}": partial(lambda n, where: where % n, n) for n in ENDS},
    **{
        f"positions stay at {n - 1:,} from there on": partial(lambda n, where: np.minimum(where, n - 1), n)
        for n in ENDS
    },
    "positions are kept in int8": lambda where: (where + 128) % 256 - 128,
    "positions are kept in int16": lambda where: (where + 2**15) % 2**16 - 2**15,
    **{f"positions are divided by {n} and rounded down": partial(lambda n, where: where // n, n) for n in (2, 4)},
}
IGNORED: dict[str, Callable[[Array], Array]] = {  # the positions of one call that ignore those that are given
    "given positions are ignored; tokens are counted": lambda where: 0 * where + np.arange(len(where))[:, None],
    "positions are counted from the first of each call": lambda where: where - where[:1],
}


def family(convention: str, spec: Mapping[str, Any]) -> Family:
    """Return the family of a convention with several axes."""
    from posenc.verify.families import mrope, pictures

    if convention == "mrope_fn":
        return mrope.MRope(convention, spec)
    if convention == "rope2d_table_fn":
        return pictures.Picture(convention, spec)
    is_scaled = spec.get("scaling", "none") not in ("none", "default")
    has_bases = isinstance(spec.get("base"), list | tuple)
    if (count(spec) or 2) == 2 and not (is_scaled or has_bases or spec.get("config") or spec.get("axes")):
        return pictures.Rotated(convention, spec)
    return pictures.RotatedAxes(convention, spec if count(spec) else {**spec, "n_axes": 2})


def count(spec: Mapping[str, Any]) -> int | None:
    """Return the number of axes that a specification declares, if it does."""
    said, own = spec.get("scaling"), spec.get("config")
    listed = spec.get("widths") or spec.get("section")
    if listed is None and isinstance(said, Mapping):
        listed = said.get("mrope_section")
    if listed is None and own:
        listed = config.rotary(own, pairing="half").sections
    return len(listed) if listed else spec.get("n_axes")


def shares(spec: Mapping[str, Any], n: int) -> tuple[int, ...] | None:
    """Return the number of pairs of each axis, of section (pairs) or widths (dimensions); n_axes alone: equal shares.

    >>> shares({"widths": [44, 42, 42]}, 64), shares({"n_axes": 2}, 8)
    ((22, 21, 21), (4, 4))
    """
    section, widths, axes = spec.get("section"), spec.get("widths"), spec.get("n_axes")
    if widths is not None:
        if sum(widths) != 2 * n or any(w % 2 or w < 2 for w in widths):
            raise ValueError(f"verify: widths must be even numbers of dimensions with sum {2 * n}; got {widths}.")
        if section is not None and [2 * s for s in section] != list(widths):
            raise ValueError(f"verify: widths {widths} contradict section {section}, which counts pairs. Give one.")
        section = [w // 2 for w in widths]
    if section is None and axes:
        if n % axes:
            raise ValueError(f"verify: {axes} axes cannot share {n} pairs evenly; got n_axes={axes}. Give widths.")
        section = [n // axes] * axes
    if section is not None and axes not in (None, len(section)):
        raise ValueError(f"verify: n_axes is {axes}, but {len(section)} axes have widths or sections. Give one.")
    return None if section is None else tuple(int(s) for s in section)


def speeds(ladder: str, axes: Any, base: Any) -> Array:
    """Return the frequency of each pair; 0 for pairs of no axis (-1).

    Args:
        ladder: How the frequencies are given to the axes: one of LADDERS, "dealt_backwards" (the last axis is served
            first), or "narrow" (each axis begins again at 1, but exponents are counted over all pairs).
        axes: The axis of each pair.
        base: One base, or one for each axis.

    >>> speeds("axis", np.array([0, 1, 1]), 100.0), speeds("shared", np.array([0, 0, 1, 1]), 1e4)
    (array([1. , 1. , 0.1]), array([1.   , 0.1  , 0.01 , 0.001]))
    """
    still, axes, n = np.asarray(axes) < 0, np.maximum(axes, 0), len(axes)
    n_axes = int(axes.max()) + 1
    number = np.array([((axes == axis) & ~still)[:i].sum() for i, axis in enumerate(axes)])
    exponents = {
        "axis": number / np.maximum(np.bincount(axes[~still], minlength=n_axes), 1)[axes],
        "shared": np.arange(n) / n,
        "dealt": (n_axes * number + axes) / n,
        "dealt_backwards": (n_axes * (number + 1) - 1 - axes) / n,
        "narrow": number / n,
    }
    each = np.broadcast_to(base, max(n_axes, np.size(base)))[axes]
    return np.where(still, 0.0, each ** -exponents[ladder])


def places(n_axes: int) -> Array:
    """Return places: each axis by itself, then mixed, far, and numbers that half precision cannot represent."""
    eye, orders = np.eye(n_axes), ((2, 5, 3, 7), (3, 1, 4, 2), (11, 30, 22, 5), (63, 2, 47, 33), (200, 1900, 900, 3900))
    mixed = [np.resize(order, n_axes) for order in (*orders, (4097, 2051, 8203, 1033))]
    return np.stack((0 * eye[0], *eye, *mixed, *FAR * eye, *np.diag(np.resize((257, 515, 1031, 2055), n_axes))))


class Angles(Family):
    """A table of angles: pair i of n has the angle coordinate[axes[i]] * freq[i]."""

    word: str  # the first word of the finding codes

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        widths = spec.get("widths") or [2 * s for s in spec.get("section") or ()]
        asked = spec.get("rotary_dim") or spec.get("head_dim") or spec.get("dim") or sum(widths)
        if not asked:
            raise ValueError("verify: a rotation on several axes needs head_dim in the spec. Give head_dim=64.")
        if spec.get("ladder") not in (None, *LADDERS):
            raise ValueError(f"verify: ladder must be one of {', '.join(LADDERS)}; got {spec['ladder']!r:.60}.")
        base = spec.get("base", 10000.0)
        self.n, self.head_dim = int(asked) // 2, int(spec.get("head_dim") or asked)
        self.base: Any = tuple(map(float, base)) if isinstance(base, list | tuple) else float(base)
        self.truth = {"base": self.base, "freq": None, "sign": 1.0, "cut": None, "pos": None, "step": 1.0}
        self.truth |= dict.fromkeys(("round_positions", "round_frequencies", "round_product", "shared"))

    def given(self, model: Model, case: Case) -> Array:
        """Return the coordinates of each token on each axis, (tokens, axes)."""
        return np.asarray(case.args[0])

    def coordinates(self, model: Model, case: Case) -> Array:
        """Return the coordinates, which a model may change by those of a call, or count in other steps.

        The call of "rows" has the tokens in the other order.
        """
        where, is_turned = self.given(model, case), case.kind == "rows"
        where = where[::-1] if is_turned and not model["shared"] else where
        where = where if model["pos"] is None else model["pos"](where)
        return np.asarray((where[::-1] if is_turned else where) * np.asarray(model["step"]))

    def layout(self, model: Model) -> tuple[Any, Array]:
        """Return the axis and the frequency of each pair."""
        raise NotImplementedError

    def rotated_by(self, model: Model, case: Case) -> tuple[Array, ...]:
        """Return the angles of the cosine and of the sine in each row of a pair's rotation, four of (tokens, pairs).

        They are one angle, unless tables are cut within a pair.
        """
        axes, freq = self.layout(model)
        freq = precision.rounded(freq, model["round_frequencies"])
        where = precision.rounded(self.coordinates(model, case), model["round_positions"])
        cut = model["round_product"]
        angles = {
            id(a): model["sign"] * precision.rounded(where[:, a] * freq, cut) for a in (axes, *(model["cut"] or ()))
        }
        return tuple(angles[id(a)] for a in model["cut"] or (axes,) * 4)

    def predict(self, model: Model, case: Case) -> Array:
        """Return the angles of a model, (tokens, pairs)."""
        cosine, _, sine, _ = self.rotated_by(model, case)
        return cosine if cosine is sine else np.arctan2(np.sin(sine), np.cos(cosine))

    def visible(self, value: Array, case: Case) -> Array:
        """Return angles minus those of the first token: a constant added to all positions changes no score."""
        return wrapped(value if case.kind == "rows" else value - value[0])

    def angles(self, seen: Seen, model: Model) -> Array:
        """Return by how much each pair of each token is rotated against the first token, (tokens, pairs)."""
        return self.visible(seen.value, seen.case)

    def off(self, seen: Seen, predicted: Array, model: Model) -> Array:
        """Return the error of each angle modulo 2 pi."""
        with np.errstate(invalid="ignore"):  # float16 does not hold all positions
            off = np.abs(self.visible(seen.value - predicted, seen.case)) / self.slack(seen, predicted, model)
        return np.asarray(np.nan_to_num(off, nan=np.inf, posinf=np.inf))

    def slack(self, seen: Seen, predicted: Array, model: Model) -> Array:
        """Return the tolerance of each angle: slow pairs count as much as fast ones."""
        return np.asarray(CLOSE * (0.01 + np.abs(predicted - predicted[0])))

    def same(self, seen: Seen, predicted: Array) -> bool:
        """Return whether the first token's angles agree too."""
        return bool(np.abs(wrapped(seen.value[0] - predicted[0])).max() < 1e-3)

    def unlike(self, seen: Sequence[Seen]) -> str:
        """Return the difference that scores do not show."""
        return "a constant is added to the positions of all tokens, which does not change scores"

    def free(self) -> Iterator[Choice]:
        """Yield the opposite direction of rotation, which does not change scores."""
        yield Choice({"sign": -1.0})

    def faults(self) -> Iterator[Fault]:
        """Yield rounded or ignored positions, ends of tables, other exponents, and the bases of other models."""
        yield from precision.faults(self.word, ("positions", "frequencies", "product"))
        for base in (base for base in (*BASES, *OF_PICTURES) if base != self.base):
            values: dict[str, Any] = {"base": base, "asked": self.base}
            if isinstance(self.base, tuple):
                listed = ", ".join(f"{b:,.10g}" for b in self.base)
                values = {"message": f"all axes have the base {base:,.10g}; those of the axes should be {listed}"}
            yield Fault(f"{self.word}.config.theta_not_read", {"base": base}, values)
        powers = {0.5: "count over twice as many pairs", 2: "count over half of the pairs", -1: "rise, but should fall"}
        for power, how in powers.items():
            change = {"base": np.asarray(self.base) ** float(power)}
            yield Fault(f"{self.word}.frequency.exponents", change, {"how": how})
        for how, pos in IGNORED.items():
            yield Fault("positions.given_ignored", {"pos": pos}, {"how": how})
        for words, pos in POSITIONS.items():
            yield Fault(f"{self.word}.table.wraps", {"pos": pos}, {"words": words})

    def other_speeds(self, code: str, freq: Array, **words: str) -> Fault:
        """Return the fault of pairs at the wrong speeds, which names the one with the largest error."""
        right = self.layout(self.truth)[1]
        pair = int((np.abs(freq - right) / np.where(right, np.abs(right), 1.0)).argmax())
        values = {"pair": pair, "frequency": float(freq[pair]), "wanted": float(right[pair]), **words}
        return Fault(f"{self.word}.frequency.{code}", {"freq": freq}, values)

    def measured(self, seen: Sequence[Seen], model: Model) -> dict[str, Any]:
        """Return the frequencies of each axis."""
        axes, freq = self.layout(model)
        listed = {str(axis): [float(f"{f:.6g}") for f in freq[axes == axis]] for axis in np.unique(axes)}
        return {"pairs": self.n, "frequencies": listed}

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return the places that are not asked."""
        return ["negative positions, and positions that are not whole numbers"]


def keeps_nothing(subject: Any, before: tuple[Any, ...], args: tuple[Any, ...], found: Any, what: str) -> None:
    """Raise if one instance answers a call differently after another call of the same size."""
    one = fresh(subject)
    with suppress(guard.NotAnsweredError, guard.SubjectError):  # only the asked call must work
        guard.call(one, *before, what=what)
    again = guard.shaped(guard.call(one, *args, what=what), tuple(found.shape), what)
    numbers, others = (y.detach().double().numpy() for y in (again, found))
    if not np.allclose(numbers, others, 1e-3, 1e-3, equal_nan=True):
        message = "after a call with other positions, the same call gives another result"
        raise guard.SubjectError(Cause("rope.state_kept", message, 1.0, {"case": what}))


def wrapped(angle: Array) -> Array:
    """Return angles modulo 2 pi, between -pi and pi."""
    return np.asarray((angle + np.pi) % (2 * np.pi) - np.pi)
