"""A whole model against its configuration: which layer turns queries and keys otherwise than the file says."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from posenc import config
from posenc.compose import PerLayer
from posenc.config import kinds, unrotated
from posenc.config.model import open_model
from posenc.config.reading import Checked
from posenc.families import Rotary
from posenc.interop.checkpoint import open_shard
from posenc.verify.models import biased, biases, loading, paths
from posenc.verify.models.judging import judge
from posenc.verify.models.report import reported
from posenc.verify.models.runs import TOKENS, once, run_all
from posenc.verify.report import Cause, Findings, Report

CONVENTION = "model"
_FILE = "transformers reads the same file, so a wrong base or schedule in it is wrong on both sides"
_UNSEEN = {  # what no model shows that is held against its own directory
    "random": {
        "config.json itself": _FILE,
        "weights": "they are random here, so that permuted rows or another base in training cannot show",
    },
    "loaded": {
        "config.json itself": _FILE,
        "whether weights fit it": "permuted rows or another base in training give finite numbers all the same",
    },
}


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
    fields, _ = loading.inspect_directory(Path(target))  # before anything heavy is imported
    if (marked := _marked(Path(target), fields)) is not None:
        return Findings(causes=[marked]).report(CONVENTION)
    with loading.offline():
        try:
            loaded = loading.load(Path(target), small=small)
        except loading.CannotBuildError as error:
            return Findings(unknown=f"{error}").report(CONVENTION)
        report = check_model(loaded.model, loaded.fields, _UNSEEN[loaded.weights])
    report.measured.update(weights=loaded.weights, weights_because=loaded.why)
    return report


def _marked(target: Path, fields: Mapping[str, Any]) -> Cause | None:
    """Say where files are marked, as `posenc convert` marks them, with another pairing than their type has."""
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


def check_model(model: nn.Module, fields: Mapping[str, Any], unseen: Mapping[str, str] | None = None) -> Report:
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
        ways = None if biases.has_bias(opened) else unrotated.ways(opened)
        order = kinds.layers(opened) if ways is None and not biases.has_bias(opened) else ()
        if order:
            PerLayer.from_config(dict(fields), seq_len=1)
    except (ValueError, TypeError) as error:
        because = f"the configuration does not say what turns: {error} `posenc verify-config` says more."
        return Findings(unknown=because).report(CONVENTION)
    try:
        if ways is not None:
            because = f"its positions enter by {ways[0].encoding}, which is not judged in a loaded model"
            found = Findings(unknown=because)
        else:
            found = _by_rotation(model, fields, order) if order else biased.check(model, opened)
    except (Exception, SystemExit) as error:
        because = f"the model does not run: {type(error).__name__}: {str(error)[:300]}"
        return Findings(unknown=because).report(CONVENTION)
    causes, not_judged = paths.check(model)
    found.causes += causes
    found.not_judged = {**not_judged, **(unseen or {})}
    return found.report(CONVENTION)


def _by_rotation(model: nn.Module, fields: Mapping[str, Any], order: Sequence[str]) -> Findings:
    """Hold what turns each layer of a model against its configuration."""
    runs, origin = run_all(model, dict(fields))
    order = order[: once(len(order), runs[0].seen)]
    judged = [judge(i, kind, order, runs, origin, dict(fields)) for i, kind in enumerate(order)]
    measured = {
        "model_type": open_model(Checked(dict(fields))).model_type,
        "tokens": TOKENS,
        "longest_position": max(int(run.pos.max()) for run in runs),
    }
    return reported(judged, [(run.name, run.pos) for run in runs], measured)
