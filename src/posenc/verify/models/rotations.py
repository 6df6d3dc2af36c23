"""Layers that rotate: texts run near, far, and at position 0, and what each layer makes of them is judged."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from posenc import config, positions
from posenc.compose import PerLayer
from posenc.config import kinds
from posenc.config.model import Model
from posenc.encoding import Encoding, Placed
from posenc.families import Rotary
from posenc.verify.engine import Fault, judge
from posenc.verify.engine.records import FLOAT32
from posenc.verify.models.layers import Judged, Layer, findings, named
from posenc.verify.models.rotation import RULE, Rotation, View, fault, geometric, of_text
from posenc.verify.models.said import Said, of_layer
from posenc.verify.models.scores import of_scale, split
from posenc.verify.models.watching import Attention, made_of, plainly, takes, text, watched
from posenc.verify.report import Findings

TOKENS = 256
_LONGEST = 1 << 20  # positions; beyond it float32 angles say nothing of the fast pairs
_UNKNOWN = 8192  # the longest position of a file that names none
_SAME = 1e-3
_SIDES = {"q": "queries", "k": "keys"}


@dataclass(frozen=True)
class Attended:
    """One attention of a layer in a run.

    Args:
        layer: The number of the layer.
        q: Queries (2, n_heads, seq, head_dim).
        k: Keys.
        scale: What their products are multiplied by; None where that was not seen.
        made: By side, what an output of a module was multiplied by to be the dimensions that rotate, and its columns.
    """

    layer: int
    q: Tensor
    k: Tensor
    scale: float | None
    made: Mapping[str, tuple[float, Tensor] | None]


class Run:
    """Two texts at positions, what should rotate each layer there, and what its attention received."""

    def __init__(self, name: str, model: Any, ids: Tensor, pos: Tensor | None, fields: dict[str, Any]) -> None:
        self.name, self.pos = name, torch.arange(TOKENS) if pos is None else pos
        self.layers = PerLayer.from_config(fields, seq_len=int(self.pos.max()) + 1)
        on_axes = positions.on_each_axis(self.pos[None], self.layers.n_axes)
        self.placed: Any = self.layers.place(on_axes, dtype=torch.float64)
        self.attended: list[Attended] = []
        self.eps = max(torch.finfo(next(model.parameters()).dtype).eps, FLOAT32)
        given: dict[str, Any] = {} if pos is None else {"position_ids": pos.expand(len(ids), -1).to(ids.device)}
        with watched(model, self._keep, blank=True):
            model(input_ids=ids, **given, **({"use_cache": False} if takes(model, "use_cache") else {}))

    def layer(self, index: int) -> tuple[Encoding, Placed, Rotary | None]:
        """Return a layer's encoding, with what was placed for it, and what rotates among its parts."""
        encoding, placed = self.layers.layer(index, self.placed)
        return encoding, placed, next((e for e, _ in encoding.leaves(placed) if isinstance(e, Rotary)), None)

    def _keep(self, one: Attention) -> None:
        if not one.q.shape[-2] == one.k.shape[-2] == TOKENS or not 0 <= one.layer < len(self.layers):
            return
        rope, made = self.layer(one.layer)[2], {}
        for side, x in (("q", one.q), ("k", one.k)):
            n = 0 if rope is None else rope.rotary_dim
            rotating = x[:, 0, :, :n] if rope is None or rope.rotary_side == "first" else x[:, 0, :, -n:]
            made[side] = made_of(rotating, one.outputs) if n else None
        parts = split(one) if self.name == "near" else None
        self.attended.append(Attended(one.layer, one.q.cpu(), one.k.cpu(), parts and parts[0], made))

    def of(self, index: int) -> list[Attended]:
        """Return the attentions of a layer."""
        return [one for one in self.attended if one.layer == index]


def check(model: nn.Module, opened: Model, fields: dict[str, Any], order: Sequence[str]) -> Findings:
    """Judge every layer of a model; `order`: their kinds, as its configuration has them."""
    ids = text(model, TOKENS)
    places: dict[str, Tensor | None] = {"near": None}
    if takes(model, "position_ids"):
        places = {"origin": torch.zeros(TOKENS, dtype=torch.long), "near": None}
        if (longest := min(opened.size("max_len") or _UNKNOWN, _LONGEST)) > TOKENS:
            grown = torch.logspace(0, math.log10(longest - 1), TOKENS, dtype=torch.float64).round().long()
            places["far"] = torch.maximum(grown, torch.arange(TOKENS)).clamp_max(longest - 1)
    with plainly(model):
        runs = {name: Run(name, model, ids, pos, fields) for name, pos in places.items()}
    calls = Counter(one.layer for one in runs["near"].attended)
    if calls and min(calls.values()) > 1 and max(calls) + 1 == len(calls) < len(order):
        order = order[: len(calls)]  # HRM runs the same layers again, an entry each time
    judged = [_judge(index, order, runs, opened, fields) for index in range(len(order))]
    longest = max(int(run.pos.max()) for run in runs.values())
    measured = {"model_type": opened.model_type, "tokens": TOKENS, "longest_position": longest}
    found = findings(judged, Rotation.definition, measured)
    if unseen := [one.layer.layer for one in judged if one.pairs_unseen]:
        found.not_judged[f"which dimensions are pairs in {named(unseen)}"] = "no module returns what is rotated there"
    return found


def _judge(index: int, order: Sequence[str], runs: dict[str, Run], opened: Model, fields: dict[str, Any]) -> Judged:
    """Judge what rotates a layer, and what its scores are multiplied by."""
    near = runs["near"]
    rope = near.layer(index)[2]
    views = [v for name in ("near", "far") if name in runs for v in _views(index, runs[name], runs.get("origin"))]
    found = Judged(Layer(index, order[index], "pass" if rope else "no rotation"), views=views)
    if rope is not None:
        found.note(configured_gain=rope.gain())
        if not views:
            found.note(status="cannot tell", said="what its attention receives was not seen")
    if views and not all(np.isfinite(view.got).all() for view in views):
        found.wrong([Fault("model.not_finite", {}, {"said": "returns numbers that are not finite", "evidence": 1.0})])
        return found
    if views:
        made = [one.made["q"] or one.made["k"] for one in runs["origin"].of(index)]
        found.pairs_unseen = rope is not None and rope.pairing != "half" and not any(made)
        verdict = judge(Rotation(views, _known(index, order, runs, fields), order_seen=any(made)), None)
        if verdict.status == "equivalent":
            found.note(status="equivalent", said=verdict.because)
        only = f" ({_SIDES[min(verdict.wrong)]} only)" if len(verdict.wrong) == 1 else ""
        found.wrong([replace(f, values={**f.values, "said": f.values["said"] + only}) for f in verdict.faults])
        if rope is not None:
            found.note(**_numbers(views))
    if "origin" in runs and near.of(index):
        one, start = near.of(index)[0], runs["origin"].of(index)[0]
        found.wrong(_of_sizes(found, one, start, of_layer(opened, order[index], one.q.shape[-1]), rope))
    return found


def _views(index: int, run: Run, origin: Run | None) -> Iterator[View]:
    """Yield queries and keys of a layer, as they should become from those at position 0, and as they are."""
    encoding, placed, rope = run.layer(index)
    for one, start in zip(run.of(index), origin.of(index) if origin is not None else (), strict=False):
        if origin is None or (rope is not None and rope.head_dim != one.q.shape[-1]):
            return
        plain, at_start, _ = origin.layer(index)
        q, k = start.q, start.k
        want = encoding.rotate(*plain.rotate(q, k, at_start, inverse=True), placed)
        made = [pair[1] for pair in start.made.values() if pair is not None]
        # even dimensions come before odd ones: the code sorts them, and rotates halves
        sorts = any(bool(columns[1] - columns[0] == 2) for columns in made)
        for side, x, y, got in zip("qk", (q, k), want, (one.q, one.k), strict=True):
            # what lengthens queries is in the encoding; where it grows by the count of tokens, at the start too
            as_before = rope is None and torch.allclose(got, x, rtol=1e-3, atol=1e-6)
            size = x.norm(dim=-1, keepdim=True).clamp_min(1e-30)
            rows = x if as_before else x * y.norm(dim=-1, keepdim=True) / size
            yield View(
                run=run.name,
                side=side,
                pos=run.pos.double().numpy(),
                x=rows.flatten(0, 1).numpy(),
                got=got.flatten(0, 1).numpy(),
                freq=np.zeros(0) if rope is None else of_text(rope),
                pairing="half" if rope is None or sorts else rope.pairing,
                last=rope is not None and rope.rotary_side != "first",
                eps=run.eps,
            )


def _of_sizes(found: Judged, one: Attended, start: Attended, said: Said, rope: Rotary | None) -> list[Fault]:
    """Return what is wrong with the gain of what rotates, which is seen at position 0, and with the scale of scores."""
    # a module that ends with what was rotated shows no gain
    gains = [pair[0] for side, pair in start.made.items() if pair is not None and one.made[side] is None]
    want, scale = 1.0 if rope is None else rope.gain(), one.scale
    gain = max(gains, key=lambda gain: abs(gain / want - 1), default=None)
    found.note(gain=gain, scale=scale, configured_scale=said.scale)
    of_gain, faults = [], [] if scale is None else of_scale(scale, said)
    if gain is not None and abs(gain / want - 1) > _SAME:
        words = f"multiplies what it rotates by {gain:.6g}, where its configuration says {want:.6g}"
        of_gain = [Fault(RULE + "gain", {}, {"said": words, "evidence": abs(gain / want - 1)})]
    elif gain is None and abs(want - 1) > _SAME and found.layer.status == "pass":
        found.note(status="cannot tell", said=f"its angles are right; whether it multiplies by {want:.6g} was not seen")
    whole = math.prod(gain / want for gain in gains) * (scale or 0.0)
    if of_gain and rope is not None and math.isclose(whole, said.scale, rel_tol=_SAME):
        if scale is not None and math.isclose(scale, 1.0, rel_tol=_SAME):  # queries and keys are divided, not scores
            found.note(gain=want, scale=said.scale)
            return []
        if rope.rotary_dim == one.q.shape[-1] and not found.faults:
            words = "multiplies scores and what it rotates by other numbers, whose product is the same"
            found.note(status="equivalent", said=words)
            return []
    return [*([] if found.faults else of_gain), *faults]


def _numbers(views: Sequence[View]) -> dict[str, Any]:
    """Return the largest angle error, where it is most beyond rounding, and the mean cosine."""
    errors = [np.abs(view.errors()) for view in views]
    excess = [error / view.allowed(view.freq) for error, view in zip(errors, views, strict=True)]
    most = max(range(len(views)), key=lambda i: excess[i].max())
    at, pair = np.unravel_index(excess[most].argmax(), excess[most].shape)
    return {
        "angle_error": max(float(error.max()) for error in errors),
        "position": int(views[most].pos[at]),
        "pair": int(pair),
        "mean_cos": float(np.concatenate([np.cos(error) for error in errors]).mean()),
    }


def _known(index: int, order: Sequence[str], runs: dict[str, Run], fields: dict[str, Any]) -> Iterator[Fault]:
    """Yield the known faults of a layer's rotation."""
    near, rope = runs["near"], runs["near"].layer(index)[2]
    if rope is not None:
        said = "does not rotate queries and keys by the positions that it is given, where its configuration says so"
        yield fault("missing", said, freq=np.zeros(rope.rotary_dim // 2))
        far = runs["far"].layer(index)[2] if "far" in runs else None
        if far is not None and not torch.equal(far.frequencies(), rope.frequencies()):
            said = "keeps the frequencies of short texts for positions beyond the trained length"
            yield fault("length", said, freq=of_text(rope))
    for i, kind in enumerate(order):
        other, which = near.layer(i)[2], near.layers.index
        if other is not None and which[i] != which[index] and which.index(which[i]) == i:
            said = (
                f"rotates as layers of kind {kind} do, where it should {'not' if rope is None else 'as its own kind'}"
            )
            code = "unexpected" if rope is None else "other_kind"
            yield fault(code, said, {"evidence": 1.0}, freq=of_text(other), pairing=other.pairing)
    if rope is None:
        return
    swapped = "interleaved" if rope.pairing == "half" else "half"
    yield fault("pairing", f"rotates pairs as {swapped}, where it should be {rope.pairing}", pairing=swapped)
    if not kinds.turns(order[index]):
        return
    read, d = config.rotary(fields, order[index]), rope.head_dim
    if read.rope_type != "default":
        said = f"rotates by base {read.base:g} only, without the scaling {read.rope_type} of its configuration"
        yield fault("scaling", said, freq=geometric(read.base, rope.rotary_dim // 2))
    for width in (d, d // 2, d // 4, rope.rotary_dim // 2):
        if width > 1 and width % 2 == 0 and width != rope.rotary_dim:
            said = f"rotates {width} dimensions, where its configuration says {rope.rotary_dim}"
            off = {"evidence": abs(width - rope.rotary_dim)}
            yield fault("width", said, off, freq=geometric(read.base, width // 2))
