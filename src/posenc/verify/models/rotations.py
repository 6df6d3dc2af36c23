"""Layers that rotate: a text runs near, far, and at position 0, and what each layer makes of it is judged."""

import math
from collections import Counter
from collections.abc import Sequence
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
from posenc.verify.models.layers import Judged, Layer, findings
from posenc.verify.models.rotation import RULE, Others, Rotation, View, of_text
from posenc.verify.models.said import of_layer
from posenc.verify.models.scores import Attention
from posenc.verify.models.watching import Call, Seen, Watcher, takes
from posenc.verify.report import Findings

TOKENS = 256
_LONGEST = 1 << 20  # positions; beyond it float32 angles say nothing of the fast pairs
_UNKNOWN = 8192  # the longest position of a file that names none
_SAME = 1e-3


@dataclass(frozen=True)
class Run:
    """Two texts at positions, and what should rotate each layer there."""

    name: str
    pos: Tensor
    seen: Seen
    layers: PerLayer
    placed: Any

    def layer(self, index: int) -> tuple[Encoding, Placed, Rotary | None]:
        """Return a layer's encoding, with what was placed for it, and what rotates among its parts."""
        encoding, placed = self.layers.layer(index, self.placed)
        return encoding, placed, next((e for e, _ in encoding.leaves(placed) if isinstance(e, Rotary)), None)


def check(model: nn.Module, opened: Model, fields: dict[str, Any], order: Sequence[str]) -> Findings:
    """Judge every layer of a model; `order`: their kinds, as its configuration has them."""
    runs = _run_all(model, opened, fields)
    calls = Counter(a.layer for a in runs["near"].seen.attended)
    if calls and min(calls.values()) > 1 and max(calls) + 1 == len(calls) < len(order):
        order = order[: len(calls)]  # HRM runs the same layers again, an entry each time
    judged = [_Layer(index, order, runs, opened, fields).judge() for index in range(len(order))]
    longest = max(int(run.pos.max()) for run in runs.values())
    measured = {"model_type": opened.model_type, "tokens": TOKENS, "longest_position": longest}
    return findings(judged, Rotation.definition, measured)


def text(model: nn.Module, tokens: int) -> Tensor:
    """Return two texts (2, tokens) that differ in nearly every token."""
    table = model.get_input_embeddings()  # type: ignore[operator]
    vocab = int(getattr(table, "num_embeddings", 0) or table.weight.shape[0])
    low = min(16, vocab // 2)  # the first ones are often special
    ids = torch.randint(low, vocab, (2, tokens), generator=torch.Generator().manual_seed(0))
    return ids.to(next(model.parameters()).device)


def _run_all(model: nn.Module, opened: Model, fields: dict[str, Any]) -> dict[str, Run]:
    """Run texts near, far, and with all tokens at position 0, as far as a model takes positions."""
    watcher, ids, was = Watcher(model), text(model, TOKENS), model.training
    places: dict[str, Tensor | None] = {"near": None}
    if takes(model, "position_ids"):
        places = {"origin": torch.zeros(TOKENS, dtype=torch.long), "near": None}
        if (longest := min(opened.size("max_len") or _UNKNOWN, _LONGEST)) > TOKENS:
            grown = torch.logspace(0, math.log10(longest - 1), TOKENS, dtype=torch.float64).round().long()
            places["far"] = torch.maximum(grown, torch.arange(TOKENS)).clamp_max(longest - 1)
    runs = {}
    model.eval()
    try:
        with watcher.watching():
            for name, given in places.items():
                seen, pos = watcher.run(ids, given), torch.arange(TOKENS) if given is None else given
                layers = PerLayer.from_config(fields, seq_len=int(pos.max()) + 1)
                placed = layers.place(positions.on_each_axis(pos[None], layers.n_axes), dtype=torch.float64)
                runs[name] = Run(name, pos, seen, layers, placed)
    finally:
        model.train(was)
    return runs


class _Layer:
    """One layer in all runs."""

    def __init__(self, index: int, order: Sequence[str], runs: dict[str, Run], opened: Model, fields: Any) -> None:
        self.index, self.order, self.kind, self.opened, self.fields = index, order, order[index], opened, fields
        self.runs, self.near = runs, runs["near"]
        self.rope = self.near.layer(index)[2]
        self.attended = self._own(self.near.seen.attended)
        self.calls = self._calls(self.near)
        self.sorts = any(self._is_sorted(call) for call, _, _ in self.calls)

    def _own(self, calls: Sequence[Call]) -> list[Call]:
        return [call for call in calls if call.layer == self.index]

    def _calls(self, run: Run) -> list[tuple[Call, str, float]]:
        """Return the calls of rotating functions whose result reaches attention: as which side, multiplied by what."""
        calls = self._own(run.seen.rotated)
        if not self.attended:
            return [(call, f"call {number + 1}", 1.0) for number, call in enumerate(calls)]
        found = [(call, *_arrives(call, self._own(run.seen.attended))) for call in calls]
        return [(call, side, factor) for call, side, factor in found if side]

    def judge(self) -> Judged:
        """Judge what rotates it, and what its scores are multiplied by."""
        found = self._rotation(
            [v for name in ("near", "far") if name in self.runs for v in self._views(self.runs[name])]
        )
        for one in self.attended:
            if one.scale is not None and not found.faults[1:]:
                self._scale(found, one, one.scale)
        return found

    def _rotation(self, views: list[View]) -> Judged:
        """Judge what rotates it."""
        rope = self.rope
        found = Judged(Layer(self.index, self.kind, "no rotation" if rope is None else "pass"), views=views)
        if not views:
            if rope is not None or self._own(self.near.seen.rotated):
                words = "what its attention receives was not seen"
                found.note(status="cannot tell", configured_gain=None if rope is None else rope.gain(), said=words)
            return found
        if not all(np.isfinite(view.got).all() for view in views):
            found.wrong([Fault("model.not_finite", {}, {"said": "returns numbers that are not finite", "evidence": 1.0})])
            return found
        verdict = judge(Rotation(views, rope, self._others()), None)
        if verdict.status == "equivalent":
            found.note(status="equivalent", said=verdict.because)
        one = {("q",): " (queries only)", ("k",): " (keys only)"}.get(tuple(verdict.wrong), "")
        one = one if {view.side for view in views} > verdict.wrong else ""
        found.wrong([replace(f, values={**f.values, "said": f.values["said"] + one}) for f in verdict.faults])
        if rope is not None:
            found.note(configured_gain=rope.gain(), **_numbers(views))
            self._judge_gain(found, rope.gain())
        return found

    def _judge_gain(self, found: Judged, want: float) -> None:
        """Judge what rotating functions multiply by, where nothing else is wrong."""
        gains = {side: self._gain(call) for call, side, _ in self.calls}
        if not gains:
            if abs(want - 1) > _SAME and found.layer.status == "pass":
                words = f"its angles are right; whether it multiplies by {want:.6g} was not seen"
                found.note(status="cannot tell", said=words)
            return
        side = max(gains, key=lambda side: abs(gains[side] / want - 1))
        found.note(gain=gains[side])
        if not found.faults and (off := abs(gains[side] / want - 1)) > _SAME:
            said = f"multiplies what it rotates by {gains[side]:.6g}, where its configuration says {want:.6g}"
            found.wrong([Fault(RULE + "gain", {}, {"said": said, "evidence": off}, {"side": side})])

    def _views(self, run: Run) -> list[View]:
        """Return what one run showed: what attention received, or else what rotating functions did."""
        encoding, placed, rope = run.layer(self.index)
        views, origin = [], self.runs.get("origin")
        starts = [] if origin is None else self._own(origin.seen.attended)
        for one, before in zip(self._own(run.seen.attended), starts, strict=False):
            if origin is None or (rope is not None and rope.head_dim != one.a.shape[-1]):
                break
            start, at_start, _ = origin.layer(self.index)
            q, k = before.a.double().cpu(), before.b.double().cpu()
            want = encoding.rotate(*start.rotate(q, k, at_start, inverse=True), placed)
            for side, x, y, got in zip("qk", (q, k), want, (one.a, one.b), strict=True):
                # what lengthens queries is in the encoding; where it grows by the count of tokens, at the start too
                as_before = rope is None and torch.allclose(got.double().cpu(), x, rtol=1e-3, atol=1e-6)
                grown = (
                    1.0 if as_before else y.norm(dim=-1, keepdim=True) / x.norm(dim=-1, keepdim=True).clamp_min(1e-30)
                )
                views.append(self._view(run, side, x * grown, got))
        if views or rope is None:
            return views
        for call, side, _ in self._calls(run):
            if call.a.shape[-1] in (rope.head_dim, rope.rotary_dim):
                x, got, lanes = call.a.double(), call.b.double().clone(), self._lanes(call)
                got[..., lanes] /= self._gain(call)
                if self.sorts:
                    x = torch.cat([x[..., 0::2], x[..., 1::2]], -1)
                views.append(self._view(run, side, x, got))
        return views

    def _view(self, run: Run, side: str, x: Tensor, got: Tensor) -> View:
        rope = run.layer(self.index)[2]
        rows = [t.double().cpu().flatten(0, 1).numpy() for t in (x, got)]
        freq = np.zeros(0) if rope is None else of_text(rope)
        pairing = "half" if rope is None or self.sorts else rope.pairing
        last, eps = rope is not None and rope.rotary_side != "first", float(torch.finfo(got.dtype).eps)
        return View(run.name, side, run.pos.double().numpy(), *rows, freq, pairing, last, max(eps, FLOAT32))

    def _lanes(self, call: Call) -> slice:
        """Return the dimensions of a rotating function's tensors that rotate."""
        assert self.rope is not None
        width, n = call.a.shape[-1], self.rope.rotary_dim
        return slice(width - n, width) if self.rope.rotary_side != "first" else slice(n)

    def _gain(self, call: Call) -> float:
        lanes = self._lanes(call)
        return float(call.b[..., lanes].double().norm() / call.a[..., lanes].double().norm().clamp_min(1e-30))

    def _is_sorted(self, call: Call) -> bool:
        """Return whether even dimensions are sorted before odd ones, seen at position 0, where nothing rotates."""
        if self.rope is None or self.rope.pairing != "interleaved" or call.a.shape[-1] != self.rope.rotary_dim:
            return False
        x, y = call.a[:, :, 0].double(), call.b[:, :, 0].double() / self._gain(call)
        ordered = torch.cat([x[..., 0::2], x[..., 1::2]], -1)
        return bool((y - ordered).norm() < _SAME * x.norm() < (y - x).norm())

    def _others(self) -> Others:
        """Return what else may rotate this layer."""
        ropes: dict[str, Rotary] = {}
        for i, kind in enumerate(self.order):
            rope, index = self.near.layer(i)[2], self.near.layers.index
            if rope is not None and (kind != self.kind or index[i] != index[self.index]):
                ropes.setdefault(kind, rope)
        moves = frozenset(side for call, side, _ in self.calls if (call.b - call.a).norm() > _SAME * call.a.norm())
        if not kinds.turns(self.kind):
            return Others(ropes, counts=moves)
        said, short = config.rotary(self.fields, self.kind), None
        far = self.runs["far"].layer(self.index)[2] if "far" in self.runs else None
        if far is not None and self.rope is not None and not torch.equal(far.frequencies(), self.rope.frequencies()):
            short = of_text(self.rope)
        return Others(ropes, said.base, None if said.rope_type == "default" else said.rope_type, short, moves)

    def _scale(self, found: Judged, one: Call, known: float) -> None:
        """Judge what scores are multiplied by: what attention is given, and what was done to queries and keys before."""
        got, head_dim = known, one.a.shape[-1] if self.rope is None else self.rope.head_dim
        for factor in {side: factor for _, side, factor in self.calls}.values():
            got *= factor
        said = of_layer(self.opened, self.kind, head_dim, None if self.rope is None else self.rope.rotary_dim)
        found.note(scale=got, configured_scale=said.scale)
        faults = judge(Attention(said, got, head_dim), None).faults
        gain, all_rotate = found.layer.gain, self.rope is not None and self.rope.rotary_dim == head_dim
        if faults and gain and all_rotate and [fault.code for fault in found.faults] == [RULE + "gain"]:
            square = (gain / (found.layer.configured_gain or 1.0)) ** 2
            if math.isclose(square * got, said.scale, rel_tol=_SAME):
                found.faults, words = (
                    [],
                    "multiplies scores and what it rotates by other numbers, whose product is the same",
                )
                return found.note(status="equivalent", said=words)
        found.wrong(faults)
        return None


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


def _arrives(call: Call, attended: Sequence[Call]) -> tuple[str, float]:
    """Return as what a rotated tensor reaches attention, and multiplied by what; "" where it does not.

    Other parts of a layer rotate too, such as indexers, and some models normalise what they rotated.
    """
    y = call.b
    for one in attended:
        for side, whole in (("q", one.a), ("k", one.b)):
            if y.shape[1] not in (1, whole.shape[1]) or y.shape[-1] > whole.shape[-1]:
                continue
            for part in (whole[..., : y.shape[-1]], whole[..., whole.shape[-1] - y.shape[-1] :]):
                ratio = part.norm(dim=-1) / y.norm(dim=-1).clamp_min(1e-30)
                if bool((part - ratio[..., None] * y).norm() <= _SAME * part.norm()):
                    same = bool((ratio - ratio.mean()).abs().max() <= _SAME * ratio.mean().abs())
                    return (side, float(ratio.double().mean())) if same else ("", 1.0)
    return "", 1.0
