"""Rotations in seven ways to call them: one formula whose every choice is a parameter, asked near and far."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posenc.verify.engine import Case, Choice, Family, Fault, Kind, Seen
from posenc.verify.engine.precision import rounded
from posenc.verify.engine.records import Array, Model, kind
from posenc.verify.families import rotation_asked, rotation_cases, rotation_faults, rotation_read
from posenc.verify.families.rotation_asked import Asked, Fixed
from posenc.verify.families.rotation_calls import REACH, Ask, Places, places
from posenc.verify.report import Cause

ROUNDING = 2e-5  # of a dimension, of which float32 explains no more near the beginning
OF_ANGLES = 2.0**-20  # of an angle: frequencies and products in float32
OF_DECAY = 5e-4  # of xPos's powers
HALF = {"bfloat16": 2.0**-7, "float16": 2.0**-10}  # what rounding to a half precision changes
EDGES = 0.3  # of the numbers that float32 before a rounding may move to a neighbour
ROUNDED = ("round_positions", "round_frequencies", "round_product", "round_table", "round_x", "round_y")
Lanes = tuple[Any, Any, Any]  # whole numbers of pairs and of partners, and signs


def family(convention: str, spec: Mapping[str, Any]) -> Family:
    """Return the family of a rotation for a specification."""
    asked = rotation_asked.read(spec)
    if convention == "xpos_fn":
        decay = float(spec.get("scale_base", 512.0)), float(spec.get("gamma", 0.4))
        asked = replace(asked, xpos=decay)
    return Rotation(convention, spec, asked)


class Rotation(Family):
    """RoPE (Su et al. 2021) with its scalings, and xPos (Sun et al. 2022).

    Args:
        convention: One of seven ways to call it.
        spec: The specification in our words.
        asked: The same, read.

    Attributes:
        reach: Which positions one call may ask for.
        reached: The last position that the subject has answered near the beginning.
        unseen: What could not be asked, in sentences.
        origin: What position 0 does to queries and keys so that no score sees it; None for nothing.
    """

    mismatch = "rope.mismatch"
    pairs = 60
    reads_first = True

    def __init__(self, convention: str, spec: Mapping[str, Any], asked: Asked) -> None:
        super().__init__(convention, spec)
        self.asked, self.reach, self.definition = asked, REACH[convention], asked.definition
        self.reached, self.unseen = 0, list[str]()
        self.origin: Array | None = None
        self.two = _two_vectors(asked.head_dim)
        self.kinds = _kinds(asked)
        self.truth = {
            "freq": asked.inv_freq,
            "gain": asked.gain,
            "by": "end",  # whose length chooses frequencies: the text's "end", the call's "tokens", "first", ...
            "pairing": asked.layout or "half",
            "tables": None,  # the pairing by which cos and sin are laid out, where it is another one
            "first": asked.first,
            "partner": None,  # how far apart the two dimensions of a pair are, where it is not half the width
            "sign": 1.0,
            "form": "",  # other blocks than a rotation: "same", "reflection", "first", "second"
            "pos": None,  # where tokens stand, from Places
            "still": 1.0,  # what dimensions that do not rotate are multiplied by
            "order": None,  # in which order dimensions come back
            "lost": False,  # whether what is not finite counts
            **dict.fromkeys(ROUNDED),
            "drift": 1.0,  # what float32 multiplies frequencies by
            "growth": rotation_faults.growth(asked) if asked.xpos else None,
            "growth_lanes": None,
            "centre": False,  # whether xPos counts powers from the middle of the text
            "q": {"grow": 1.0} if asked.xpos else {},  # what holds for one side only
            "k": {"grow": -1.0} if asked.xpos else {},
        }

    def cases(self) -> Iterator[Case]:
        """Yield near positions, far ones, and the calls in which real code goes another way."""
        yield from rotation_cases.cases(self)

    def observe(self, subject: Any, case: Case) -> Seen:
        """Return what becomes of vectors, without what scores do not see of position 0."""
        return rotation_cases.observe(self, subject, case)

    def fed(self, ask: Ask) -> Tensor:
        """Return the vectors that a question feeds, (vectors, head_dim)."""
        x = torch.eye(self.asked.head_dim) if ask.vectors == "basis" else self.two
        return x.to(getattr(torch, ask.dtype))

    def predict(self, model: Model, case: Case) -> Array:
        """Return vectors rotated by a model, (2, vectors, positions, head_dim), queries first; for "grad" backwards."""
        ask: Ask = case.args[0]
        if case.kind == "grad":
            basis = self.predict(model, Case("near", (replace(ask, vectors="basis"),)))
            return np.asarray(np.einsum("svpd,wpd->swpv", basis, weights(self, ask)))
        where, x = places(self.convention, ask), self.fed(ask).double().numpy()
        if ask.rows:
            backwards = replace(where, pos=where.pos[::-1])
            return np.concatenate([self._sides(model, *part, ask) for part in ((x[:1], where), (x[1:], backwards))], 1)
        return self._sides(model, x, where, ask)

    def _sides(self, model: Model, x: Array, where: Places, ask: Ask) -> Array:
        """Return vectors rotated as queries and as keys."""
        with np.errstate(over="ignore", invalid="ignore"):  # a half precision does not hold all positions
            q = rotated(x, where, {**model, **model["q"]}, ask.heads)
            k = rotated(x, where, {**model, **model["k"]}, ask.heads) if model["k"] or model["q"] else q
        return np.stack([q, k])

    def visible(self, value: Array, case: Case) -> Array:
        """Return an answer with xPos's powers divided evenly among queries and keys: a constant is free."""
        ask: Ask = case.args[0]
        if self.asked.xpos is None or ask.vectors == "basis" or ask.pos[0] != 0:
            return value
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.sqrt(np.abs(value[0, :1, :1] / value[1, :1, :1]))
        share = np.where(np.isfinite(share) & (share > 0), share, 1.0)
        return np.stack([value[0] / share, value[1] * share])

    def off(self, seen: Seen, predicted: Array, model: Model) -> Array:
        """Return how far an answer is from a prediction; what is not finite is infinitely far, or left out."""
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # wrong powers grow beyond all numbers
            off = super().off(seen, predicted, model)
        off = np.where(np.isfinite(seen.value) | (np.isfinite(predicted) & (not model["lost"])), off, 0.0)
        wrong = off > 1
        if not wrong.any() or wrong.mean() > EDGES or not _rounds(model):
            return off
        slack = self.slack(seen, predicted, model)
        return np.asarray(off * slack / (slack + self._edges(model, seen.case)))

    def slack(self, seen: Seen, predicted: Array, model: Model) -> Array:
        """Return what float32 explains: more for large angles."""
        ask: Ask = seen.case.args[0]
        where = places(self.convention, ask)
        freq = np.abs(_rows(model, "freq", where, ask.heads))
        pair, partner, _ = lanes(self.asked.head_dim, freq.shape[1], model)
        if model["q"] == self.truth["q"] and model["k"] == self.truth["k"] and not model["partner"]:
            freq = np.where(pair >= 0, freq[:, np.maximum(pair, 0)], 0.0)
        else:  # any dimension may have any angle
            freq = np.maximum(freq, np.abs(self.asked.inv_freq(int(where.pos[-1]) + 1))[:1]).max(1, keepdims=True)
        angle = where.pos[:, None] * freq
        half = ask.dtype if seen.case.kind != "grad" else self.asked.activation_dtype
        if half in HALF:
            return np.asarray(12 * HALF[half] + OF_ANGLES * angle)
        size = np.abs(self.visible(predicted, seen.case)) if self.asked.xpos else np.maximum(np.abs(predicted), 1.0)
        size = np.maximum(size, size[..., partner])
        return np.asarray(size * ((OF_DECAY if self.asked.xpos else ROUNDING) + OF_ANGLES * angle))

    def _edges(self, model: Model, case: Case) -> Array:
        """Return how a prediction changes where float32 before the rounding ends a little lower or higher."""
        ends = [self.predict({**model, "drift": drift}, case) for drift in (1 - 1e-6, 1 + 1e-6)]
        with np.errstate(invalid="ignore"):
            return np.asarray(np.abs(ends[1] - ends[0]))

    def same(self, seen: Seen, predicted: Array) -> bool:
        """Return whether nothing was taken off that scores do not see."""
        return seen.note is None

    def unlike(self, seen: Sequence[Seen]) -> str:
        """Return what position 0 does, in words."""
        origin = next(s.note for s in seen if s.note is not None)
        if (np.abs(origin).max(1) > 1 - 1e-4).all():
            what = "dimensions come back in another order"
        elif np.abs(origin - np.diag(np.diag(origin))).max() < 1e-4:
            what = "queries are multiplied by what keys are divided by"
        else:
            what = "position 0 is rotated as well: a constant is added to all positions"
        return f"{what}, in queries and keys alike, which no score sees; keys cached by other code do not fit"

    def free(self) -> Iterator[Choice]:
        """Yield the pairing where the specification is silent, the other direction, and rounding that is declared."""
        dtype = self.asked.activation_dtype
        choices: list[list[tuple[Mapping[str, Any], str]]] = [
            [({}, "")] if self.asked.layout else [({}, ""), ({"pairing": "interleaved"}, "")],
            [({}, ""), ({"sign": -1.0}, CLOCKWISE)],
            [({}, "")],
        ]
        if dtype in HALF:  # q and k are of this type, and what meets them may be
            choices[2] += [({"round_table": dtype}, ""), ({"round_table": dtype, "round_x": dtype}, "")]
        if self.asked.trained is not None and self.convention != "hf_rope":  # whose definition is by positions
            choices.append([({}, ""), ({"by": "tokens"}, "")])
        for parts in list(product(*choices))[1:]:
            change = {name: value for part, _ in parts for name, value in part.items()}
            yield Choice(change, "".join(because for _, because in parts))

    def faults(self) -> Iterator[Fault]:
        """Yield the known faults."""
        yield from rotation_faults.faults(self.asked, self.truth, self.reach)

    def plausible(self, fault: Fault, wrong: Sequence[Seen]) -> bool:
        """Return False for a fault of one side only where both sides come back alike."""
        is_one_sided = bool({"q", "k"} & set(fault.change)) and self.asked.xpos is None
        return not is_one_sided or any(not np.allclose(s.value[0], s.value[1], 0, 1e-6, equal_nan=True) for s in wrong)

    def raised(self, cause: Cause, case: Case) -> Fault | None:
        """Name vectors that are overwritten, and a text of declared length that fails."""
        if cause.code == "subject.writes_input":
            return Fault("rope.input.mutated")
        last = case.args[0].pos[-1]
        if cause.code == "subject.raises" and self.asked.max_positions and case.kind in ("near", "far"):
            message = f"positions up to {last:,} fail, and {self.asked.max_positions:,} are asked for: {cause.message}"
            return Fault("rope.table.too_short", {}, {"message": message, "fix": ""}, {"positions": [last]})
        return None

    def read(self, seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault | None:
        """Read off the answers what no known fault explains."""
        with np.errstate(all="ignore"):
            return rotation_read.read(self, seen, wrong, model)

    def unknown(self, seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault:
        """Return what is measured where nothing explains it."""
        with np.errstate(all="ignore"):
            return rotation_read.unknown(self, seen, wrong, model)

    def refine(self, fault: Fault, wrong: frozenset[str], right: frozenset[str], seen: Sequence[Seen]) -> Fault:
        """Name faults of long texts, and of tables that are kept by the wrong key."""
        return rotation_read.refined(self, fault, wrong, right, seen)

    def smallest(self, seen: Seen, predicted: Array, off: Array) -> dict[str, Any]:
        """Return the first position at which an answer is wrong."""
        bad = np.argwhere(off > 1)
        if off.ndim != 4 or not len(bad):
            return {"case": seen.case.words}
        side, _, at, lane = min(bad.tolist(), key=lambda row: (row[2], row[0], row[3]))
        ask: Ask = seen.case.args[0]
        case = {"head_dim": self.asked.head_dim, "positions": list(ask.pos[:4]), "position": ask.pos[at]}
        return {**case, "side": ("queries", "keys")[side], "dimension": lane, "call": seen.case.kind}

    def measured(self, seen: Sequence[Seen], model: Model) -> dict[str, Any]:
        """Return the pairing of dimensions."""
        return {"layout": model["pairing"]}

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return what was not asked."""
        said = list(self.unseen)
        last = max((s.case.args[0].pos[-1] for s in seen), default=0)
        if last and (self.asked.max_positions or 0) > last + 1:
            said.append(f"positions beyond {last:,}")
        if self.asked.activation_dtype is None:
            said.append("half precision: no activation_dtype is given")
        return said


CLOCKWISE = (
    "both sides rotate clockwise: the same but for the sign of the second dimension of each pair, in q and k alike, "
    "and weights that were trained so need it"
)


def _kinds(asked: Asked) -> list[Kind]:
    """Return the faults that show by which calls are wrong."""
    kept = f"rope.{asked.scaling}.state_kept" if asked.trained is not None else "rope.state_kept"
    half = asked.activation_dtype if asked.activation_dtype in HALF else ""
    return [
        kind("rope.decode.single_token_path", "single", "short near"),
        kind("rope.batch.rows_share", "rows", "short near"),
        kind("rope.offset.ignored_by_cache", "offsets", "short near"),
        kind(kept, "again", "short near"),
        kind("rope.precision.table_kept_in_half", "after_half", f"short near {half}"),
        kind("rope.input.strides", "strided", "short near"),
    ]


def _two_vectors(head_dim: int) -> Tensor:
    """Return two vectors whose numbers are of one size, and of no half precision."""
    generator = torch.Generator().manual_seed(3)
    size = 0.5 + torch.rand(2, head_dim, generator=generator)
    return size * (2 * torch.randint(0, 2, (2, head_dim), generator=generator) - 1)


def weights(family: Rotation, ask: Ask) -> Array:
    """Return by what an answer is multiplied before it is summed, of which the gradient is taken."""
    shape = (2, len(ask.pos), family.asked.head_dim)
    return torch.randn(shape, generator=torch.Generator().manual_seed(4)).double().numpy()


def _rounds(model: Model) -> bool:
    return any(part.get(name) for part in (model, model["q"], model["k"]) for name in ROUNDED)


def lanes(head_dim: int, n_pairs: int, model: Model, pairing: str | None = None) -> Lanes:
    """Return for each dimension the number of its pair (-1: it does not rotate), its partner, and the sine's sign."""
    return _lanes(head_dim, n_pairs, pairing or model["pairing"], model["first"], model["partner"] or n_pairs)


@cache
def _lanes(head_dim: int, n_pairs: int, pairing: str, first: int, apart: int) -> Lanes:
    pair, partner, sign = np.full(head_dim, -1), np.arange(head_dim), np.zeros(head_dim)
    numbers = np.arange(n_pairs)
    a, b = (numbers, numbers + apart) if pairing == "half" else (2 * numbers, 2 * numbers + 1)
    a, b = a + first, b + first
    inside = b < head_dim
    numbers, a, b = numbers[inside], a[inside], b[inside]
    pair[a], pair[b], partner[a], partner[b], sign[a], sign[b] = numbers, numbers, b, a, -1.0, 1.0
    return pair, partner, sign


def rotated(x: Array, where: Places, m: Model, heads: int) -> Array:
    """Return vectors x (vectors, head_dim) rotated by a model: (vectors, positions, head_dim)."""
    freq, gain = _rows(m, "freq", where, heads), _rows(m, "gain", where, heads)
    pair, partner, sign = lanes(x.shape[1], freq.shape[1], m)
    pos = where.pos if m["pos"] is None else m["pos"](where)
    angle = rounded(pos, m["round_positions"])[:, None] * rounded(freq * m["drift"], m["round_frequencies"])
    angle = m["sign"] * rounded(angle, m["round_product"])
    numbers = pair if m["tables"] is None else lanes(x.shape[1], freq.shape[1], m, m["tables"])[0]
    turning, at = pair >= 0, np.maximum(numbers, 0)
    cos, sin = (rounded(gain * f(angle), m["round_table"])[:, at] for f in (np.cos, np.sin))
    cos, sin = np.where(turning, cos, m["still"]), np.where(turning, sin, 0.0)
    if m["growth"] is not None:
        grown = _grown(m, where, pos, x.shape[1], freq.shape[1])
        cos, sin = cos * grown, sin * grown
    x = rounded(x, m["round_x"])[:, None]
    y = rounded(_formed(x, cos, sin, partner, sign, m["form"]), m["round_y"])
    return y if m["order"] is None else y[..., m["order"]]


def _formed(x: Array, cos: Array, sin: Array, partner: Array, sign: Array, form: str) -> Array:
    """Return x cos + partner sin with the signs of a form; a dimension made of its rotated partner is one, too."""
    if form == "reflection":
        cos = np.where(sign > 0, -cos, cos)
    if form in ("same", "reflection"):
        sign = np.abs(sign)
    y = x * cos + x[..., partner] * sign * sin
    if form in ("first", "second"):  # which is made first, and seen by the other
        late = sign > 0 if form == "first" else sign < 0
        y = np.where(late, x * cos + y[..., partner] * sign * sin, y)
    return np.asarray(y)


def _grown(m: Model, where: Places, pos: Array, head_dim: int, n_pairs: int) -> Array:
    """Return xPos's powers of each dimension, (positions, head_dim)."""
    centre = (where.last + 1) // 2 if m["centre"] else 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        powers = np.exp(np.clip(m["grow"] * m["growth"](pos - centre), -700, 700))
    pair = lanes(head_dim, n_pairs, m, m["growth_lanes"])[0]
    return np.asarray(np.where(pair >= 0, powers[:, np.maximum(pair, 0)], 1.0))


def _rows(m: Model, name: str, where: Places, heads: int) -> Array:
    """Return frequencies (positions, pairs) or gains (positions, 1), by the length that chooses them."""
    if isinstance(m[name], Fixed):
        return np.atleast_2d(m[name].value)
    by = {
        "end": where.last + 1,
        "tokens": where.tokens,
        "first": where.first + 1,
        "token": where.pos + 1,
        "heads": np.full_like(where.pos, heads),
    }[m["by"] if name == "freq" else "end"]
    lengths, back = np.unique(by, return_inverse=True)
    return np.stack([np.atleast_1d(m[name](int(n))) for n in lengths])[back]
