"""Rotations over three axes or any number: M-RoPE, and axial rotations of pictures and video."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, permutations
from typing import Any

import numpy as np
import torch

from posenc import config
from posenc.config.axes import axes_of_pairs
from posenc.verify import guard
from posenc.verify.engine import Case, Choice, Fault, Seen
from posenc.verify.engine.judge import explains
from posenc.verify.engine.observe import fresh
from posenc.verify.engine.read import base_of, known, unrotated
from posenc.verify.engine.records import Array, Model
from posenc.verify.families import rotation_asked, rotation_faults
from posenc.verify.families.axes import (
    AXES,
    CLOSE,
    FAR,
    LAYOUTS,
    POSITIONS,
    USUAL,
    Angles,
    keeps_nothing,
    places,
    shares,
    speeds,
    wrapped,
)


class MRope(Angles):
    """Angles of three axes, or of any number: M-RoPE (Wang et al. 2024; Qwen3-VL) or axial RoPE (Wan, FLUX)."""

    mismatch, word = "mrope.mismatch", "mrope"
    answered: tuple[Array, ...] = ()  # the position ids of the first case
    origin: Array  # the angles of the first of them

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        base, widths = spec.get("base"), spec.get("widths") or [2 * s for s in spec.get("section") or ()]
        words = {"head_dim": sum(widths) or None, **spec, "layout": spec.get("layout") or "half"}
        one = {"base": base[0]} if isinstance(base, list | tuple) else {}
        self.asked = asked = rotation_asked.read(words | one)
        if asked.trained is not None:
            raise ValueError(
                f"verify: {convention} checks scalings that do not depend on the length of the text; got "
                f"{asked.scaling!r}. Check one length by rope_fn, or remove scaling."
            )
        super().__init__(convention, {**spec, "rotary_dim": asked.rotary_dim})
        self.head_dim, self.base = asked.head_dim, self.base if one else asked.base
        rotary = config.rotary(asked.source, pairing="half")
        self.section, self.axes, self.arranged = self._divided(rotary)
        self.names = AXES if len(self.section) == 3 else tuple(f"axis {a}" for a in range(len(self.section)))
        usual = "axis" if spec.get("widths") or (convention == "rope_axes_fn" and not rotary.sections) else "shared"
        declared = spec.get("ladder") or USUAL.get(spec.get("encoding", ""))
        self.ladder = declared or usual
        # a name of a model, such as "wan", leaves open which ladder is right
        named = declared or one or spec.get("widths") or plan(spec.get("encoding")) or rotary.sections
        self.is_open = not named and asked.scaling == "default"
        self.definition = "axial_rope" if self.ladder != "shared" else "mrope"
        self.definition += " interleaved" if self.arranged == "interleaved" else ""
        if one and (self.ladder != "axis" or len(self.base) != len(self.section) or asked.scaling != "default"):
            raise ValueError(
                "verify: a list of bases has one for each axis, each of which has frequencies of its own (ladder "
                f"'axis'), and no scaling; got base {self.base}, ladder {self.ladder!r}."
            )
        freq = self._scaled() if asked.scaling != "default" else None
        own = {"ladder": self.ladder, "axes": self.axes, "made": self.axes}
        self.truth = {**self.truth, **own, "base": self.base, "freq": freq, "gain": float(asked.gain(1)[0])}

    def free(self) -> Iterator[Choice]:
        """Yield the opposite direction, and the other ladder if the specification leaves it open."""
        yield from super().free()
        if self.is_open:
            other = {"ladder": "axis" if self.ladder == "shared" else "shared"}
            yield from (Choice(other), Choice({**other, "sign": -1.0}))

    def _divided(self, rotary: config.Rotary) -> tuple[tuple[int, ...], Any, str]:
        """Return the pairs of each axis, the axis of each pair, and how the axes are arranged."""
        section, layout = shares(self.spec, self.n) or rotary.sections, self.spec.get("axes")
        if layout is None and rotary.layout == "doubled":
            raise ValueError(
                f"verify: in {rotary.model_type} the two dimensions of a pair read different axes, which is not a "
                "rotation and has no angles; got its configuration. Compare golden files (posenc golden --config)."
            )
        layout = layout or plan(self.spec.get("encoding"))
        if layout is None:
            interleaved = self.spec.get("interleaved")
            layout = (rotary.layout or "blocks") if interleaved is None else ("blocks", "interleaved")[interleaved]
        if isinstance(layout, list | tuple):
            axes = np.resize(np.array([-1 if axis is None else int(axis) for axis in layout]), self.n)
            counts = tuple(np.bincount(axes[axes >= 0], minlength=3).tolist())
            if section not in (None, counts):
                raise ValueError(f"verify: section is {section}, but axes give {counts} pairs. Leave section out.")
            return counts, axes, "listed"
        if layout not in LAYOUTS:
            raise ValueError(f"verify: axes must be {', '.join(LAYOUTS)} or a list; got {layout!r:.60}.")
        if section is None or sum(section) != self.n:
            hint = " section counts pairs: write widths for dimensions." if sum(section or ()) == 2 * self.n else ""
            raise ValueError(
                f"verify: several axes need section (pairs) with sum {self.n}, or widths (dimensions) with sum "
                f"{2 * self.n}, one number for each axis; got section {section and list(section)}.{hint}"
            )
        axes = np.array(axes_of_pairs(section, "time_last" if layout == "time_unrotated" else layout, self.n))
        return section, np.where(axes == 0, -1, axes) if layout == "time_unrotated" else axes, layout

    def _scaled(self) -> Array:
        """Return the scaled frequencies: over all pairs, or of each axis over its own."""
        if self.ladder == "shared":
            return np.where(self.axes < 0, 0.0, self.asked.inv_freq(1))
        words = {key: value for key, value in self.spec.items() if key not in ("config", "rotary_dim", "dim")}
        if self.ladder != "axis" or self.spec.get("config"):
            raise ValueError(
                "verify: scaled frequencies of each axis need ladder 'axis' and the words of the scaling; got ladder "
                f"{self.ladder!r}{' and a config' * bool(self.spec.get('config'))}."
            )
        freq = np.zeros(self.n)
        for axis, pairs in enumerate(self.section):
            freq[self.axes == axis] = rotation_asked.read({**words, "head_dim": 2 * pairs}).inv_freq(1)
        return freq

    def layout(self, model: Model) -> tuple[Any, Array]:
        """Return the axis of each pair, and the frequencies of the division that the tables were made for."""
        freq = speeds(model["ladder"], model["made"], model["base"]) if model["freq"] is None else model["freq"]
        return model["axes"], freq

    def cases(self) -> Iterator[Case]:
        """Yield position ids as far as the specification or the call itself allows."""
        end, asked = self.spec.get("max_positions"), None
        for limit in (end,) if end else (64, 512, 4096, FAR + 1):
            ids = places(len(self.section))
            ids = ids[ids.max(1) < limit]
            words = f"angles(position_ids of shape ({len(self.section)}, {len(ids)}), up to {int(ids.max())})"
            asked = Case("near", (ids,), words, otherwise=asked)
        assert asked is not None
        yield asked
        if self.answered:
            yield Case("rows", self.answered, "the same position ids in the other order")

    def observe(self, subject: Any, case: Case) -> Seen:
        """Return the angles of some position ids; of turned ones against the angles at the origin."""
        ids = torch.from_numpy(case.args[0].astype(np.int64).T.copy())
        if case.kind == "rows":
            found = guard.shaped(
                guard.call(fresh(subject), ids.flip(1), what=case.words), (ids.shape[1], self.n), case.words
            )
            return Seen(case, found.detach().double().numpy()[::-1] - self.origin)
        found = guard.shaped(guard.call(fresh(subject), ids, what=case.words), (ids.shape[1], self.n), case.words)
        keeps_nothing(subject, (ids.flip(1),), (ids,), found, case.words)
        self.answered, self.origin = case.args, found[0].detach().double().numpy()
        return Seen(case, found.detach().double().numpy())

    def faults(self) -> Iterator[Fault]:
        """Yield pairs that follow the wrong axes, and frequencies that are given to the axes in another way."""
        ways = [way for way in self._ways() if (way[1] != self.axes).any()]
        yield from (self._follow(*way) for way in ways)
        yield from super().faults()
        if len(self.section) > 2:  # tables of the picture's axes only
            for words, pos in POSITIONS.items():
                late = partial(lambda pos, where: np.hstack((where[:, :1], pos(where[:, 1:]))), pos)
                yield Fault("mrope.table.wraps", {"pos": late}, {"words": f"on all axes but {self.names[0]} {words}"})
        yield from self._scalings()
        yield from self._ladders()
        yield from self._cuts()
        for code, axes, words in ways:  # with tables that are made for the same division
            yield self._follow("section_order" if code == "section_cut" else code, axes, words, made=axes)

    def _ways(self) -> Iterator[tuple[str, Any, str]]:
        """Yield codes, the axis of each pair, and words of other divisions."""
        n, section, count = self.n, self.section, len(self.section)
        blocks, turns = (np.array(axes_of_pairs(section, layout, n)) for layout in ("blocks", "interleaved"))
        if self.arranged == "blocks":
            yield "interleaved_where_blocked", turns, "axes alternate, but sections should be blocks"
        doubled = np.repeat(range(count), [2 * s for s in section])[:n]
        yield "section_scale", doubled, "sections count dimensions, not pairs"
        if self.arranged != "blocks":
            yield "interleaving_ignored", blocks, "sections are blocks, not interleaved"
            yield "interleaving_unbounded", np.arange(n) % count, "axes alternate up to the last pair"
        for axis, name in enumerate(self.names):
            yield "axes_collapsed", np.full(n, axis), f"all pairs follow {name}"
        for one, two in permutations(range(count), 2):
            words = f"the pairs of {self.names[two]} follow {self.names[one]}"
            yield "axis_repeated", np.where(self.axes == two, one, self.axes), words
        for order in list(permutations(range(count)))[1:24]:
            words, lengths = f"the axes are {', '.join(self.names[a] for a in order)}", [section[a] for a in order]
            yield "section_order", np.where(self.axes < 0, -1, np.array(order)[self.axes]), words
            yield "section_order", np.repeat(order, lengths), f"in blocks, {words}"
            other = axes_of_pairs(lengths, "interleaved" if self.arranged == "interleaved" else "blocks", n)
            code = "section_cut" if self.ladder == "axis" else "section_order"
            yield code, np.array(other), "the sections' lengths are exchanged"

    def _ladders(self) -> Iterator[Fault]:
        """Yield frequencies that are given to the axes in another way, and exponents over other widths."""
        n, axes, base = self.n, np.maximum(self.axes, 0), np.broadcast_to(self.base, len(self.section))
        number, own = np.array([(axes[:i] == a).sum() for i, a in enumerate(axes)]), np.array(self.section)
        if self.ladder == "shared":
            for over, words in ((n, "all pairs"), (own[axes], "the pairs of the axis")):
                yield self.other_speeds("restart", base[axes] ** (-number / over), over=words)
        else:
            code = "one_series" if self.ladder == "axis" else "restart"
            over = {"over": "the pairs of the axis"}
            yield self.other_speeds(code, speeds("shared" if self.ladder == "axis" else "axis", axes, base), **over)
        for ladder in {"shared", "dealt"} - {self.ladder}:
            yield self.other_speeds("one_series", speeds(ladder, axes, base))
        one, numbers = (own[axes], number) if self.ladder == "axis" else (np.full(n, n), np.arange(n))
        for exponents, how in (
            (numbers / np.maximum(one - 1, 1), "are spread so that the last pair reaches 1 / base"),
            ((numbers + 1) / one, "are counted from 1"),
        ):
            yield self.other_speeds("exponents", base[axes] ** -exponents, how=how)
        turned = self.layout(self.truth)[1].copy()
        for axis in range(len(own)):
            turned[axes == axis] = turned[axes == axis][::-1]
        yield self.other_speeds("exponents", turned, how="are counted backwards on each axis")
        if self.ladder == "axis":
            widths = {n: "all pairs", n / len(own): f"{n / len(own):.4g} pairs, an equal share of each axis"}
            widths |= {s: f"the {s} pairs of {name}" for s, name in zip(self.section, self.names, strict=True) if s}
            for pairs, words in widths.items():
                yield self.other_speeds("width", base[axes] ** (-number / pairs), over=words)

    def _cuts(self) -> Iterator[Fault]:
        """Yield tables whose columns are cut at other widths than they were made for, as Wan's code did."""
        n, count = self.n, len(self.section)
        third = 2 * n // count
        for widths in ((2 * n - (count - 1) * third, *[third] * (count - 1)), (*[third] * (count - 1), 2 * n)):
            columns = np.repeat(range(count), widths)[: 2 * n]
            even, odd = columns[0::2], columns[1::2]
            pair = int(((even != self.axes) | (odd != self.axes)).argmax())
            follows = odd if even[pair] == self.axes[pair] else even
            cut = f"tables of {[2 * s for s in self.section]} columns are cut at {list(widths)}"
            for order in ((even, odd, odd, even), (even, even, odd, odd)) if (even != odd).any() else ():
                found = self._follow("section_cut", follows, cut)
                yield replace(found, change={"cut": order})

    def _scalings(self) -> Iterator[Fault]:
        """Yield a missing scaling, one over another width, and the known faults of scalings of one axis."""
        asked, over = self.asked, {"over": "the whole head"}
        said = {"scaling": asked.scaling, "base": asked.base}
        if asked.scaling != "default":
            unscaled, right = speeds(self.ladder, self.axes, self.base), self.layout(self.truth)[1]
            for few in range(1, len(self.section)):
                for some in combinations(range(len(self.section)), few):
                    words = f"the scaling {asked.scaling!r} is not applied to {', '.join(self.names[a] for a in some)}"
                    freq = np.where(np.isin(self.axes, some), unscaled, right)
                    yield Fault("rope.config.scaling_ignored", {"freq": freq}, {"message": words})
        if self.ladder != "shared":
            if asked.scaling != "default":
                yield Fault("rope.config.scaling_ignored", {"freq": unscaled, "gain": 1.0}, said)
                yield Fault("rope.config.scaling_ignored", {"freq": unscaled}, said)
            return
        if asked.rotary_dim < asked.head_dim:
            whole = {"partial_rotary_factor": 1.0}
            kept = {key: {**own, **whole} for key, own in asked.source.items() if isinstance(own, Mapping)}
            wide = replace(asked, source={**asked.source, **kept, **whole}).inv_freq(1)
            yield self.other_speeds("width", wide[: self.n], **over)
        if asked.scaling == "default":
            return
        plain = asked.plain()
        for fault in rotation_faults.faults(asked, {"pairing": "half", "sign": 1.0, "q": {}, "k": {}}, ""):
            change = dict(fault.change)
            if callable(change.get("freq")):
                change["freq"] = change["freq"](asked.original)
            if set(change) <= {"freq", "gain"} and len(change.get("freq", plain)) == self.n:
                yield replace(fault, change=change)

    def _follow(self, code: str, axes: Any, words: str, made: Any = None) -> Fault:
        """Return the fault of pairs that follow the wrong axes, which names the first one."""
        names = (*self.names, "several axes", "no axis")
        pair = int((axes != self.axes).argmax())
        case = {"pair": pair, "axis": names[int(axes[pair])], "wanted": names[int(self.axes[pair])]}
        change = {"axes": axes} if made is None else {"axes": axes, "made": made}
        return Fault(f"mrope.{code}", change, {**case, "words": words}, case)

    def read(self, seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault | None:
        """Return tables that are cut at other widths, steps that do not count as one, or other frequencies."""
        near = next((s for s in wrong if s.case.kind == "near"), None)
        if near is None:
            return None
        follows, fits = self._followed(near, model)
        if fits.sum() >= self.n - len(self.section) and (follows != self.axes)[fits].any():
            axes = np.where(fits, follows, self.axes)
            cut = [int((axes == axis).sum()) for axis in range(len(self.section))]
            in_order = self.arranged == "blocks" and (np.diff(axes) >= 0).all()
            words = f"tables made for {list(self.section)} pairs of the axes are cut at {cut}"
            if in_order:
                return self._follow("section_cut", axes, words)
            return self._follow("mismatch", axes, "pairs have the right speeds, but follow other axes")
        return self._steps(near, model) or self._bases(near, model) or self._sections(near, model)

    def _followed(self, near: Seen, model: Model) -> tuple[Any, Any]:
        """Return the axis that each pair follows at its right speed, and whether there is one."""
        places, found = near.case.args[0], self.angles(near, model)
        some = places.max(1) <= 4096
        right = np.abs(self.layout(self.truth)[1])
        expected = places[some, None, :] * right[:, None]  # (tokens, pairs, axes)
        off = np.abs(wrapped(found[some, :, None] - self.truth["sign"] * expected))
        off = np.minimum(off, np.abs(wrapped(found[some, :, None] + expected)))
        off = (off / (1e-5 + 3 * CLOSE * expected)).max(0)
        return off.argmin(1), off.min(1) <= 1

    def _steps(self, near: Seen, model: Model) -> Fault | None:
        """Return steps along the axes that do not count as one, if they explain all angles."""
        steps = self.angles(near, model)[1 : 1 + len(self.section)]  # of each pair for a step along each axis
        right, step = self.layout(self.truth)[1], np.ones(len(self.section))
        for axis in range(len(self.section)):
            pairs = np.flatnonzero((self.axes == axis) & (right > 0))
            if len(pairs):
                pair = pairs[np.abs(right[pairs] - 0.1).argmin()]  # no step rotates it by half a rotation
                step[axis] = steps[axis, pair] / right[pair]
        if not explains(self, {**self.truth, "step": step}, [near]):
            return None
        axis = int(np.abs(step - 1).argmax())
        values = {"axis": self.names[axis], "step": float(step[axis])}
        return Fault("mrope.coordinates_wrong", {"step": step}, values, values)

    def _bases(self, near: Seen, model: Model) -> Fault | None:
        """Return another base of all pairs or of each axis, if that explains all angles."""
        if self.truth["freq"] is not None:
            return None
        steps = np.abs(self.angles(near, model)[1:][np.maximum(self.axes, 0), np.arange(self.n)])
        parts = (
            [self.axes == a for a in range(len(self.section))] if self.ladder == "axis" else [self.axes == self.axes]
        )
        found = [base_of(steps[part], 2 * int(part.sum())) for part in parts if part.any()]
        bases = tuple(known(base) for base in found if base is not None)
        if len(bases) < len(found) or not explains(self, {**self.truth, "base": bases}, [near]):
            return None
        values: dict[str, Any] = {"base": bases[0], "asked": self.base}
        if len(set(bases)) > 1 or isinstance(self.base, tuple):
            said, asked = (
                ", ".join(f"{_whole(b):,.10g}" for b in np.broadcast_to(some, len(bases)))
                for some in (bases, self.base)
            )
            values = {"message": f"the bases of the axes are {said}; they should be {asked}"}
        return Fault("mrope.config.theta_not_read", {"base": bases}, values)

    def _moved(self, near: Seen, model: Model) -> tuple[Array, Array, Any]:
        """Return the angles of a step along each axis, the right ones, and each pair's axis (-1: none, -2: more)."""
        steps = self.angles(near, model)[1 : 1 + len(self.section)]
        right = np.abs(self.layout(self.truth)[1])
        moved = (np.abs(steps) > 1e-6 + CLOSE * right).sum(0)
        return steps, right, np.where(moved == 1, np.abs(steps).argmax(0), np.where(moved, -2, -1))

    def _sections(self, near: Seen, model: Model) -> Fault | None:
        """Return sections of other lengths, each with frequencies of its own, if they explain all angles."""
        follows = self._moved(near, model)[2]
        if self.ladder != "axis" or not explains(self, {**self.truth, "axes": follows, "made": follows}, [near]):
            return None
        cut = [int((follows == axis).sum()) for axis in range(len(self.section))]
        return self._follow(
            "section_order", follows, f"the axes have {cut} pairs, not {list(self.section)}", made=follows
        )

    def unknown(self, seen: Sequence[Seen], wrong: Sequence[Seen], model: Model) -> Fault:
        """Return pairs that do not rotate, the pair that follows the wrong axis, or the one at the wrong speed."""
        steps, right, follows = self._moved(seen[0], model)
        still = (np.abs(steps).max(0) < 1e-3 * right) & (right > 0)
        if still.any() and (follows == self.axes)[~still & (right > 1e-5)].all():
            return Fault("rope.partial.width", {}, {"found": unrotated(still), "asked": 2 * self.n})
        if (follows != self.axes)[right > 1e-5].any():
            return self._follow("mismatch", np.where(right > 1e-5, follows, self.axes), "pairs follow other axes")
        freq = steps[np.maximum(self.axes, 0), np.arange(self.n)]
        if (np.abs(freq - right) < 1e-3 * right + 1e-6).all():
            return Fault(
                "mrope.mismatch", values={"message": "angles of a step along each axis are right, others are not"}
            )
        return self.other_speeds("mismatch", freq)

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return that angles do not show the gain of a scaling, and that the ladder was accepted as measured."""
        gain = [] if self.truth["gain"] == 1.0 else [f"the gain {self.truth['gain']:.6g}, which angles do not show"]
        open_ = ["whether each axis has frequencies of its own: declare ladder (axis, shared)"] * self.is_open
        return [*gain, *open_, *super().not_judged(seen)]


def plan(encoding: Any) -> Any:
    """Return the layout of a paper's plan of the axes that an encoding names, from the registry's card of M-RoPE."""
    from posenc import registry

    return registry.card("mrope").plans.get(str(encoding), {}).get("layout")


def _whole(base: float) -> float:
    """Return the whole number that a measured base is, up to rounding."""
    return round(base) if abs(base - round(base)) < 1e-5 * base else base
