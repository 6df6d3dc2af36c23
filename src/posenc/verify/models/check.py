"""A whole model against its configuration: which layer turns queries and keys otherwise than the file says."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from posenc import config
from posenc.compose import PerLayer
from posenc.config import kinds
from posenc.config.model import open_model
from posenc.config.reading import Checked
from posenc.families import Rotary
from posenc.verify import models_loading as loading
from posenc.verify import models_measuring as measuring
from posenc.verify import models_report
from posenc.verify import models_watching as watching
from posenc.verify.models_causes import Others, View, explain
from posenc.verify.models_measuring import Expected, Sight
from posenc.verify.models_report import Judged, Layer
from posenc.verify.report import Findings, Report

CONVENTION = "model"
TOKENS = 256
_BATCH = 2
_LONGEST = 1 << 20  # positions; beyond it float32 angles say nothing of the fast pairs
_UNTOLD = 8192  # the longest position of a file that names none


@dataclass(frozen=True)
class _Run:
    """One text at given positions, and what should turn each layer."""

    name: str
    pos: Tensor
    seen: watching.Seen
    layers: PerLayer
    placed: Any

    def expected(self, index: int) -> Expected:
        return Expected.of(*self.layers.layer(index, self.placed))


def verify_model(target: str | Path, *, small: bool = False) -> Report:
    """Say whether a model of a local directory turns queries and keys as its config.json says, layer by layer.

    Weights are loaded from safetensors alone, in float32; where there are none, or more than 1 GiB, or quantised ones,
    the model is built small with random weights: all layers, with the widths, bases and scaling of the file. The text
    is of 256 tokens at positions 0, 1, ..., and once more at positions up to the longest that the file allows.

    Args:
        target: A directory with config.json.
        small: Build it small in any case.

    Raises:
        ValueError: The directory is unsafe (pickles, `auto_map`), damaged or not there.
        ModuleNotFoundError: transformers is not installed.
    """
    loading.inspect_directory(Path(target))  # before anything heavy is imported
    with loading.offline():
        try:
            loaded = loading.load(Path(target), small=small)
        except loading.CannotBuildError as error:
            return Findings(unknown=f"{error}").report(CONVENTION)
        report = check_model(loaded.model, loaded.fields)
    report.measured.update(weights=loaded.weights, weights_because=loaded.why)
    return report


def check_model(model: nn.Module, fields: Mapping[str, Any]) -> Report:
    """Hold a model of transformers against a configuration, which is the truth here.

    Args:
        model: A bare model (`AutoModel`); it is as before afterwards.
        fields: The configuration, as config.json has it.

    Returns:
        A report, whose `measured` has the layers, the first wrong one, the largest angle error, the gain error and the
        mean cosine of the angle error by position.
    """
    try:
        order = kinds.layers(open_model(Checked(config.read(dict(fields)))))
        PerLayer.from_config(dict(fields))
    except (ValueError, TypeError) as error:
        because = f"the configuration does not say what turns: {error} `posenc verify-config` says more."
        return Findings(unknown=because).report(CONVENTION)
    try:
        runs, origin = _run_all(model, dict(fields))
    except (Exception, SystemExit) as error:
        because = f"the model does not run: {type(error).__name__}: {str(error)[:300]}"
        return Findings(unknown=because).report(CONVENTION)
    order = order[: _once(len(order), runs[0].seen)]
    judged = [_judge(i, kind, order, runs, origin, dict(fields)) for i, kind in enumerate(order)]
    measured = {
        "model_type": open_model(Checked(dict(fields))).model_type,
        "tokens": TOKENS,
        "longest_position": max(int(run.pos.max()) for run in runs),
    }
    return models_report.report(judged, [(run.name, run.pos) for run in runs], measured).report(CONVENTION)


def _run_all(model: nn.Module, fields: dict[str, Any]) -> tuple[list[_Run], _Run | None]:
    """Run a text near and far, and once with all tokens at position 0."""
    ids = _text(model)
    near = torch.arange(TOKENS)
    runs, origin = [], None
    was = model.training
    model.eval()
    try:
        with watching.watched(model):
            given = watching.takes_positions(model)
            if given:
                start = torch.zeros(TOKENS, dtype=torch.long)
                origin = _run("origin", model, ids, start, fields, given=True)
            runs.append(_run("near", model, ids, near, fields, given=False))
            if given and (far := _far(fields)) is not None:
                runs.append(_run("far", model, ids, far, fields, given=True))
    finally:
        model.train(was)
    return runs, origin


def _run(name: str, model: nn.Module, ids: Tensor, pos: Tensor, fields: dict[str, Any], *, given: bool) -> _Run:
    device = ids.device
    seen = watching.run(model, ids, pos.expand(len(ids), -1).to(device) if given else None)
    layers = PerLayer.from_config(fields, seq_len=int(pos.max()) + 1)
    return _Run(name, pos, seen, layers, layers.place(pos[None], dtype=torch.float64))


def _once(entries: int, seen: watching.Seen) -> int:
    """Return how many layers there are where a model runs the same ones again, an entry each time (HRM)."""
    calls = Counter(a.layer for a in seen.attended)
    again = calls and min(calls.values()) > 1 and max(calls) + 1 == len(calls) < entries
    return len(calls) if again else entries


def _text(model: nn.Module) -> Tensor:
    table = model.get_input_embeddings()  # type: ignore[operator]
    vocab = int(getattr(table, "num_embeddings", 0) or table.weight.shape[0])
    generator = torch.Generator().manual_seed(0)
    low = min(16, vocab // 2)  # the first ones are often special
    device = next(model.parameters()).device
    return torch.randint(low, vocab, (_BATCH, TOKENS), generator=generator).to(device)


def _far(fields: dict[str, Any]) -> Tensor | None:
    """Return positions that grow to the longest of the file, None where it has few."""
    longest = _longest(fields)
    if longest <= TOKENS:
        return None
    grown = torch.logspace(0, math.log10(longest - 1), TOKENS, dtype=torch.float64).round().long()
    steps = torch.maximum(grown, torch.arange(TOKENS))
    return steps.clamp_max(longest - 1)


def _longest(fields: dict[str, Any]) -> int:
    told = open_model(Checked(fields)).size("max_len")
    return min(told or _UNTOLD, _LONGEST)


def _judge(
    index: int, kind: str, order: Sequence[str], runs: list[_Run], origin: _Run | None, fields: dict[str, Any]
) -> Judged:
    """Judge one layer by all that was seen of it."""
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


def _views(index: int, run: _Run, near: _Run, origin: _Run | None, fields: dict[str, Any]) -> list[View]:
    """Return what one run showed of one layer: first as attention received it."""
    expected = run.expected(index)
    turned = [t for t in run.seen.turned if t.layer == index]
    attended = [a for a in run.seen.attended if a.layer == index]
    sorts = _sorts(near, index)
    found: list[View] = []
    if origin is not None and attended:
        start = [a for a in origin.seen.attended if a.layer == index]
        halved = _halved(run, fields) if sorts else run
        halved_origin = _halved(origin, fields) if sorts else origin
        for one, before in zip(attended, start, strict=False):
            found += _attention_views(index, halved, halved_origin, one, before)
    if expected.rope is None:
        return found
    for number, each in enumerate(turned):
        side, scale = (f"call {number + 1}", 1.0) if not attended else _arrives(each, attended)
        sight = None if not side else _rotation_sight(each, side, scale, expected, run.pos, sorts)
        if sight is not None:
            found.append(View(run.name, sight, expected, measuring.measure(sight, expected)))
    return found


def _attention_views(
    index: int, run: _Run, origin: _Run, one: watching.Attended, before: watching.Attended
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
        if run.name == "far" and expected.rope is None and torch.allclose(got.double().cpu(), x, rtol=1e-3, atol=1e-6):
            y = x  # what grows by position grows by the length of the text, which is short: Llama 4
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
                    return (side, _besides(float(ratio.double().mean()), one)) if same else ("", 1.0)
    return "", 1.0


def _besides(scale: float, one: watching.Attended) -> float:
    """Return 1 for a scale that takes the place of the division of scores by the root of head_dim."""
    if one.scaling is not None and math.isclose(scale**2 * one.scaling, one.q.shape[-1] ** -0.5, rel_tol=1e-3):
        return 1.0
    return scale


def _sorts(near: _Run, index: int) -> bool:
    """Whether a layer sorts even lanes before odd ones, seen at position 0, where nothing turns."""
    rope = near.expected(index).rope
    if rope is None or rope.pairing != "interleaved":
        return False
    turned = [t for t in near.seen.turned if t.layer == index and t.before.shape[-1] == rope.rotary_dim]
    at_start = [(t.before[:, :, 0].double(), t.after[:, :, 0].double()) for t in turned]
    return any(measuring.is_sorted(x, y, float(y.norm() / x.norm().clamp_min(1e-30))) for x, y in at_start)


def _halved(run: _Run, fields: dict[str, Any]) -> _Run:
    """Return the run with what is expected of sorted lanes, which turn in halves."""
    layers = PerLayer.from_config(fields, pairing="half", seq_len=int(run.pos.max()) + 1)
    return _Run(run.name, run.pos, run.seen, layers, layers.place(run.pos[None], dtype=torch.float64))


def _others(index: int, order: Sequence[str], view: View, runs: list[_Run], fields: dict[str, Any]) -> Others:
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
