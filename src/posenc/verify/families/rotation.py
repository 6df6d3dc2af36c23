"""Rotations called in seven ways: one formula whose every choice is a parameter, tested near and far."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posenc.verify.engine import Case, Choice, Family, Fault, Kind, Seen
from posenc.verify.engine.records import Array, Model, kind
from posenc.verify.families import rotation_asked, rotation_calls, rotation_faults, rotation_read
from posenc.verify.families.rotation_asked import Asked
from posenc.verify.families.rotation_calls import REACH, Ask, places
from posenc.verify.families.rotation_read import lanes, rotated, rows
from posenc.verify.report import Cause

ROUNDING = 2e-5  # the error of a dimension that float32 explains near the start
OF_ANGLES = 2.0**-20  # relative error of an angle: frequencies and products in float32
OF_DECAY = 5e-4  # relative error of xPos's scales
HALF = {"bfloat16": 2.0**-7, "float16": 2.0**-10}  # what rounding to a half precision changes
EDGES = 0.3  # the share of numbers that float32 errors may round to a neighbour
ROUNDED = ("round_positions", "round_frequencies", "round_product", "round_table", "round_x", "round_y", "round_sum")
CLOCKWISE = (
    "both sides rotate clockwise: the second dimension of each pair has the opposite sign, in q and k alike, "
    "and weights trained this way need it"
)


class Rotation(Family):
    """RoPE (Su et al. 2021) with its scalings, and xPos (Sun et al. 2022)."""

    mismatch = "rope.mismatch"
    pairs = 60
    reads_first = True
    cases, observe = rotation_calls.cases, rotation_calls.observe
    read, unknown = rotation_read.read, rotation_read.unknown

    def __init__(self, convention: str, spec: Mapping[str, Any]) -> None:
        super().__init__(convention, spec)
        self.asked = asked = rotation_asked.read(spec, is_xpos=convention == "xpos_fn")
        self.reach = REACH[convention]
        name = "xpos" if asked.xpos else "rope"
        self.definition = name if asked.scaling == "default" else f"{asked.scaling}@transformers-5"
        self.reached, self.unseen = 0, list[str]()  # the last near position with an answer; what was refused
        self.returned = ""  # the dtype in which float32 vectors are returned
        self.origin: Array | None = None  # the effect of position 0 on queries and keys, if scores do not change
        self.two = _two_vectors(asked.head_dim)
        self.kinds = _kinds(asked)
        by_length = asked.trained is not None
        self.truth = {
            "freq": asked.inv_freq if by_length else asked.inv_freq(1),
            "gain": asked.gain if by_length else asked.gain(1),
            "by": "end",  # the length that chooses frequencies: the text's "end", the call's "tokens", "first", ...
            "pairing": asked.layout or "half",
            "tables": None,  # the pairing of cos and sin, if it differs
            "first": asked.first,
            "partner": None,  # the distance between the two dimensions of a pair, if it is not half the width
            "sign": 1.0,
            "form": "",  # blocks that are not rotations: "same", "first", "second"
            "pos": None,  # positions of tokens, from Places
            "times": 1,  # how often everything is rotated
            "gained": None,  # the only table with the gain: "cos" or "sin"
            "rest": 1.0,  # the factor of dimensions that are not rotated
            "order": None,  # the order of the returned dimensions
            **dict.fromkeys(ROUNDED),
            "drift": 1.0,  # the factor of frequencies from float32 rounding
            "growth": rotation_faults.growth(asked, *asked.xpos) if asked.xpos else None,
            "centre": False,  # whether xPos's exponents are counted from the middle of the text
            "powers": None,  # the pairing of the scales, if it differs
            "round_powers": None,  # the dtype of positions in exponents
            "q": {"grow": 1.0} if asked.xpos else {},  # changes of one side only
            "k": {"grow": -1.0} if asked.xpos else {},
        }

    def fed(self, ask: Ask) -> Tensor:
        """Return the vectors that a question uses, (vectors, head_dim)."""
        n = self.asked.head_dim
        x = {"basis": torch.eye(n), "ones": torch.ones(1, n), "two": self.two}[ask.vectors]
        return x.to(getattr(torch, ask.dtype))

    def given(self, case: Case) -> Array:
        """Return the queries and the keys of a case, (2, vectors, positions or 1, head_dim)."""
        return np.stack([self.fed(case.args[0]).double().numpy()[:, None]] * 2)

    def predict(self, model: Model, case: Case) -> Array:
        """Return vectors rotated by a model, (2, vectors, positions, head_dim); for "grad" the unrotated vectors."""
        ask: Ask = case.args[0]
        where, x = places(self.convention, ask), self.given(case)[0]
        if case.kind == "grad":
            return np.broadcast_to(x, (2, len(x), len(ask.pos), x.shape[-1]))
        parts = [(x[:1], where), (x[1:], replace(where, pos=where.pos[::-1]))] if ask.rows else [(x, where)]
        with np.errstate(over="ignore", invalid="ignore"):  # a half precision does not hold all positions
            found = [
                np.concatenate([rotated(*part, {**model, **model[side]}, ask.heads) for part in parts])
                for side in ("q", "k")[: 1 + bool(model["q"] or model["k"])]
            ]
        return self._divided_evenly(np.stack([found[0], found[-1]]), model)

    def _divided_evenly(self, value: Array, model: Model) -> Array:
        """Return vectors with the gains of queries and keys divided evenly between them, as `observe` does."""
        q, k = (_gain_at_start({**model, **model[side]}) for side in ("q", "k"))
        if q == k or self.asked.xpos is not None or not q * k > 0:
            return value
        pair, _, _ = lanes(self.asked.head_dim, self.asked.n_pairs, model)
        share = np.where(pair >= 0, (q / k) ** 0.5, 1.0)
        return np.stack([value[0] / share, value[1] * share])

    def visible(self, value: Array, case: Case) -> Array:
        """Return an answer with xPos's scales divided evenly between queries and keys: a constant is free."""
        ask: Ask = case.args[0]
        if self.asked.xpos is None or ask.vectors == "basis" or ask.pos[0] != 0:
            return value
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.sqrt(np.abs(value[0, :1, :1] / value[1, :1, :1]))
        share = np.where(np.isfinite(share) & (share > 0), share, 1.0)
        return np.stack([value[0] / share, value[1] * share])

    def off(self, seen: Seen, predicted: Array, model: Model) -> Array:
        """Return how far an answer is from a prediction; float32 errors may change how a number is rounded."""
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # wrong scales overflow
            off = super().off(seen, predicted, model)
        wrong = off > 1
        rounds = any(part.get(name) for part in (model, model["q"], model["k"]) for name in ROUNDED)
        if not rounds or not wrong.any() or wrong.mean() > EDGES:
            return off
        slack = self.slack(seen, predicted, model)
        ends = [self.predict({**model, "drift": drift}, seen.case) for drift in (1 - 1e-6, 1 + 1e-6)]
        return np.asarray(off * slack / (slack + np.abs(ends[1] - ends[0])))

    def excludes(self, seen: Seen, model: Model) -> bool:
        """Return whether the sum of all basis vectors shows that a model does not explain an answer."""
        ask: Ask = seen.case.args[0]
        whole = {name: value for part in (model, model["q"], model["k"]) for name, value in part.items()}
        if ask.vectors != "basis" or self.asked.xpos or whole["round_x"] or whole["round_y"]:
            return False
        case = replace(seen.case, args=(replace(ask, vectors="ones"),))
        one = Seen(case, seen.value.sum(1, keepdims=True), note=seen.note)
        return bool((self.off(one, self.predict(model, case), model) > self.asked.head_dim).any())

    def slack(self, seen: Seen, predicted: Array, model: Model) -> Array:
        """Return the rounding error of float32, which is larger for large angles."""
        ask: Ask = seen.case.args[0]
        where = places(self.convention, ask)
        freq = np.abs(rows(model, "freq", where, ask.heads))
        pair, partner, _ = lanes(self.asked.head_dim, freq.shape[1], model)
        of_pairs = np.where(pair >= 0, freq[:, np.maximum(pair, 0)], 0.0)
        is_sorted = "order" in {*model["q"], *model["k"]}
        angle = where.pos[:, None] * (freq.max(1, keepdims=True) if is_sorted else of_pairs)
        half = HALF.get(str(ask.dtype if seen.case.kind != "grad" else self.asked.activation_dtype))
        half = half or HALF.get(self.returned)
        size = np.abs(self.visible(predicted, seen.case)) if self.asked.xpos else np.maximum(np.abs(predicted), 1.0)
        size = np.maximum(size, size[..., partner])
        share = 12 * half if half else OF_DECAY if self.asked.xpos else ROUNDING
        return np.asarray(size * (share + OF_ANGLES * angle))

    def same(self, seen: Seen, predicted: Array) -> bool:
        """Return whether no effect of position 0 was removed."""
        return seen.note is None

    def unlike(self, seen: Sequence[Seen]) -> str:
        """Return the effect of position 0, in words."""
        origin = next(s.note for s in seen if s.note is not None)
        is_order = (np.abs(origin).max(1) > 1 - 1e-4).all()
        what = "dimensions are returned in another order" if is_order else "position 0 is rotated as well, or scaled"
        return f"{what}, in queries and keys alike, which does not change scores; keys cached by other code do not fit"

    def free(self) -> Iterator[Choice]:
        """Yield the pairing if none is declared, the opposite direction, and declared rounding."""
        dtype, table = self.asked.activation_dtype, {"round_table": self.asked.activation_dtype}
        pairings = [{}] if self.asked.layout else [{}, {"pairing": "interleaved"}]
        roundings = [{}, table, {**table, "round_x": dtype}] if dtype in HALF else [{}]  # q and k have it
        is_open = self.convention != "hf_rope" and self.reach != "run"  # there the length is defined by positions
        by_tokens = self.asked.trained is not None and is_open
        lengths = [{}, {"by": "tokens"}] if by_tokens else [{}]
        for parts in list(product(pairings, [{}, {"sign": -1.0}], roundings, lengths))[1:]:
            change = {name: value for part in parts for name, value in part.items()}
            yield Choice(change, CLOCKWISE if "sign" in change else "")

    def faults(self) -> Iterator[Fault]:
        """Yield the known faults."""
        yield from rotation_faults.faults(self.asked, self.truth, self.reach)

    def plausible(self, faults: Sequence[Fault], wrong: Sequence[Seen]) -> Sequence[Fault]:
        """Return no fault of one side only if both sides are returned alike."""
        if self.asked.xpos or any(not np.allclose(s.value[0], s.value[1], 0, 1e-6) for s in wrong):
            return faults
        return [fault for fault in faults if {"q", "k"}.isdisjoint(fault.change)]

    def raised(self, cause: Cause, case: Case) -> Fault | None:
        """Report vectors that are overwritten, or a text of declared length that fails."""
        if cause.code == "subject.writes_input":
            return Fault("rope.input.mutated")
        last = case.args[0].pos[-1]
        if cause.code == "subject.raises" and self.asked.max_positions and case.kind in ("near", "far"):
            message = f"positions up to {last:,} fail, but {self.asked.max_positions:,} are declared: {cause.message}"
            return Fault("rope.table.too_short", {}, {"message": message, "fix": ""}, {"positions": [last]})
        return None

    def refine(self, fault: Fault, wrong: frozenset[str], right: frozenset[str], seen: Sequence[Seen]) -> Fault:
        """Report a gain of one side only, and a rounding that a short text would show: only a longer table is rounded.

        A gain of one side only leaves its root on both, if the effect of position 0 is divided evenly between them.
        """
        if isinstance(gain := fault.change.get("gain"), float) and (origin := seen[0].note) is not None:
            want = float(self.asked.gain(self.asked.original)[0])
            if want != 1 and abs(gain - want**0.5) < 1e-6:
                side = "queries" if (np.linalg.det(origin) > 1) == (want > 1) else "keys"
                return Fault("rope.gain.one_side", fault.change, {"side": side, "asked": want})
        is_late = {"near", "after_half"} & wrong and not {"short", "after_half_short"} & wrong
        if not is_late or not fault.code.startswith("rope.precision."):
            return fault
        short = next(s for s in seen if s.case.kind == "short")
        models = [{**self.truth, **choice.change, **fault.change} for choice in (Choice({}), *self.free())]
        if any((self.off(short, self.predict(m, short.case), m) <= 1).all() for m in models):
            return fault
        return replace(fault, code="rope.precision.cache_rebuilt_in_low_precision")

    def smallest(self, seen: Seen, predicted: Array, off: Array) -> dict[str, Any]:
        """Return the first position at which an answer is wrong."""
        bad = np.argwhere(off > 1).tolist() if off.ndim == 4 else []
        if not bad:
            return {"case": seen.case.words}
        side, _, at, lane = min(bad, key=lambda row: (row[2], row[0], row[3]))
        pos = seen.case.args[0].pos
        case = {"head_dim": self.asked.head_dim, "positions": list(pos[at // 4 * 4 :][:4]), "position": pos[at]}
        return {**case, "side": ("queries", "keys")[side], "dimension": lane, "call": seen.case.kind}

    def measured(self, seen: Sequence[Seen], model: Model) -> dict[str, Any]:
        """Return the pairing of dimensions."""
        return {"layout": model["pairing"]}

    def not_judged(self, seen: Sequence[Seen]) -> list[str]:
        """Return the parts that were not judged."""
        said = list(self.unseen)
        if self.returned in HALF:
            said.append(f"what {self.returned} does not show, in which float32 vectors are returned")
        last = max((s.case.args[0].pos[-1] for s in seen), default=0)
        if last and (self.asked.max_positions or 0) > last + 1:
            said.append(f"positions beyond {last:,}")
        if self.convention in rotation_calls.BELOW and self.asked.trained is not None:
            said.append("negative positions: frequencies depend on the length of the text")
        if self.asked.activation_dtype is None:
            said.append("half precision: no activation_dtype is declared")
        return said


def _gain_at_start(model: Model) -> float:
    """Return the gain of position 0."""
    gain = model["gain"](1) if callable(model["gain"]) else model["gain"]
    return 1.0 if model["gained"] == "sin" else float(np.ravel(gain)[0]) ** int(model["times"])


def _kinds(asked: Asked) -> list[Kind]:
    """Return the faults that show in which calls are wrong."""
    kept = "rope.dynamic.state_kept" if asked.scaling == "dynamic" else "rope.state_kept"
    half = asked.activation_dtype if asked.activation_dtype in HALF else ""
    return [
        kind("rope.decode.single_token_path", "single", "short near offsets"),
        kind("rope.batch.rows_share", "rows", "short near offsets"),
        kind("rope.batch.first_length", "behind", "short near tail"),
        kind("rope.positions.restart", "restart", "short near offsets"),
        kind("rope.heads.grouped", "grouped", "short near"),
        kind("rope.offset.ignored_by_cache", "offsets", "short near single"),
        kind(kept, "again", "short near"),
        kind("rope.precision.cache_rebuilt_in_low_precision", "after_half", f"short near after_half_short {half}"),
        kind("rope.precision.table_kept_in_half", "after_half", f"short near {half}"),
        kind("rope.heads.mixed", "sized", "short near"),
        kind("rope.input.strides", "strided", "short near"),
        kind("rope.grad.not_inverse", "grad", "short near"),
    ]


def _two_vectors(head_dim: int) -> Tensor:
    """Return two vectors whose entries have similar sizes, exceed any clamp, and are not exact in half precision."""
    generator = torch.Generator().manual_seed(3)
    size = 8 + 16 * torch.rand(2, head_dim, generator=generator)
    return size * (2 * torch.randint(0, 2, (2, head_dim), generator=generator) - 1)


family = Rotation
