"""The check of a port: compare its files with golden vectors, and name the fault behind the first difference."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from posenc.golden import biased, biases, rotations, scaled, scales
from posenc.golden.configured import SCHEMA
from posenc.golden.ported import Ported, Rounding
from posenc.golden.writing import MADE_BY, MANIFEST, Array, read
from posenc.verify.engine.judge import explains, settle
from posenc.verify.report import Cause, Findings, Report
from posenc.verify.sentences import finding, report

CONVENTION = "golden"
HALF = ("bfloat16", "float16")
FREQUENCIES = ("inv_freq", "inv_freq_float32")


@dataclass
class Written:
    """A port's arrays for one kind of layer.

    Args:
        layer: The entry of the manifest.
        golden: The golden arrays by name.
        theirs: The port's arrays by name, if they exist and have the right shape.
        roundings: The rounding error of each array.
        findings: The findings so far, over all kinds of layers.
    """

    layer: Mapping[str, Any]
    golden: Mapping[str, Array]
    theirs: dict[str, Array]
    roundings: dict[str, Rounding]
    findings: Findings = field(default_factory=Findings)

    def has(self, *names: str) -> bool:
        """Return whether the port wrote all given arrays."""
        return all(name in self.theirs for name in names)


def check(directory: Path, against: Path, *, dtype: str | None = None) -> Report:
    """Compare a port's files with golden vectors, as described in `posenc.golden.check`."""
    if dtype not in (None, "float32", "bfloat16"):
        raise ValueError(f"golden check: --dtype must be float32 or bfloat16; got {dtype!r:.40}.")
    manifest, found = _manifest(directory), Findings()
    if not against.is_dir():
        raise ValueError(f"golden check: --against must be a directory; got {str(against)!r:.200}.")
    n_judged = 0
    for layer in manifest["layers"]:
        if not layer["files"]:
            continue
        written = _load(layer, directory, against, manifest["tolerance"], dtype, found)
        n_judged += len(written.theirs)
        if layer.get("sections") and layer["axis_of_pair"] is None:
            places = (
                f"{layer['kind']}: images, whose tokens have another position on each of {len(layer['sections'])} axes"
            )
            found.not_judged[places] = "these golden vectors have positions of text only"
        if "query_scale" in layer["files"]:
            scaled.judge(written)
        if layer["encoding"] != "nope":
            (_rotation if layer["encoding"] == "rope" else biased.judge)(written)
    if not n_judged and not found.causes:
        found.unknown = f"{against} contains none of the files in the manifest"
    return found.report(CONVENTION)


def _manifest(directory: Path) -> dict[str, Any]:
    """Return the manifest of a configuration's golden vectors.

    Raises:
        ValueError: There is none, or one of another kind.
    """
    try:
        manifest = json.loads((directory / MANIFEST).read_text("utf-8"))
        ours = (manifest["made_by"], manifest["schema"]) == (MADE_BY, SCHEMA)
        ours = ours and all(isinstance(layer["files"], dict) for layer in manifest["layers"])
    except (OSError, ValueError, KeyError, TypeError):
        ours = False
    if not ours:
        raise ValueError(
            f"golden check: {str(directory)!r:.200} must be an output of `posenc golden --config`, with {MANIFEST}; it "
            "is not. Pass that directory first, and the port's by --against."
        )
    return dict(manifest)


def _load(
    layer: Mapping[str, Any],
    directory: Path,
    against: Path,
    tolerance: Mapping[str, Any],
    dtype: str | None,
    found: Findings,
) -> Written:
    """Read both sides of one kind of layer; record missing arrays, and those that cannot be compared."""
    written, missing = Written(layer, {}, {}, {}, found), list[str]()
    golden = dict[str, Array]()
    for name, file in layer["files"].items():
        right, theirs = read(directory, file, name), read(against, file, name)
        if right is None:
            raise ValueError(f"golden check: {file} of {directory} lacks {name}. Write the golden vectors again.")
        golden[name] = right[0]
        if name in biased.INPUTS or name in ("q", "k", "positions"):
            continue
        if theirs is None:
            missing += [name] if name != "inv_freq_float32" else []
            continue
        t, held = theirs
        if (cause := _unusable(name, file, t, golden[name])) is not None:
            found.causes.append(cause)
            continue
        bound = tolerance["bfloat16" if (dtype or held) in HALF else "float32"]
        written.theirs[name] = t.astype(np.float64)
        written.roundings[name] = Rounding(float(bound["absolute"]), float(bound["per_radian"]))
    if missing:
        found.not_judged[f"{layer['kind']}: {', '.join(missing)}"] = f"not in {against}"
    return replace(written, golden=golden)


def _unusable(name: str, file: str, t: Array, right: Array) -> Cause | None:
    if t.shape != right.shape:
        meaning = (rotations.MEANINGS | scales.MEANINGS | biases.MEANINGS).get(name, name)
        message = f"{name} has shape {t.shape}, but the golden vectors have {right.shape}: {meaning}"
        return finding("subject.shape", message, file=file)
    if not np.isfinite(t.astype(np.float64)).all():
        first = [int(i) for i in np.argwhere(~np.isfinite(t.astype(np.float64)))[0]]
        return finding("subject.not_finite", f"{name} contains NaN or infinity, first at index {first}", file=file)
    return None


def _rotation(written: Written) -> None:
    """Judge frequencies, then angles, then rotated vectors, each with the faults that were already found."""
    family, change, causes = None, dict[str, Any](), list[Cause]()
    for family, names, value in _stages(written):
        right, answers = family.truth, family.answers(value)
        if explains(family, right, answers):
            continue
        family.truth = {**right, **change}
        verdict = settle(family, answers)
        if verdict.status != "fail":
            if causes:  # right except for the known fault
                causes[0] = replace(causes[0], consequences=(*causes[0].consequences, *names))
            elif verdict.because:
                written.findings.equivalent = f"{' and '.join(names)}: {verdict.because}"
            continue
        found = report(verdict, CONVENTION, family.definition).causes
        if causes and {cause.code for cause in found} <= {cause.code for cause in causes}:
            causes[0] = replace(causes[0], consequences=(*causes[0].consequences, *names))
            continue
        where = {"layer": written.layer["kind"], "file": ", ".join(names)}
        causes += [replace(cause, smallest_case={**where, **cause.smallest_case}) for cause in found]
        own = {} if names[0] not in FREQUENCIES else {"freq": written.theirs[names[0]]}
        change |= {key: value for fault in verdict.faults for key, value in (fault.change or own).items()}
    written.findings.causes += causes
    if family is not None:
        written.findings.definitions = list(dict.fromkeys([*written.findings.definitions, family.definition]))


def _stages(written: Written) -> Iterator[tuple[Ported, tuple[str, ...], Array]]:
    """Yield a judge for each group of arrays that a port wrote, their names, and the rotated vectors they stand for."""
    layer, golden, theirs = written.layer, written.golden, written.theirs
    unit = _units(layer, len(golden["positions"]))
    sign = -1.0 if layer["direction"] == "clockwise" else 1.0

    def family(x: Array, name: str) -> Ported:
        return Ported(layer, golden, x, written.roundings[name])

    def rotated(cos: Array, sin: Array) -> Array:
        y = rotations.rotate(unit, cos, sign * sin, layer["pairing"], layer["first_dimension"])
        return np.stack([y, y])

    for name in FREQUENCIES:
        if written.has(name):
            axes, pos = layer["axis_of_pair"], golden["positions"]
            angle = (pos[:, None] if axes is None else pos[:, axes]) * theirs[name]
            yield (
                family(np.stack([unit, unit]), name),
                (name,),
                rotated(*(layer["gain"] * f(angle) for f in (np.cos, np.sin))),
            )
    if written.has("cos", "sin"):
        yield family(np.stack([unit, unit]), "cos"), ("cos", "sin"), rotated(theirs["cos"], theirs["sin"])
    if written.has("q_rotated", "k_rotated"):
        x = np.stack([golden["q"], golden["k"]])
        value = np.stack([theirs["q_rotated"], theirs["k_rotated"]])
        yield family(x, "q_rotated"), ("q_rotated", "k_rotated"), value


def _units(layer: Mapping[str, Any], n: int) -> Array:
    """Return vectors (1, seq, head_dim) with a 1 in the first dimension of each pair: rotated, a pair is (cos, sin)."""
    j, x = np.arange(layer["rotary_dim"] // 2), np.zeros((1, n, layer["head_dim"]))
    x[..., layer["first_dimension"] + (j if layer["pairing"] == "half" else 2 * j)] = 1.0
    return x
