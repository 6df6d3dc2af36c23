"""A whole model compared with its configuration: which layer treats positions otherwise than the file says."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from posenc import config
from posenc.compose import PerLayer
from posenc.config import kinds, unrotated
from posenc.config.model import Model, open_model
from posenc.config.reading import Checked
from posenc.families import Rotary
from posenc.interop.checkpoint import open_shard
from posenc.verify.models import loading, paths, rotations
from posenc.verify.models import said as says
from posenc.verify.models.layers import Judged, Layer, findings
from posenc.verify.models.scores import centred, of_bias, of_scale, split
from posenc.verify.models.watching import Attention, made_of, plainly, takes, text, watched
from posenc.verify.report import Cause, Findings, Report

CONVENTION = "model"
Q_TOKENS, K_TOKENS = 200, 256  # of a decoder and of an encoder; two lengths, so that neither stands for the other
_LINEAR = 1e-2
# what no model shows that is compared with its own directory
_FILE = "config.json itself: transformers reads the same file, so a wrong base or schedule in it is wrong on both sides"
_WEIGHTS = {
    "random": "weights: they are random here, so that permuted rows or another base in training cannot show",
    "loaded": "whether weights fit it: permuted rows or another base in training give finite numbers all the same",
}


def verify_model(target: str | Path, *, small: bool = False) -> Report:
    """Return whether a model of a local directory treats positions as its config.json says, layer by layer.

    Weights are loaded from safetensors only, in float32; where there are none, or more than 1 GiB, or quantised ones,
    the model is built small with random weights: all layers, with the widths, bases and scaling of the file. The text
    is of 256 tokens at positions 0, 1, ..., and once more at positions up to the longest that the file allows.

    Args:
        target: A directory with config.json.
        small: Build it small in any case.

    Raises:
        ValueError: The directory is unsafe (pickles, `auto_map`), damaged or not there.
        ModuleNotFoundError: transformers is not installed.
    """
    fields, size = loading.inspect_directory(Path(target))  # before anything heavy is imported
    if (marked := _marked(Path(target), fields)) is not None:
        return Findings(causes=[marked]).report(CONVENTION)
    with loading.offline():
        try:
            model, why = loading.load(Path(target), fields, size, small=small)
        except loading.CannotBuildError as error:
            return Findings(unknown=f"{error}").report(CONVENTION)
        weights = "random" if why else "loaded"
        report = check_model(model, fields, (_FILE, _WEIGHTS[weights]))
    report.measured.update(weights=weights, weights_because=why)
    return report


def _marked(target: Path, fields: Mapping[str, Any]) -> Cause | None:
    """Return the cause where files are marked, as `posenc convert` marks them, with another pairing than the type's."""
    marks = {open_shard(path).pairing for path in target.glob("*.safetensors")} - {None}
    try:
        layers = PerLayer.from_config(dict(fields), seq_len=1)
        pairings = {e.pairing for e in layers.modules() if isinstance(e, Rotary)}
    except (ValueError, TypeError):
        return None
    if not marks or not pairings or marks <= pairings:
        return None
    return Cause(
        "model.rotation.pairing",
        f"its files are marked with the pairing {', '.join(map(str, marks))}, and transformers rotates "
        f"{fields.get('model_type')} by {', '.join(sorted(pairings))}: it computes other logits",
        float(len(marks)),
        help="Load them into the program that they were converted for, or convert them back with posenc convert.",
    )


def check_model(model: nn.Module, fields: Mapping[str, Any], unseen: tuple[str, ...] = ()) -> Report:
    """Compare a model of transformers with a configuration, which is the truth here.

    Args:
        model: A bare model (`AutoModel`); it is as before afterwards.
        fields: The configuration, as config.json has it.
        unseen: What these weights cannot show, and why.

    Returns:
        A report, whose `measured` has the layers, the first wrong one, the largest angle error, the gain error, and
        the mean cosine of the angle error by position; `not_judged` has what did not run, with the reason.
    """
    try:
        opened = open_model(Checked(config.read(dict(fields))))
        biased = says.has_bias(opened)
        ways = None if biased else unrotated.ways(opened)
        order = [] if biased or ways else kinds.layers(opened)
        if order:
            PerLayer.from_config(dict(fields), seq_len=1)
    except (ValueError, TypeError) as error:
        because = f"the configuration does not say what rotates: {error} `posenc verify-config` says more."
        return Findings(unknown=because).report(CONVENTION)
    try:
        if ways is not None:
            found = Findings(
                unknown=f"its positions enter by {ways[0].encoding}, which is not judged in a loaded model"
            )
        else:
            found = _by_bias(model, opened) if biased else rotations.check(model, opened, dict(fields), order)
    except (Exception, SystemExit) as error:
        because = f"the model does not run: {type(error).__name__}: {str(error)[:300]}"
        return Findings(unknown=because).report(CONVENTION)
    causes, not_judged = paths.check(model)
    found.causes += causes
    report = found.report(CONVENTION)
    return replace(report, not_judged=(*report.not_judged, *not_judged, *unseen))


def _by_bias(model: Any, opened: Model) -> Findings:
    """Judge every attention of a model with a position bias, by its scores."""
    judged: list[Judged] = []

    def judge(one: Attention) -> None:
        judged.append(_attention(one, model, opened))

    given: dict[str, Any] = {"input_ids": text(model, K_TOKENS)}
    if takes(model, "use_cache"):
        given["use_cache"] = False
    if takes(model, "decoder_input_ids"):
        given["decoder_input_ids"] = text(model, Q_TOKENS)
    with plainly(model), watched(model, judge):
        model(**given)
    found = list(dict.fromkeys(one.layer.kind for one in judged))
    judged.sort(key=lambda one: found.index(one.layer.kind))  # a decoder's two attentions take turns
    definition = {"falcon": "alibi@falcon", "bloom": "alibi@authors", "mpt": "alibi@authors"}.get(opened.name, "t5")
    measured = {"model_type": opened.model_type, "tokens": K_TOKENS, "longest_position": K_TOKENS - 1}
    return findings(judged, definition, measured)


def _attention(one: Attention, model: nn.Module, opened: Model) -> Judged:
    """Judge one attention by the scale of its scores and by what is added to them."""
    said = says.of_bias(opened, model, one.name, one.q.shape[1], one.q.shape[-1])
    found = Judged(Layer(one.layer, said.kind, "pass", configured_scale=said.scale))
    if (parts := split(one)) is None:
        found.note(status="cannot tell", said="its scores are no multiple of the products of queries and keys")
        return found
    scale, got, shown = parts
    for x in (one.q, one.k):  # what they were multiplied by since they were projected
        made = made_of(x[:, 0], one.outputs)
        scale *= 1.0 if made is None else made[0]
    want = centred(said.added(*shown.shape).expand_as(got), shown)
    found.note(scale=scale, bias_error=float((got - want).abs().max()))
    found.wrong([*of_scale(scale, said), *of_bias(got, want, said, scale / said.scale)])
    return found
