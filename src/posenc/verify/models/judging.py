"""One layer of a model: what its runs showed of it, held against what its configuration turns."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from posenc import config
from posenc.config import kinds
from posenc.families import Rotary
from posenc.verify.models import measuring, scales, watching
from posenc.verify.models.causes import Others, Reason, View, explain
from posenc.verify.models.measuring import Expected, Sight
from posenc.verify.models.report import Judged, Layer
from posenc.verify.models.runs import Run, halved


def judge(
    index: int, kind: str, order: Sequence[str], runs: list[Run], origin: Run | None, fields: dict[str, Any]
) -> Judged:
    """Judge one layer by all that was seen of it: what turns it, and the scale of its scores."""
    layer, reason, views = _turned(index, kind, order, runs, origin, fields)
    reasons = [reason] if reason is not None and reason.code else []
    rope = runs[0].expected(index).rope
    for one in (a for run in runs for a in run.seen.attended if a.layer == index and a.scaling is not None):
        got, head_dim = _scale(index, one, runs), one.q.shape[-1] if rope is None else rope.head_dim
        width = None if rope is None else rope.rotary_dim
        want, wrong = scales.explain(got, fields, kind, head_dim=head_dim, rotary_dim=width)
        layer = replace(layer, scale=got, configured_scale=want.value)
        if wrong is None:
            continue
        if _balanced(layer, reasons, width == head_dim):
            said = "multiplies scores and what it turns by other numbers, whose product is the same"
            return replace(layer, status="equivalent", said=said), [], views
        return replace(layer, status="wrong", said=layer.said or wrong.said), [*reasons, wrong], views
    return layer, reasons, views


def _scale(index: int, one: watching.Attended, runs: Sequence[Run]) -> float:
    """Return what scores are multiplied by: what attention is told, and what was done to queries and keys before."""
    whole = one.scaling or 0.0
    for run in runs:
        if not any(a is one for a in run.seen.attended):
            continue
        sides = dict(found for t in run.seen.turned if t.layer == index and (found := _arriving(t, [one]))[0])
        whole *= math.prod(sides.values())
    return whole


def _balanced(layer: Layer, reasons: Sequence[Reason], all_turn: bool) -> bool:
    """Whether a wrong gain, of all lanes, makes up for a wrong scale: no score sees that."""
    if [reason.code for reason in reasons] != ["model.rotation.gain"] or not all_turn:
        return False
    told = (layer.gain, layer.configured_gain, layer.scale, layer.configured_scale)
    if any(not number for number in told):
        return False
    gain, configured, scale, wanted = (float(number or 0.0) for number in told)
    return math.isclose((gain / configured) ** 2 * scale, wanted, rel_tol=1e-3)


def _turned(
    index: int, kind: str, order: Sequence[str], runs: list[Run], origin: Run | None, fields: dict[str, Any]
) -> tuple[Layer, Reason | None, list[View]]:
    """Judge what turns a layer."""
    views = [view for run in runs for view in _views(index, run, runs[0], origin, fields)]
    rope = runs[0].expected(index).rope
    configured = None if rope is None else rope.gain()
    if not views:
        turned = any(t.layer == index for run in runs for t in run.seen.turned)
        if rope is None and not turned:
            return Layer(index, kind, "no rotation"), None, views
        said = "what its attention receives was not seen"
        return Layer(index, kind, "cannot tell", configured_gain=configured, said=said), None, views
    order_of_runs = {run.name: i for i, run in enumerate(runs)}
    # what is nearest to the function that turns says most
    views = sorted(views, key=lambda view: (order_of_runs[view.run], view.sight.place != "rotation"))
    wrong = [view for view in views if view.measure.wrong]
    worst = max(views, key=lambda view: view.measure.excess)
    gains = [v.measure.gain for v in views if v.sight.place == "rotation" and v.run == "near"]
    gain = None if not gains or rope is None else max(gains, key=lambda g: abs(g - 1)) * rope.gain()
    numbers: dict[str, Any] = {"configured_gain": configured, "gain": gain}
    if rope is not None:
        numbers |= {
            "angle_error": max(view.measure.angle for view in views),
            "position": worst.measure.at[0],
            "pair": worst.measure.at[1],
            "mean_cos": float(torch.cat([view.measure.cosines for view in views]).mean()),
        }
    if wrong:
        reason = explain(views, _others(index, order, wrong[0], runs, fields))
        status = "wrong" if reason.code else "equivalent"
        return Layer(index, kind, status, **numbers, said=reason.said), reason, views
    if rope is None:
        return Layer(index, kind, "no rotation"), None, views
    if gain is None and configured is not None and abs(configured - 1) > 1e-3:
        said = f"its angles are right; whether it multiplies by {configured:.6g} was not seen"
        return Layer(index, kind, "cannot tell", **numbers, said=said), None, views
    return Layer(index, kind, "pass", **numbers), None, views


def _views(index: int, run: Run, near: Run, origin: Run | None, fields: dict[str, Any]) -> list[View]:
    """Return what one run showed of one layer: first as attention received it."""
    expected = run.expected(index)
    turned = [t for t in run.seen.turned if t.layer == index]
    attended = [a for a in run.seen.attended if a.layer == index]
    sorts = _sorts(near, index)
    found: list[View] = []
    if origin is not None and attended:
        start = [a for a in origin.seen.attended if a.layer == index]
        seen, seen_at_start = (halved(r, fields) if sorts else r for r in (run, origin))
        for one, before in zip(attended, start, strict=False):
            found += _attention_views(index, seen, seen_at_start, one, before)
    if expected.rope is None:
        return found
    for number, each in enumerate(turned):
        side, scale = (f"call {number + 1}", 1.0) if not attended else _arrives(each, attended)
        sight = None if not side else _rotation_sight(each, side, scale, expected, run.pos, sorts)
        if sight is not None:
            found.append(View(run.name, sight, expected, measuring.measure(sight, expected)))
    return found


def _attention_views(
    index: int, run: Run, origin: Run, one: watching.Attended, before: watching.Attended
) -> list[View]:
    """Hold queries and keys that attention received against those of the same tokens at position 0."""
    expected, start = run.expected(index), origin.expected(index)
    head_dim = one.q.shape[-1]
    if expected.rope is not None and expected.rope.head_dim != head_dim:
        return []
    q, k = (t.double().cpu() for t in (before.q, before.k))
    plain = start.encoding.rotate(q, k, start.placed, inverse=True)
    want = expected.encoding.rotate(*plain, expected.placed)
    views = []
    for side, x, y, got in zip("qk", plain, want, (one.q, one.k), strict=True):
        eps = float(torch.finfo(got.dtype).eps)
        if expected.rope is None and torch.allclose(got.double().cpu(), x, rtol=1e-3, atol=1e-6):
            y = x  # Llama 4's queries grow by the count of tokens, at position 0 too
        sight = Sight(side, x, y, got.double().cpu(), run.pos, "attention", False, eps)
        views.append(View(run.name, sight, expected, measuring.measure(sight, expected)))
    return views


def _rotation_sight(
    each: watching.Turned, side: str, scale: float, expected: Expected, pos: Tensor, sorts: bool
) -> Sight | None:
    """Hold what a function that turns returned against what it was given; None where the lanes are others."""
    rope: Any = expected.rope
    x, got = each.before.double().cpu(), each.after.double().cpu() * scale
    width = x.shape[-1]
    if width == rope.head_dim:
        want = rope.rotate_q(x, expected.rope_placed)
    elif width == rope.rotary_dim:
        want = rope.of_slice().rotate_q(x, expected.rope_placed)
    else:
        return None
    return Sight(side, x, want, got, pos, "rotation", sorts, float(torch.finfo(each.after.dtype).eps))


def _arrives(each: watching.Turned, attended: list[watching.Attended]) -> tuple[str, float]:
    """Return as what a turned tensor reaches attention, and multiplied by what besides the scale of scores."""
    side, scale = _arriving(each, attended)
    root = attended[0].q.shape[-1] ** -0.5
    # one that takes the place of the division of scores by the root of head_dim
    told = attended[0].scaling
    return side, 1.0 if told is not None and math.isclose(scale**2 * told, root, rel_tol=1e-3) else scale


def _arriving(each: watching.Turned, attended: list[watching.Attended]) -> tuple[str, float]:
    """Return as what a turned tensor reaches attention, and multiplied by what; "" where it does not.

    Other parts of a layer turn too, such as indexers, and some models normalise what they turned.
    """
    y = each.after
    for one in attended:
        for side, whole in (("q", one.q), ("k", one.k)):
            if y.shape[1] not in (1, whole.shape[1]) or y.shape[-1] > whole.shape[-1]:
                continue
            for part in (whole[..., : y.shape[-1]], whole[..., whole.shape[-1] - y.shape[-1] :]):
                ratio = part.norm(dim=-1) / y.norm(dim=-1).clamp_min(1e-30)
                if bool((part - ratio[..., None] * y).norm() <= 1e-3 * part.norm()):
                    same = bool((ratio - ratio.mean()).abs().max() <= 1e-3 * ratio.mean().abs())
                    return (side, float(ratio.double().mean())) if same else ("", 1.0)
    return "", 1.0


def _sorts(near: Run, index: int) -> bool:
    """Whether a layer sorts even lanes before odd ones, seen at position 0, where nothing turns."""
    rope = near.expected(index).rope
    if rope is None or rope.pairing != "interleaved":
        return False
    turned = [t for t in near.seen.turned if t.layer == index and t.before.shape[-1] == rope.rotary_dim]
    at_start = [(t.before[:, :, 0].double(), t.after[:, :, 0].double()) for t in turned]
    return any(measuring.is_sorted(x, y, float(y.norm() / x.norm().clamp_min(1e-30))) for x, y in at_start)


def _others(index: int, order: Sequence[str], view: View, runs: list[Run], fields: dict[str, Any]) -> Others:
    """Collect what else may have turned a layer, for the run in which it is wrong."""
    run = next(r for r in runs if r.name == view.run)
    ropes: dict[str, Rotary] = {}
    for i, kind in enumerate(order):
        rope = run.expected(i).rope
        if rope is not None and (kind != order[index] or run.layers.index[i] != run.layers.index[index]):
            ropes.setdefault(kind, rope)
    base, scaled, short = None, None, None
    if kinds.turns(order[index]):
        said = config.rotary(fields, order[index])
        base, scaled = said.base, None if said.rope_type == "default" else said.rope_type
        near = runs[0].expected(index).inv_freq
        short = None if torch.equal(near, view.expected.inv_freq) else near
    return Others(ropes, base, scaled, short)
