"""Compare a whole model with its configuration: which layers treat positions otherwise than the file declares."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from posenc import config
from posenc.config import kinds, unrotated
from posenc.config.model import open_model
from posenc.config.reading import Checked
from posenc.configured import by_layer
from posenc.families import Rotary
from posenc.interop.checkpoint import Shard
from posenc.verify.engine import CannotTellError
from posenc.verify.models import loading, paths, rotations, scores
from posenc.verify.models.watching import LEAST, TOKENS, room_of
from posenc.verify.report import Cause, Findings, Report
from posenc.verify.sentences import finding

CONVENTION = "model"
# faults that cannot show when a model is compared with its own directory
_FILE = "config.json itself: transformers reads the same file, so a wrong base or schedule in it is wrong on both sides"
_WEIGHTS = {
    "random": "weights: they are random here, so permuted rows or another base in training cannot show",
    "loaded": "whether weights fit it: permuted rows or another base in training give finite numbers too",
}


def verify_model(target: str | Path, *, small: bool = False) -> Report:
    """Return whether a model in a local directory treats positions as its config.json declares, layer by layer.

    Weights are loaded only from safetensors, in float32. If there are none, or more than 1 GiB, or quantised ones, the
    model is built small with random weights: all layers, with the widths, bases and scaling of the file. The text has
    256 tokens, or as many as the file allows, at positions 0, 1, ..., and runs once more up to the longest position.

    Args:
        target: A directory with config.json.
        small: Build it small in any case.

    Raises:
        ValueError: The directory is unsafe (pickles, `auto_map`), damaged or missing.
        ModuleNotFoundError: transformers is not installed.
    """
    fields, shards = loading.inspect_directory(Path(target))  # before anything heavy is imported
    if (marked := _marked(shards, fields)) is not None:
        return Findings(causes=[marked]).report(CONVENTION)
    with loading.apart():
        try:
            loaded = loading.load(Path(target), fields, shards, small=small)
        except CannotTellError as error:
            return Findings(unknown=f"{error}").report(CONVENTION)
        weights = "random" if loaded.because else "loaded"
        report = check_model(loaded.model, fields, (*_left(loaded), _FILE, _WEIGHTS[weights]))
    report.measured.update(weights=weights, weights_because=loaded.because)
    if loaded.drawn:
        said = f"the files lack {_some(loaded.drawn)}, so transformers draws them at random"
        lost = finding("model.weights.positions_missing", said, float(len(loaded.drawn)), tensor=loaded.drawn[0])
        report = replace(report, status="fail", causes=(lost, *report.causes), because="")
    return report


def _left(loaded: loading.Loaded) -> Iterator[str]:
    """Yield which weights were not judged because only the files or only the model have them."""
    if loaded.lacking:
        yield f"weights that the files lack, which transformers initialises: {_some(loaded.lacking)}"
    if loaded.unread:
        yield f"tensors of positions in the files that the model does not have: {_some(loaded.unread)}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"{len(names)} tensor{'s' * (len(names) > 1)} ({', '.join(names[:4])}{more})"


def _marked(shards: Sequence[Shard], fields: Mapping[str, Any]) -> Cause | None:
    """Return a cause if `posenc convert` has marked the files with another pairing than the model type's."""
    marks = {shard.pairing for shard in shards} - {None}
    try:
        layers = by_layer(fields, pairing=None, seq_len=1)
    except (ValueError, TypeError):
        return None
    pairings = {e.pairing for parts in layers for e in parts if isinstance(e, Rotary)}
    if not marks or not pairings or marks <= pairings:
        return None
    return Cause(
        "model.rotation.pairing",
        f"its files are marked with the pairing {', '.join(map(str, marks))}, but transformers rotates "
        f"{fields.get('model_type')} by {', '.join(sorted(pairings))}: it computes wrong logits",
        float(len(marks)),
        fix="Load them into the program that they were converted for, or convert them back with posenc convert.",
    )


def check_model(model: nn.Module, fields: Mapping[str, Any], unseen: tuple[str, ...] = ()) -> Report:
    """Compare a model of transformers with a configuration, which counts as right.

    Args:
        model: A bare model (`AutoModel`); it is unchanged afterwards.
        fields: The fields of config.json.
        unseen: Faults that these weights cannot show, and why.

    Returns:
        A report. Its `measured` has the layers, the first wrong one, the largest angle error, the gain error, and the
        mean cosine of the angle error by position; `not_judged` has the checks that did not run, with the reason.
    """
    try:
        opened = open_model(Checked(config.read(dict(fields))))
        room, ways = room_of(opened), unrotated.ways(opened)
        order = kinds.layers(opened) if ways is None else []
        if order:
            by_layer(fields, pairing=None, seq_len=1)
    except (ValueError, TypeError) as error:
        because = f"the configuration does not determine the rotation: {error} Run `posenc verify-config`."
        return Findings(unknown=because).report(CONVENTION)
    try:
        if room < LEAST:
            found = Findings(unknown=f"the file allows {room} positions, but a check of layers needs at least {LEAST}")
        elif ways is None:
            found = rotations.check(model, opened, dict(fields), order, room)
        else:
            found = scores.check(model, opened, ways[0], min(room, TOKENS))
    except (Exception, SystemExit) as error:
        because = f"the model does not run: {type(error).__name__}: {str(error)[:300]}"
        return Findings(unknown=because).report(CONVENTION)
    if LEAST <= room < TOKENS:
        found.not_judged[f"texts of more than {room} tokens"] = "the file allows no more positions"
    causes, not_judged = paths.check(model, room)
    found.causes += causes
    report = found.report(CONVENTION)
    return replace(report, not_judged=(*report.not_judged, *not_judged, *unseen))
