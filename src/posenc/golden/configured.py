"""Golden vectors of one model: exact numbers for each kind of layer of a configuration, without torch."""

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import posenc
from posenc import config, frequencies
from posenc.config import kinds, unrotated
from posenc.config.growth import growth
from posenc.config.known import known_models
from posenc.config.model import open_model, stacks
from posenc.config.notes import noted
from posenc.config.reading import Checked, checked
from posenc.golden import biases, rotations, scales
from posenc.golden.writing import FORMATS, MADE_BY, Array, encoded, made_before, replace

SCHEMA = 1
FARTHEST = 10**12
MOST = 1 << 25  # entries in all files together
_EMPTY = dict.fromkeys(("pairing", "head_dim", "rotary_dim", "gain", "score_factor", "query_scale"))
ROUNDING = {
    "float32": {
        "absolute": 2.0**-20,
        "per_radian": 2.0**-20,
        "derived": (
            "An angle takes up to 16 roundings of 2**-24: the exponent times ln(base), the power, its inverse and the "
            "product with the position; cos, sin, two products and a sum add at most 16 more of the pair's length."
        ),
    },
    "bfloat16": {
        "absolute": 2.0**-6,
        "per_radian": 2.0**-20,
        "derived": (
            "cos and sin, two products and a sum are rounded by 2**-8 each, together at most 2**-6 of the pair's "
            "length; the angle is still computed in float32, since bfloat16 cannot distinguish 256 from 257."
        ),
    },
    "rule": (
        "|found - expected| <= size * (absolute + per_radian * angle), where angle = |position| * |inv_freq| in "
        "radians and size is the length of the pair after the rotation, and the gain for cos and sin; inv_freq itself "
        "may be off by per_radian of each frequency; query_scale by absolute of each factor; slopes and bias by "
        "absolute of the largest; rows of tables by one at the edges of the logarithm."
    ),
}

Entry = tuple[dict[str, Any], dict[str, Array]]  # an entry of the manifest, and its arrays


@dataclass(frozen=True)
class _Wanted:
    """The request of `write_config`; `trained` is the trained length of a known model."""

    pairing: config.Pairing | None
    trained: int | None
    seq_len: int | None
    positions: list[int] | None


def write_config(
    target: config.Source,
    out: str | Path,
    *,
    positions: Sequence[int] | None = None,
    seq_len: int | None = None,
    form: str = "safetensors",
    pairing: config.Pairing | None = None,
) -> dict[str, Any]:
    """Write exact numbers of a model's positions for each kind of layer, and return the manifest.

    Args:
        target: A config.json, a directory with one, a mapping, or the name of a known model.
        out: A new or empty directory, or an earlier output of `posenc golden`, whose files are replaced.
        positions: In tokens, for the angles and the rotated vectors; None uses near ones, those around the trained and
            the longest text, and powers of two up to 2**20.
        seq_len: The length of the text, if frequencies depend on it; None uses the trained length.
        form: One of `FORMATS`.
        pairing: Which dimensions rotate together; None uses the model type's pairing.

    Raises:
        ValueError: The configuration cannot be read, or has nothing exact to write (a learned table, no encoding); a
            position or a length is out of range; or the directory contains other files. Nothing is written then.
        TypeError: A value of the configuration has the wrong type.
    """
    if form not in FORMATS:
        raise ValueError(f"golden: --format must be one of {', '.join(FORMATS)}; got {form!r:.40}.")
    at = None if positions is None else _checked(positions)
    made_before(Path(out))  # may refuse, before anything is computed
    name = str(target) if isinstance(target, str | Path) else None
    source, pairing, trained = opened(target, pairing)
    wanted = _Wanted(pairing, trained, seq_len, at)
    files: dict[str, bytes] = {}
    layers, total = list[dict[str, Any]](), 0
    parts = stacks(source)
    for part, fields in parts.items():
        for entry, arrays in _entries(fields, f"{part} " if part else "", wanted):
            total += sum(t.size for t in arrays.values())
            if total > MOST:
                raise ValueError(f"golden: all files together may have {MOST:,} numbers. Pass fewer by --positions.")
            stem = _stem(entry["kind"], {file.split(".")[0] for file in files})
            entry["files"], data = encoded(stem, arrays, form) if arrays else ({}, {})
            entry["shapes"] = {key: list(t.shape) for key, t in arrays.items()}
            entry["dtypes"] = {key: str(t.dtype) for key, t in arrays.items()}
            layers.append(entry)
            files |= data
    if not files:
        why = "; ".join(dict.fromkeys(entry["why"] for entry in layers)) or "it has no layer"
        raise ValueError(f"golden: there is nothing exact to write for this model: {why}.")
    manifest: dict[str, Any] = {
        "schema": SCHEMA,
        "made_by": MADE_BY,
        "posenc": posenc.__version__,
        "config": name,
        "model_type": config.read(source).get("model_type", open_model(next(iter(parts.values()))).model_type),
        "format": form,
        "layers": layers,
        "units": rotations.MEANINGS | scales.MEANINGS | biases.MEANINGS,
        "laws": {"rotation": rotations.LAW, **scales.LAWS, **biases.LAWS},
        "tolerance": ROUNDING,
    }
    if warned := noted(source, pairing=pairing):
        manifest["warnings"] = [f"{one.code}: {one.message} {one.fix}" for one in warned]
    replace(Path(out), manifest, files)
    return manifest


def opened(
    target: config.Source, pairing: config.Pairing | None
) -> tuple[config.Source, config.Pairing | None, int | None]:
    """Return a configuration, its pairing, and the trained length of a known model.

    Raises:
        ValueError: There is neither such a file nor a known model with this name.
    """
    models = known_models()
    if isinstance(target, str) and target in models and not Path(target).exists():
        known = models[target]
        return known["config"], pairing or known["pairing"], known["original_max_len"]
    try:
        return checked(target), pairing, None
    except FileNotFoundError as error:
        raise ValueError(
            f"golden: there is no configuration at {str(target)!r:.200}, and no known model has this name. Known: "
            f"{', '.join(models)}."
        ) from error


def _checked(positions: Sequence[int]) -> list[int]:
    if not positions or not all(0 <= p <= FARTHEST for p in positions):
        raise ValueError(f"golden: --positions must be whole numbers from 0 to {FARTHEST}; got {positions!r:.60}.")
    return sorted(set(positions))


def _stem(kind: str, taken: set[str]) -> str:
    """Return a file name for a kind of layer, whose name may come from an untrusted file."""
    plain = re.sub(r"[^a-z0-9]+", "_", kind.lower())[:64].strip("_") or "layers"
    names = (plain, *(f"{plain}_{i}" for i in range(2, kinds.MAX_KINDS + 2)))
    return next(name for name in names if name not in taken and name != "manifest")


def _entries(source: Checked, prefix: str, wanted: _Wanted) -> Iterator[Entry]:
    """Yield the manifest's entry of each kind of layer, with its arrays, or the reason why there are none."""
    model = open_model(source)
    if (ways := unrotated.ways(model)) is not None:
        for way in ways:
            entry = {"kind": f"{prefix}{way.part}", "count": way.count, **_EMPTY, "encoding": way.encoding}
            if way.encoding in ("alibi", "t5"):
                options = dict(way.options)
                yield entry | {"score_factor": 1.0, "options": options}, biases.arrays(way.encoding, options)
            else:
                yield entry | {"why": f"positions enter by {unrotated.KINDS[str(model.model_type)].means}"}, {}
        return
    counts: list[tuple[str | None, int | None]] = [(None, None)]
    with suppress(ValueError):  # the number of layers is missing; one kind is known, or `rotary` reports the error
        counts = [*config.layer_types(source).items()]
    for kind, count in counts:
        if kind is None or kinds.rotates(kind):
            yield _rotation(source, kind, prefix, count, wanted)
            continue
        entry = {"kind": f"{prefix}{kind}", "count": count, **_EMPTY, "encoding": "nope"}
        if (law := growth(source, kind, pairing=wanted.pairing)) is None:
            yield entry | {"why": f"layers of {kind} have no rotation"}, {}
        else:
            lengths = [law["original_max_len"], model.size("max_len"), wanted.seq_len]
            pos = np.array(wanted.positions or rotations.chosen(lengths))
            yield entry | {"query_scale": law}, {"positions": pos, **scales.arrays(law, pos)}


def _rotation(source: Checked, kind: str | None, prefix: str, count: int | None, wanted: _Wanted) -> Entry:
    rotary = config.rotary(source, kind, pairing=wanted.pairing)
    found = frequencies.from_config(source, rotary.layer_type, pairing=wanted.pairing, seq_len=wanted.seq_len)
    inv_freq = found.inv_freq
    trained = rotary.original_max_len or wanted.trained
    at = wanted.positions or rotations.chosen([trained, rotary.max_len, wanted.seq_len])
    pos, prompt = rotations.placed(rotary, at)
    law = growth(source, rotary.layer_type, pairing=wanted.pairing)
    entry = {
        "kind": f"{prefix}{rotary.layer_type}",
        "count": count,
        "pairing": found.pairing,
        "head_dim": rotary.head_dim,
        "rotary_dim": rotary.rotary_dim,
        "gain": found.gain,
        "score_factor": found.score_factor,
        "query_scale": law,
        "encoding": "rope",
        "direction": "clockwise" if rotary.clockwise else "counter-clockwise",
        "first_dimension": rotations.first_dimension(rotary),
        "axis_of_pair": rotations.axes_read(rotary),
        "sections": rotary.sections and list(rotary.sections),
        "layout": rotary.layout,
        "prompt": prompt,
        "base": rotary.base,
        "rope_type": rotary.rope_type,
        "factor": rotary.factor,
        "original_max_len": trained,
        "max_len": rotary.max_len,
        "window": rotary.window,
        "parameters": {key: list(v) if isinstance(v, tuple) else v for key, v in rotary.parameters.items()},
        "seq_len": wanted.seq_len,
        "by_length": rotary.rope_type in ("dynamic", "longrope"),
    }
    if not math.isfinite(found.gain) or not np.isfinite(inv_freq).all():
        raise ValueError(f"golden: frequencies of {rotary.layer_type} are not finite. Correct the configuration.")
    return entry, rotations.arrays(rotary, inv_freq, found.gain, pos) | scales.arrays(law, pos)
