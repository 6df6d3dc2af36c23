"""Judge a port's rotation by the engine of `verify`: compare it with the formula and every known fault."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from posenc.golden.writing import Array
from posenc.verify.engine import Case, Choice, Fault, Seen
from posenc.verify.engine.records import Model
from posenc.verify.families import rotation_read
from posenc.verify.families.mrope import MRope
from posenc.verify.families.rotation import Rotation
from posenc.verify.families.rotation_asked import KINDS, LENGTH
from posenc.verify.families.rotation_calls import Ask, Places
from posenc.verify.families.rotation_faults import PLACES
from posenc.verify.families.rotation_read import lanes, rotated, rows

SORTED = (
    "rotated dimensions are returned sorted, as transformers does for some models, in queries and keys alike: scores "
    "do not change, but keys cached by other code do not fit"
)
MEASURED = {f"rope.{code}" for code in ("frequency.base", "frequency.mismatch", "gain", "scaling.gain")}
MEASURED |= {"rope.yarn.attention_factor", "rope.partial.width"}
OFF_BY_ONE = "rope.positions.off_by_one"
WAYS = {1.0: "counter-clockwise", -1.0: "clockwise"}


@dataclass(frozen=True)
class Rounding:
    """The rounding error: a share of a pair's length, and of its angle."""

    absolute: float
    per_radian: float


class Ported(Rotation):
    """Vectors at the positions of golden vectors, rotated by a port.

    Args:
        layer: The entry of the manifest.
        arrays: The golden arrays.
        x: The unrotated queries and keys, (2, vectors, seq, head_dim).
        rounding: The allowed rounding error.
    """

    pairs = 24

    def __init__(self, layer: Mapping[str, Any], arrays: Mapping[str, Array], x: Array, rounding: Rounding) -> None:
        super().__init__("rope_fn", _spec(layer))
        self.layer, self.x, self.rounding = layer, x, rounding
        self.positions = arrays["positions"].astype(np.float64)
        sign = -1.0 if layer["direction"] == "clockwise" else 1.0
        right = {"freq": arrays["inv_freq"], "gain": np.array([layer["gain"]]), "sign": sign, "by": "end"}
        self.truth = {**self.truth, **right}

    def answers(self, value: Array) -> list[Seen]:
        """Return rotated vectors, (2, vectors, seq, head_dim), as answers: positions as in text, and all others."""
        pos = self.positions
        is_text = np.ones(len(pos), bool) if pos.ndim == 1 else (pos == pos[:, :1]).all(1)
        found = []
        for kind, some in (("near", np.flatnonzero(is_text)), ("pictures", np.flatnonzero(~is_text))):
            if len(some):
                first = pos[some] if pos.ndim == 1 else pos[some, 0]
                ask = Ask(tuple(int(p) for p in first))
                found.append(Seen(Case(kind, (ask, some), kind), value[:, :, some]))
        return found

    def given(self, case: Case) -> Array:
        """Return the queries and keys at the positions of a case, (2, vectors, positions, head_dim)."""
        return np.asarray(self.x[:, :, case.args[1]])

    def predict(self, model: Model, case: Case) -> Array:
        """Return these queries and keys rotated by a model."""
        where = self.places(case)
        with np.errstate(over="ignore", invalid="ignore"):
            sides = zip(self.given(case), ("q", "k"), strict=True)
            return np.stack([rotated(x, where, {**model, **model[side]}, len(x)) for x, side in sides])

    def places(self, case: Case) -> Places:
        """Return where the tokens of a case are; with several axes, the position that each pair follows."""
        tokens = case.args[1]
        pos, n = self.positions[tokens], len(self.positions)
        if pos.ndim == 2:
            pos = pos[:, 0] if case.kind == "near" else pos[:, self.layer["axis_of_pair"]]
        last = (self.layer["seq_len"] or self.asked.trained or n) - 1
        same = np.zeros(len(tokens))
        return Places(pos, tokens.astype(np.float64), same, same + last, same + n)

    def slack(self, seen: Seen, predicted: Array, model: Model) -> Array:
        """Return the manifest's tolerance: a share of the pair's length that grows with the angle."""
        where = self.places(seen.case)
        sides = zip(predicted, ("q", "k"), strict=True)
        return np.stack([self._slack(y, where, {**model, **model[side]}) for y, side in sides])

    def _slack(self, predicted: Array, where: Places, model: Model) -> Array:
        freq = np.abs(rows(model, "freq", where, len(predicted)))
        pair, partner, _ = lanes(self.asked.head_dim, freq.shape[1], model)
        if model["order"] is not None:
            number = np.empty_like(model["order"])
            number[model["order"]] = np.arange(len(number))
            pair, partner = pair[model["order"]], number[partner[model["order"]]]
        angle = (where.pos if where.pos.ndim == 2 else where.pos[:, None]) * freq
        angle = np.where(pair >= 0, angle[:, np.maximum(pair, 0)], 0.0)
        size = np.hypot(predicted, np.where(pair >= 0, predicted[..., partner], 0.0))
        return np.asarray(size * (self.rounding.absolute + self.rounding.per_radian * angle) + 1e-12)

    def free(self) -> Iterator[Choice]:
        """Yield dimensions that are returned sorted: interleaved pairs become halves."""
        if self.truth["pairing"] == "interleaved":
            head = np.arange(self.asked.head_dim)
            end = self.asked.first + self.asked.rotary_dim
            part = head[self.asked.first : end]
            order = np.concatenate((head[: self.asked.first], part[::2], part[1::2], head[end:]))
            yield Choice({"order": order}, SORTED)

    def faults(self) -> Iterator[Fault]:
        """Yield tokens off by one or counted, the opposite direction, pairs on other axes, and all known faults."""
        for by in (1, -1):
            yield Fault(OFF_BY_ONE, {"pos": partial(_shifted, by)}, {"by": by})
        yield from (Fault(code, {"pos": pos}, {"how": how}) for code, pos, how in PLACES["any"])
        sign = self.truth["sign"]
        yield Fault("rope.sign.other_direction", {"sign": -sign}, {"found": WAYS[-sign], "asked": WAYS[sign]})
        yield from self._axes()
        yield from (fault for fault in super().faults() if self._fits(fault))

    def _fits(self, fault: Fault) -> bool:
        """Return whether a known fault applies: sums reach few positions; several axes move no text and keep pairs."""
        models = [{**self.truth, **fault.change, **fault.change.get(side, {})} for side in ("q", "k")]
        if any(m["round_sum"] for m in models):
            return False
        if self.layer["axis_of_pair"] is None:
            return True
        return all(
            m["pos"] is None and m["by"] == "end" and not callable(m["freq"]) and len(m["freq"]) == self.asked.n_pairs
            for m in models
        )

    def _axes(self) -> Iterator[Fault]:
        """Yield other divisions of the pairs among three axes, and frequencies that start again with each."""
        sections, layout = self.layer["sections"], self.layer["layout"]
        if self.layer["axis_of_pair"] is None or len(sections) != 3 or layout not in ("blocks", "interleaved"):
            return
        words = {"section": sections, "interleaved": layout == "interleaved", "base": self.asked.base}
        for fault in MRope("mrope_fn", {**words, "rotary_dim": self.asked.rotary_dim}).faults():
            if "axes" in fault.change:
                yield replace(fault, change={"pos": partial(self._read_by, fault.change["axes"])})
            elif ".frequency.restart" in fault.code:
                yield replace(fault, change={"freq": fault.change["freq"]})

    def _read_by(self, axes: Array, at: Places) -> Array:
        """Return the positions that pairs follow on other axes."""
        pos = self.positions[at.index.astype(int)]
        return np.asarray(pos[:, axes])

    def read(self, seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault | None:
        """Return positions of tokens, or a base, a gain and speeds, if the answers show them by themselves."""
        if not {0, 1, 2, 4} <= set(seen[0].case.args[0].pos):  # needed to count whole rotations
            return None
        if (fault := rotation_read.read(self, seen, wrong, model)) is not None:
            return fault
        measured = rotation_read.unknown(self, seen, wrong, model) if wrong[0].case.kind == "near" else None
        return measured if measured is not None and measured.code in MEASURED else None

    def unknown(self, seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault:
        """Return that the fault is unknown, or that it is in the axes."""
        is_text = wrong[0].case.kind == "near" or self.layer["axis_of_pair"] is None
        return Fault(self.mismatch if is_text else "mrope.mismatch")

    def refine(self, fault: Fault, wrong: frozenset[str], right: frozenset[str], seen: Sequence[Seen]) -> Fault:
        """Return the fault unchanged: tables do not grow here."""
        return fault

    def smallest(self, seen: Seen, predicted: Array, off: Array) -> dict[str, Any]:
        """Return the first position with a wrong number, and the number with the largest error there."""
        wrong = np.flatnonzero((off > 1).any((0, 1, 3)))
        if not len(wrong):
            return {}
        at = int(wrong[0])
        side, head, lane = np.unravel_index(int(off[:, :, at].argmax()), off[:, :, at].shape)
        pos = self.positions[seen.case.args[1][at]]
        pair = lanes(self.asked.head_dim, self.asked.n_pairs, self.truth)[0][lane]
        case: dict[str, Any] = {"position": [int(p) for p in pos] if pos.ndim else int(pos), "pair": int(pair)}
        if len(self.x[0]) > 1:  # not the single vector of ones and zeros, which shows cos and sin
            case |= {"side": ("queries", "keys")[side], "head": int(head), "dimension": int(lane)}
        found = (("found", seen.value), ("expected", predicted))
        return case | {name: float(t[side, head, at, lane]) for name, t in found}


def _shifted(by: int, at: Places) -> Array:
    return np.asarray(at.pos + by)


def _spec(layer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry of a manifest as a specification."""
    spec = {key: layer[key] for key in ("head_dim", "rotary_dim", "base")} | {"layout": layer["pairing"]}
    spec |= {"rotary_side": "last" if layer["first_dimension"] else "first", "encoding": "rope"}
    kind, parameters = layer["rope_type"], dict(layer["parameters"])
    if kind == "default" or kind not in KINDS:
        return spec
    if kind == "ntk_alpha":  # which only HunYuan's configurations have
        scaling = {"type": "dynamic", "alpha": layer["factor"]}
        config = {"model_type": "hunyuan_v1_dense", "max_position_embeddings": layer["original_max_len"]}
        return spec | {"config": {**config, "rope_theta": layer["base"], "rope_scaling": scaling}}
    if kind == "proportional":
        parameters = {"partial_rotary_factor": parameters["share"]}
    scaling = {"rope_type": kind, "factor": layer["factor"], LENGTH: layer["original_max_len"], **parameters}
    return spec | {"scaling": {key: value for key, value in scaling.items() if value is not None}}
