"""Rotations over several axes: which coordinate each pair of dimensions reads, and how fast it rotates."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from typing import Any

import numpy as np
import torch

from posenc.verify import guard
from posenc.verify.engine import Case, Choice, Family, Fault, Seen, precision
from posenc.verify.engine.observe import fresh
from posenc.verify.engine.read import BASES
from posenc.verify.engine.records import Array, Model

CLOSE = 1e-4  # of a frequency or an angle, as a share or in radians
AXES = ("time", "height", "width")
FAR = 1 << 15  # where slow pairs have rotated as well
# (time, height, width): each axis by itself, then mixed, far, and where half precision has no number
IDS = (
    *((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (2, 5, 3), (3, 1, 4)),
    *((FAR, 0, 0), (0, FAR, 0), (0, 0, FAR), (257, 0, 0), (0, 515, 0), (0, 0, 1031), (4097, 2051, 8203)),
)


def family(convention: str, spec: Mapping[str, Any]) -> Family:
    """Return the family of a convention on several axes."""
    from posenc.verify.families import pictures

    if convention == "mrope_fn":
        return MRope(convention, spec)
    return (pictures.Picture if convention == "rope2d_table_fn" else pictures.Rotated)(convention, spec)


class Angles(Family):
    """A table of angles: pair i has the angle coordinate[axes[i]] * freq[i].

    Attributes:
        n: How many pairs of dimensions there are.
        base: Of the frequencies.
        word: The first word of the codes.
    """

    word: str

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        self.n, self.base = width(spec) // 2, float(spec.get("base", 10000.0))

    def coordinates(self, model: Model, case: Case) -> Array:
        """Return the coordinates of each token on each axis, (tokens, axes)."""
        raise NotImplementedError

    def predict(self, model: Model, case: Case) -> Array:
        """Return the angles of a model, (tokens, pairs)."""
        where = precision.rounded(self.coordinates(model, case), model["round_positions"])
        angles: Array = model["sign"] * where[:, model["axes"]] * model["freq"]
        return angles

    def visible(self, value: Array, case: Case) -> Array:
        """Return angles less those of the first token: a constant added to all positions changes no score."""
        moved: Array = value - value[0]
        return moved

    def slack(self, seen: Seen, predicted: Array, model: Model) -> Array:
        """Return what an angle may be off: slow pairs count as much as fast ones."""
        return CLOSE * (0.01 + np.abs(self.visible(predicted, seen.case)))

    def same(self, seen: Seen, predicted: Array) -> bool:
        """Return whether the first token's angles agree as well."""
        return bool(np.abs(seen.value[0] - predicted[0]).max() < 1e-3)

    def unlike(self, seen: Sequence[Seen]) -> str:
        """Return what differs where scores are the same."""
        return "a constant is added to the positions of all tokens, which no score sees"

    def free(self) -> Iterator[Choice]:
        """Yield the other direction of rotation, which no score sees."""
        yield Choice({"sign": -1.0})

    def speeds(self, axes: Array, own: int) -> Iterator[Fault]:
        """Yield wrong frequencies; `own` is over how many pairs exponents count."""
        i, right = np.arange(self.n) % own, self.truth["freq"]
        for name, freq in (
            ("exponent_halved", self.base ** (-i / (2 * own))),
            ("exponent_doubled", self.base ** (-2 * i / own)),
            ("inverted", self.base ** (i / own)),
        ):
            yield Fault(f"{self.word}.frequency.{name}", {"freq": freq}, _pair(right, freq))
        for base in BASES:
            freq = base ** (-i / own)
            if base != self.base:
                values = {"base": base, "asked": self.base}
                yield Fault(f"{self.word}.config.theta_not_read", {"freq": freq}, values)

    def other_speeds(self, measured: Array) -> Fault:
        """Return the fault of pairs that follow the right axes at speeds that nothing explains."""
        return Fault(f"{self.word}.frequency.mismatch", {"freq": measured}, _pair(self.truth["freq"], measured))

    def measured(self, seen: Sequence[Seen], model: Model) -> dict[str, Any]:
        """Return the frequencies of each axis."""
        axes, freq = np.asarray(model["axes"]), np.asarray(model["freq"])
        listed = {str(axis): [float(f"{f:.6g}") for f in freq[axes == axis]] for axis in np.unique(axes)}
        return {"pairs": self.n, "frequencies": listed}


def width(spec: Mapping[str, Any]) -> int:
    """Return how many dimensions a table of angles is for, twice its pairs.

    Raises:
        ValueError: The specification does not say.
    """
    asked = spec.get("rotary_dim") or spec.get("head_dim") or spec.get("dim")
    if asked is None and spec.get("section"):
        asked = 2 * sum(spec["section"])
    if asked is None:
        raise ValueError("verify: a rotation on several axes needs head_dim in the spec. Give head_dim=64.")
    return int(asked)


def _pair(right: Array, freq: Array) -> dict[str, Any]:
    """Return the pair whose frequency is farthest off, for a message."""
    pair = int(np.abs(freq / right - 1).argmax())
    return {"pair": pair, "frequency": float(freq[pair]), "wanted": float(right[pair])}


class MRope(Angles):
    """M-RoPE (Wang et al. 2024, Qwen2-VL; interleaved: Qwen3-VL): sections of pairs follow time, height, width."""

    mismatch, word = "mrope.mismatch", "mrope"

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        config: dict[str, Any] = spec.get("config") or {}
        self.section = list(spec.get("section") or (config.get("rope_scaling") or {}).get("mrope_section") or ())
        if len(self.section) != 3 or sum(self.section) != self.n:
            raise ValueError(
                f"verify: mrope needs section, three counts that add up to {self.n} pairs; got {self.section}."
            )
        self.interleaved = bool(spec.get("interleaved", False))
        self.definition = "mrope interleaved" if self.interleaved else "mrope"
        axes = sections(self.section, self.interleaved)
        freq = self.base ** (-np.arange(self.n) / self.n)
        self.truth = {"axes": axes, "freq": freq, "sign": 1.0, "round_positions": None}

    def cases(self) -> Iterator[Case]:
        """Yield ids as far as is asked, or as far as the call goes, which may have its end."""
        end, asked = self.spec.get("max_positions"), None
        for limit in (end,) if end else (64, 512, 4096, FAR + 1):
            ids = np.array([axes for axes in IDS if max(axes) < limit], dtype=np.float64)
            words = f"angles(position_ids of shape (3, {len(ids)}), up to {int(ids.max())})"
            asked = Case("near", (ids,), words, otherwise=asked)
        assert asked is not None
        yield asked

    def coordinates(self, model: Model, case: Case) -> Array:
        """Return the ids themselves."""
        ids: Array = case.args[0]
        return ids

    def observe(self, subject: Any, case: Case) -> Seen:
        """Return the angles of some position ids."""
        ids = torch.from_numpy(case.args[0].astype(np.int64).T.copy())
        found = guard.shaped(guard.call(fresh(subject), ids, what=case.words), (ids.shape[1], self.n), case.words)
        return Seen(case, found.detach().double().numpy())

    def faults(self) -> Iterator[Fault]:
        """Yield pairs that follow other axes, other frequencies, and rounded positions."""
        for code, axes, words in self._other_axes():
            if (wrong := np.flatnonzero(axes != self.truth["axes"])).size:
                pair = int(wrong[0])
                got, wanted = AXES[int(axes[pair])], AXES[int(self.truth["axes"][pair])]
                values = {"words": words, "pair": pair, "axis": got, "wanted": wanted}
                yield Fault(code, {"axes": axes}, values, {"pair": pair, "axis": got, "wanted": wanted})
        yield from precision.faults("mrope", ("positions",))
        yield from self._restarts()
        yield from self.speeds(self.truth["axes"], self.n)

    def _other_axes(self) -> Iterator[tuple[str, Any, str]]:
        """Yield the codes of other ways to give axes to pairs, the axes, and the ways in words."""
        n, section, other = self.n, self.section, sections(self.section, not self.interleaved)
        if self.interleaved:
            yield "mrope.interleaving_ignored", other, "sections are blocks, not interleaved"
            unbounded = np.arange(n) % 3
            yield "mrope.interleaving_unbounded", unbounded, "axes alternate up to the last pair, beyond the sections"
        else:
            yield "mrope.interleaved_where_blocked", other, "axes alternate, where sections should be blocks"
            doubled = np.repeat(range(3), [2 * s for s in section])[:n]
            yield "mrope.section_scale", doubled, "sections count dimensions, not pairs"
            halves = np.repeat(range(3), [max(1, s // 2) for s in section])
            yield "mrope.section_scale", np.resize(halves, n), "sections are half as long, and start again"
            padded = np.pad(np.repeat(range(3), [s // 2 for s in section]), (0, n))[:n]
            yield "mrope.section_scale", padded, "sections are half as long"
        for axis, name in enumerate(AXES):
            yield "mrope.axes_collapsed", np.full(n, axis), f"all pairs follow {name}"
        for order in list(permutations(range(3)))[1:]:
            words = f"the axes are taken in the order {', '.join(AXES[axis] for axis in order)}"
            yield "mrope.section_order", np.array(order)[self.truth["axes"]], words
            yield "mrope.section_order", np.repeat(order, [section[axis] for axis in order]), f"in blocks, {words}"
            lengths = sections([section[axis] for axis in order], self.interleaved)
            yield "mrope.section_order", lengths, "the lengths of the sections are taken in another order"
        yield "mrope.section_order", self.truth["axes"][::-1], "sections start at the last pair"

    def _restarts(self) -> Iterator[Fault]:
        """Yield frequencies that start again at 1 with each axis."""
        axes = self.truth["axes"]
        number = np.array([(axes[:i] == axis).sum() for i, axis in enumerate(axes)])
        lengths = np.array([(axes == axis).sum() for axis in axes])
        for over, words in ((self.n, "all pairs"), (lengths, "the pairs of the axis")):
            freq = self.base ** (-number / over)
            first = int(np.flatnonzero(number != np.arange(self.n))[0]) if (number != np.arange(self.n)).any() else 0
            values = {"over": words, "pair": first, "frequency": freq[first], "wanted": self.truth["freq"][first]}
            yield Fault("mrope.frequency.restart", {"freq": freq}, values)

    def read(self, seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault | None:
        """Return which pair follows another axis, or rotates at another speed where none does."""
        steps = self.visible(seen[0].value, seen[0].case)[1:4]  # by how much a step along each axis rotates each pair
        axes, follows = np.asarray(self.truth["axes"]), np.abs(steps).argmax(0)
        single = (np.abs(steps) > CLOSE * self.truth["freq"]).sum(0) == 1
        if (follows == axes).all() and single.all():
            return self.other_speeds(np.take_along_axis(steps, follows[None], 0)[0])
        pair = int(np.flatnonzero((follows != axes) | ~single)[0])
        case = {"pair": pair, "axis": AXES[int(follows[pair])], "wanted": AXES[int(axes[pair])]}
        return Fault("mrope.mismatch", {}, case, case)


def sections(section: Sequence[int], interleaved: bool) -> Any:
    """Return which of (time, height, width) each pair follows.

    In blocks: the sections in order (Qwen2-VL). Interleaved: pair i follows height where i % 3 is 1 and i < 3 *
    section[1], width where i % 3 is 2 and i < 3 * section[2], else time (Qwen3-VL).
    """
    if not interleaved:
        return np.repeat(np.arange(3), section)
    i = np.arange(sum(section))
    axes = np.zeros(len(i), dtype=int)
    for axis in (1, 2):
        axes[(i % 3 == axis) & (i < 3 * section[axis])] = axis
    return axes
