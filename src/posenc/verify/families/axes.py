"""Rotations over several axes: which coordinate each pair of dimensions follows, and how fast it rotates."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import torch

from posenc.verify import guard
from posenc.verify.engine import Case, Choice, Family, Fault, Seen, precision
from posenc.verify.engine.observe import fresh
from posenc.verify.engine.read import BASES
from posenc.verify.engine.records import Array, Model

CLOSE = 1e-4  # tolerance of a frequency (relative) or an angle (radians)
AXES = ("time", "height", "width")
FAR = 1 << 15  # far enough that slow pairs rotate as well
# (time, height, width): each axis by itself, then mixed, far, and numbers that half precision cannot represent
IDS = (
    *((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (2, 5, 3), (3, 1, 4)),
    *((FAR, 0, 0), (0, FAR, 0), (0, 0, FAR), (257, 0, 0), (0, 515, 0), (0, 0, 1031), (4097, 2051, 8203)),
)


def family(convention: str, spec: Mapping[str, Any]) -> Family:
    """Return the family of a convention with several axes."""
    from posenc.verify.families import pictures

    if convention == "mrope_fn":
        return MRope(convention, spec)
    return (pictures.Picture if convention == "rope2d_table_fn" else pictures.Rotated)(convention, spec)


class Angles(Family):
    """A table of angles: pair i of n has the angle coordinate[axes[i]] * freq[i]."""

    word: str  # the first word of the finding codes

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        asked = spec.get("rotary_dim") or spec.get("head_dim") or spec.get("dim") or 2 * sum(spec.get("section") or ())
        if not asked:
            raise ValueError("verify: a rotation on several axes needs head_dim in the spec. Give head_dim=64.")
        self.n, self.base = int(asked) // 2, float(spec.get("base", 10000.0))
        self.truth = {"base": self.base, "freq": None, "sign": 1.0, "round_positions": None}

    def coordinates(self, model: Model, case: Case) -> Array:
        """Return the coordinates of each token on each axis, (tokens, axes)."""
        return np.asarray(case.args[0])

    def layout(self, model: Model) -> tuple[Any, Array]:
        """Return the axis and the frequency of each pair."""
        raise NotImplementedError

    def predict(self, model: Model, case: Case) -> Array:
        """Return the angles of a model, (tokens, pairs)."""
        axes, freq = self.layout(model)
        where = precision.rounded(self.coordinates(model, case), model["round_positions"])
        return np.asarray(model["sign"] * where[:, axes] * freq)

    def visible(self, value: Array, case: Case) -> Array:
        """Return angles minus those of the first token: a constant added to all positions changes no score."""
        return np.asarray(value - value[0])

    def off(self, seen: Seen, predicted: Array, model: Model) -> Array:
        """Return the difference of angles modulo 2 pi."""
        difference = self.visible(seen.value - predicted, seen.case)
        return super().off(replace(seen, value=seen.value - difference + wrapped(difference)), predicted, model)

    def slack(self, seen: Seen, predicted: Array, model: Model) -> Array:
        """Return the tolerance of each angle: slow pairs count as much as fast ones."""
        return CLOSE * (0.01 + np.abs(self.visible(predicted, seen.case)))

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
        """Yield rounded positions, other exponents, and the bases of other models."""
        yield from precision.faults(self.word, ("positions",))
        for base in (base for base in BASES if base != self.base):
            yield Fault(f"{self.word}.config.theta_not_read", {"base": base}, {"base": base, "asked": self.base})
        powers = {0.5: "count over twice as many pairs", 2: "count over half of the pairs", -1: "rise, but should fall"}
        for power, how in powers.items():
            yield Fault(f"{self.word}.frequency.exponents", {"base": self.base**power}, {"how": how})

    def other_speeds(self, code: str, freq: Array, **words: str) -> Fault:
        """Return the fault of pairs at the wrong speeds, which names the one with the largest error."""
        right = self.layout(self.truth)[1]
        pair = int(np.abs(freq / right - 1).argmax())
        values = {"pair": pair, "frequency": float(freq[pair]), "wanted": float(right[pair]), **words}
        return Fault(f"{self.word}.frequency.{code}", {"freq": freq}, values)

    def measured(self, seen: Sequence[Seen], model: Model) -> dict[str, Any]:
        """Return the frequencies of each axis."""
        axes, freq = self.layout(model)
        listed = {str(axis): [float(f"{f:.6g}") for f in freq[axes == axis]] for axis in np.unique(axes)}
        return {"pairs": self.n, "frequencies": listed}


class MRope(Angles):
    """M-RoPE (Wang et al. 2024, Qwen2-VL; interleaved: Qwen3-VL): sections of pairs follow time, height, width."""

    mismatch, word = "mrope.mismatch", "mrope"

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        given = spec.get("config") or {}
        own = spec.get("scaling") or given.get("rope_parameters") or given.get("rope_scaling") or {}
        if (said := own.get("rope_type", own.get("type", "default"))) not in ("default", "mrope"):
            raise ValueError(f"verify: mrope_fn checks only unscaled angles; got scaling {said!r:.40}. Remove it.")
        self.base = float(spec.get("base") or own.get("rope_theta") or given.get("rope_theta") or self.base)
        self.section = list(spec.get("section") or own.get("mrope_section") or ())
        if len(self.section) != 3 or sum(self.section) != self.n:
            raise ValueError(f"verify: mrope needs section, three counts with sum {self.n}; got {self.section}.")
        self.interleaved = bool(spec.get("interleaved", own.get("mrope_interleaved", False)))
        self.definition = "mrope interleaved" if self.interleaved else "mrope"
        self.axes = sections(self.section, self.interleaved)
        self.truth = {**self.truth, "base": self.base, "axes": self.axes}

    def layout(self, model: Model) -> tuple[Any, Array]:
        """Return the axis of each pair, and frequencies that run over all pairs."""
        freq = model["base"] ** (-np.arange(self.n) / self.n) if model["freq"] is None else model["freq"]
        return model["axes"], freq

    def cases(self) -> Iterator[Case]:
        """Yield position ids as far as the specification or the call itself allows."""
        end, asked = self.spec.get("max_positions"), None
        for limit in (end,) if end else (64, 512, 4096, FAR + 1):
            ids = np.array([axes for axes in IDS if max(axes) < limit], dtype=np.float64)
            words = f"angles(position_ids of shape (3, {len(ids)}), up to {int(ids.max())})"
            asked = Case("near", (ids,), words, otherwise=asked)
        assert asked is not None
        yield asked

    def observe(self, subject: Any, case: Case) -> Seen:
        """Return the angles of some position ids."""
        ids = torch.from_numpy(case.args[0].astype(np.int64).T.copy())
        found = guard.shaped(guard.call(fresh(subject), ids, what=case.words), (ids.shape[1], self.n), case.words)
        return Seen(case, found.detach().double().numpy())

    def faults(self) -> Iterator[Fault]:
        """Yield pairs that follow the wrong axes, and frequencies that start again at 1 with each axis."""
        n, section, other = self.n, self.section, sections(self.section, not self.interleaved)
        ways = [("interleaved_where_blocked", other, "axes alternate, but sections should be blocks")]
        doubled = np.repeat(range(3), [2 * s for s in section])[:n]
        ways += [("section_scale", doubled, "sections count dimensions, not pairs")]
        if self.interleaved:
            ways = [("interleaving_ignored", other, "sections are blocks, not interleaved")]
            ways += [("interleaving_unbounded", np.arange(n) % 3, "axes alternate up to the last pair")]
        ways += [("axes_collapsed", np.full(n, axis), f"all pairs follow {name}") for axis, name in enumerate(AXES)]
        for order in list(permutations(range(3)))[1:]:
            words, lengths = (
                f"the axes are {', '.join(AXES[axis] for axis in order)}",
                [section[axis] for axis in order],
            )
            ways += [("section_order", np.array(order)[self.axes], words)]
            ways += [("section_order", np.repeat(order, lengths), f"in blocks, {words}")]
            ways += [("section_order", sections(lengths, self.interleaved), "the sections' lengths are exchanged")]
        yield from (self._follow(*way) for way in ways if (way[1] != self.axes).any())
        number = np.array([(self.axes[:i] == axis).sum() for i, axis in enumerate(self.axes)])
        for over, words in ((n, "all pairs"), (np.array(section)[self.axes], "the pairs of the axis")):
            yield self.other_speeds("restart", self.base ** (-number / over), over=words)
        yield from super().faults()

    def _follow(self, code: str, axes: Any, words: str) -> Fault:
        """Return the fault of pairs that follow the wrong axes, which names the first one."""
        pair = int((axes != self.axes).argmax())
        case = {"pair": pair, "axis": AXES[int(axes[pair])], "wanted": AXES[int(self.axes[pair])]}
        return Fault(f"mrope.{code}", {"axes": axes}, {**case, "words": words}, case)

    def unknown(self, seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault:
        """Return the pair that follows the wrong axis, or else the one at the wrong speed."""
        steps = wrapped(self.visible(seen[0].value, seen[0].case)[1:4])  # of each pair for a step along each axis
        follows = np.abs(steps).argmax(0)
        if (follows != self.axes).any() or ((np.abs(steps) > CLOSE * self.layout(self.truth)[1]).sum(0) != 1).any():
            return self._follow("mismatch", follows, "pairs are assigned to axes in no known way")
        return self.other_speeds("mismatch", steps[follows, np.arange(self.n)])


def sections(section: Sequence[int], interleaved: bool) -> Any:
    """Return which of (time, height, width) each pair follows, in blocks (Qwen2-VL) or in turn (Qwen3-VL)."""
    if not interleaved:
        return np.repeat(np.arange(3), section)
    i = np.arange(sum(section))
    return np.where(i < 3 * np.array(section)[i % 3], i % 3, 0)  # height and width end at 3 * section, time continues


def wrapped(angle: Array) -> Array:
    """Return angles modulo 2 pi, between -pi and pi."""
    return np.asarray((angle + np.pi) % (2 * np.pi) - np.pi)
