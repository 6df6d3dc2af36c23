"""Layers that rotate: run texts near, far, and at position 0, and judge queries and keys of each layer."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from posenc import config, positions
from posenc.compose import per_layer
from posenc.config import kinds
from posenc.config.model import Model
from posenc.configured import by_layer
from posenc.encoding import Encoding, Placed
from posenc.families import Rotary
from posenc.verify.engine import Fault, judge
from posenc.verify.engine.records import FLOAT32
from posenc.verify.models.layers import Layer, findings, named
from posenc.verify.models.rotation import Rotation, View, fault, geometric, of_text
from posenc.verify.models.scores import SAME, Expected, of_layer, of_scale, split
from posenc.verify.models.watching import TOKENS, Attention, Watched, made_of, plainly, run, takes, text
from posenc.verify.report import Findings

_LONGEST = 1 << 20  # positions; beyond, float32 angles of the fast pairs are meaningless
Made = tuple[float, Tensor] | None  # the factor of a module's output, and its columns
_SIDES = {"q": "queries", "k": "keys"}


class Attended(NamedTuple):
    """Queries and keys (2, n_heads, seq, head_dim) of one attention."""

    q: Tensor
    k: Tensor
    scale: float | None  # the factor of their products
    made: Sequence[Made]  # of the rotated dimensions of q and of k


class Run:
    """Two texts at given positions, the right rotation of each layer, and the inputs of its attention."""

    def __init__(self, model: Any, ids: Tensor, pos: Tensor | None, fields: dict[str, Any]) -> None:
        self._splits, self.pos = pos is None, torch.arange(ids.shape[1]) if pos is None else pos
        self.layers = per_layer(by_layer(fields, pairing=None, seq_len=int(self.pos.max()) + 1))
        on_axes = positions.on_each_axis(self.pos[None], self.layers.n_axes)
        self.placed: Any = self.layers.place(on_axes, dtype=torch.float64)
        self.of: defaultdict[int, list[Attended]] = defaultdict(list)  # by layer
        self.eps = max(torch.finfo(next(model.parameters()).dtype).eps, FLOAT32)
        given = None if pos is None else pos.expand(ids.shape).to(ids.device)
        with Watched(model, self._keep, blank=True):
            run(model, {"input_ids": ids}, position_ids=given, use_cache=False)

    def layer(self, index: int) -> tuple[Encoding, Placed, Rotary | None]:
        """Return a layer's encoding, its placed positions, and the rotation among its parts."""
        encoding, placed = self.layers.layer(index, self.placed)
        return encoding, placed, next((e for e, _ in encoding.leaves(placed) if isinstance(e, Rotary)), None)

    def _keep(self, one: Attention) -> None:
        if not one.q.shape[-2] == one.k.shape[-2] == len(self.pos) or not 0 <= one.layer < len(self.layers):
            return
        made: list[Made] = [None, None]
        if (rope := self.layer(one.layer)[2]) is not None:
            part = slice(rope.rotary_dim) if rope.rotary_side == "first" else slice(-rope.rotary_dim, None)
            made = [made_of(x[:, 0, :, part], one.outputs) for x in (one.q, one.k)]
        parts = split(one) if self._splits else None
        self.of[one.layer].append(Attended(one.q.cpu(), one.k.cpu(), parts and parts[0], made))

    def columns(self, index: int) -> list[Tensor]:
        """Return the columns of a module's output that a layer rotates, as far as they were found."""
        return [made[1] for one in self.of[index] for made in one.made if made is not None]


def check(model: nn.Module, opened: Model, fields: dict[str, Any], order: Sequence[str], room: int) -> Findings:
    """Judge every layer of a model; `order`: their kinds, `room`: how many positions the configuration allows."""
    if not takes(model, "position_ids"):
        return Findings(unknown="the model accepts no position_ids, so its rotation cannot be measured")
    n, longest = min(room, TOKENS), min(room, _LONGEST)
    ids = text(model, n)
    places: dict[str, Tensor | None] = {"origin": torch.zeros(n, dtype=torch.long), "near": None}
    if longest > n:
        grown = torch.logspace(0, math.log10(longest - 1), n, dtype=torch.float64).round().long()
        places["far"] = torch.maximum(grown, torch.arange(n)).clamp_max(longest - 1)
    with plainly(model):
        runs = {name: Run(model, ids, pos, fields) for name, pos in places.items()}
    calls = {index: len(found) for index, found in runs["near"].of.items()}
    if calls and min(calls.values()) > 1 and max(calls) + 1 == len(calls) < len(order):
        order = order[: len(calls)]  # HRM runs the same layers again, with one entry each time
    layers = [_judge(index, order, runs, opened, fields) for index in range(len(order))]
    measured = {"model_type": opened.model_type, "tokens": n, "longest_position": longest - 1}
    found = findings(layers, Rotation.definition, measured)
    ropes = [runs["near"].layer(index)[2] for index in range(len(order))]
    paired = [index for index, rope in enumerate(ropes) if rope is not None and rope.pairing == "interleaved"]
    if unseen := [index for index in paired if not runs["origin"].columns(index)]:
        found.not_judged[f"which dimensions are pairs in {named(unseen)}"] = "no module returns its unrotated vectors"
    return found


def _judge(index: int, order: Sequence[str], runs: dict[str, Run], opened: Model, fields: dict[str, Any]) -> Layer:
    """Judge the rotation of a layer, and the scale of its scores."""
    near, origin, rope = runs["near"], runs["origin"], runs["near"].layer(index)[2]
    views = [view for name in ("near", "far") if name in runs for view in _views(index, runs[name], origin)]
    found = Layer(index, order[index], "pass" if rope else "no rotation")
    if rope is not None:
        found.numbers["configured_gain"] = rope.gain()
        if not views:
            found.note("cannot tell", "the inputs of its attention were not visible")
    if not all(np.isfinite(view.got).all() for view in views):
        said = {"said": "returns numbers that are not finite", "evidence": 1.0}
        found.wrong([Fault("model.not_finite", {}, said)])
        return found
    if views:
        known, order_seen = _known(index, order, runs, fields), bool(origin.columns(index))
        verdict = judge(Rotation(views, known, order_seen=order_seen), None)
        if verdict.status == "equivalent":
            found.note("equivalent", verdict.because)
        only = f" ({_SIDES[min(verdict.wrong)]} only)" if len(verdict.wrong) == 1 else ""
        found.wrong(replace(f, values={**f.values, "said": f.values["said"] + only}) for f in verdict.faults)
    if views and rope is not None:
        errors, pos = np.stack([view.errors() for view in views]), np.stack([view.pos for view in views]).astype(int)
        *at, pair = (int(n) for n in np.unravel_index(np.abs(errors).argmax(), errors.shape))
        error, mean = float(np.abs(errors).max()), np.cos(errors).mean(-1)
        found.numbers |= {"angle_error": error, "position": int(pos[*at]), "pair": pair, "mean_cos": float(mean.mean())}
        found.cosines = list(zip(pos[:, ::15].ravel().tolist(), mean[:, ::15].ravel().tolist(), strict=True))
    for one, start in zip(near.of[index][:1], origin.of[index], strict=False):
        _judge_sizes(found, one, start, of_layer(opened, order[index], one.q.shape[-1]), rope)
    return found


def _views(index: int, run: Run, origin: Run) -> Iterator[View]:
    """Yield the queries and keys of a layer, with those at position 0 rotated as they should be."""
    (encoding, placed, rope), (plain, at_start, _) = run.layer(index), origin.layer(index)
    # columns two apart: the code sorts even dimensions before odd ones, and rotates halves
    sorts = any(bool(columns[1] - columns[0] == 2) for columns in origin.columns(index))
    for one, start in zip(run.of[index], origin.of[index], strict=False):
        if rope is not None and rope.head_dim != one.q.shape[-1]:
            return
        want = encoding.rotate(*plain.rotate(start.q, start.k, at_start, inverse=True), placed)
        for side, x, y, got in zip("qk", (start.q, start.k), want, (one.q, one.k), strict=True):
            # the encoding includes a scale of queries; one that counts tokens applies at position 0 too
            as_before = rope is None and torch.allclose(got, x, rtol=1e-3, atol=1e-6)
            size = x.norm(dim=-1, keepdim=True).clamp_min(1e-30)
            rows = x if as_before else x * y.norm(dim=-1, keepdim=True) / size
            yield View(
                side=side,
                pos=run.pos.double().numpy(),
                x=rows.flatten(0, 1).numpy(),
                got=got.flatten(0, 1).numpy(),
                freq=np.zeros(0) if rope is None else of_text(rope),
                pairing="half" if rope is None or sorts else rope.pairing,
                last=rope is not None and rope.rotary_side != "first",
                eps=run.eps,
            )


def _judge_sizes(found: Layer, one: Attended, start: Attended, expected: Expected, rope: Rotary | None) -> None:
    """Judge the gain of the rotation, which shows at position 0, and the scale of scores."""
    # a module whose output was already rotated shows no gain
    gains = [made[0] for made, later in zip(start.made, one.made, strict=True) if made is not None and later is None]
    want, scale = 1.0 if rope is None else rope.gain(), one.scale
    gain = max(gains, key=lambda gain: abs(gain / want - 1), default=None)
    found.numbers |= {"gain": gain, "scale": scale, "configured_scale": expected.scale}
    off = 0.0 if gain is None else abs(gain / want - 1)
    if gain is None and abs(want - 1) > SAME and found.status == "pass":
        found.note("cannot tell", f"its angles are right, but the gain {want:.6g} could not be measured")
    whole = math.prod(gain / want for gain in gains) * (scale or 0.0)
    if off > SAME and rope is not None and math.isclose(whole, expected.scale, rel_tol=SAME):
        if math.isclose(scale or 0.0, 1.0, rel_tol=SAME):  # queries and keys are divided, not scores
            found.numbers |= {"gain": want, "scale": expected.scale}
            return
        if rope.rotary_dim == one.q.shape[-1] and not found.faults:
            found.note(
                "equivalent", "multiplies scores and rotated vectors by other numbers, whose product is the same"
            )
            return
    if off > SAME and not found.faults:
        words = f"multiplies rotated vectors by {gain:.6g}, but its configuration has {want:.6g}"
        found.wrong([fault("gain", words, evidence=off)])
    found.wrong([] if scale is None else of_scale(scale, expected))


def _known(index: int, order: Sequence[str], runs: dict[str, Run], fields: dict[str, Any]) -> Iterator[Fault]:
    """Yield the known faults of a layer's rotation."""
    near, rope = runs["near"], runs["near"].layer(index)[2]
    if rope is not None:
        said = "does not rotate queries and keys by the given positions, as its configuration declares"
        yield fault("missing", said, freq=np.zeros(rope.rotary_dim // 2))
        said = "keeps the frequencies of short texts for positions beyond the trained length"
        yield fault("length", said, freq=of_text(rope))
    for i, kind in enumerate(order):
        other, which = near.layer(i)[2], near.layers.index
        if other is not None and which[i] != which[index] and which.index(which[i]) == i:
            code, how = ("unexpected", "should not") if rope is None else ("other_kind", "should like its own kind")
            said = f"rotates like layers of kind {kind}, but {how}"
            yield fault(code, said, evidence=1.0, freq=of_text(other), pairing=other.pairing)
    if rope is None or not kinds.rotates(order[index]):
        return
    swapped = "interleaved" if rope.pairing == "half" else "half"
    yield fault("pairing", f"uses the pairing {swapped}, but should use {rope.pairing}", pairing=swapped)
    read, d, n = config.rotary(fields, order[index]), rope.head_dim, rope.rotary_dim
    said = f"rotates by base {read.base:g} without the scaling {read.rope_type} of its configuration"
    yield fault("scaling", said, freq=geometric(read.base, n // 2))
    for width in {d, d // 2, d // 4, n // 2} - {n}:
        if width > 1 and width % 2 == 0:
            said = f"rotates {width} dimensions, but its configuration has {n}"
            yield fault("width", said, evidence=abs(width - n), freq=geometric(read.base, width // 2))
