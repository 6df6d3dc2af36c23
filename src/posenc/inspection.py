"""Inspect the position encoding of a model's configuration: frequencies, scaling and their properties."""

import math
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np

from posenc import config, frequencies
from posenc.config import kinds, notes, unrotated
from posenc.config.growth import growth
from posenc.config.known import known_models
from posenc.config.model import open_model, stacks
from posenc.config.reading import checked

Array = np.ndarray
Fate = Literal["kept", "blended", "divided"]
DTYPES = ("bfloat16", "float16", "float32")
_OF_ROTATION = (
    *("pairing", "head_dim", "rotary_dim", "axes", "sections", "layout", "base", "rope_type", "factor", "inv_freq"),
    *("attention_factor", "score_factor", "original_max_len", "max_len", "window", "pairs", "critical_dim"),
    *("first_negative", "phase_error"),
)


def inspect(target: config.Source, *, pairing: config.Pairing | None = None) -> dict[str, Any]:
    """Return the position encoding of each kind of layer in a configuration, as plain JSON values.

    Args:
        target: A config.json, a directory that contains one, a mapping, or the name of a model in `known_models`.
        pairing: The pairing of head dimensions; None for that of the model type.

    Returns:
        `layers`, one entry for each kind: the number of axes of its positions and the pairs of each (`sections`,
        `layout`; None for one axis), frequencies, the effect of the scaling on pairs, the critical dimension (Liu
        2023), the first distance at which the sum of cosines is negative (Men 2024), and the phase error by dtype at
        the maximum length; and `warnings`. Frequencies that depend on the length are those at the maximum length.

    Raises:
        ValueError: The configuration cannot be read, has a value that no model can have, or has over 64 kinds.
        TypeError: It has a value of a wrong type.

    >>> found = inspect("llama-2-7b")
    >>> found["layers"][0]["critical_dim"], found["layers"][0]["first_negative"]["rotated"]
    (92, 1707)
    """
    trained = None
    if isinstance(target, str) and target in (models := known_models()) and not Path(target).exists():
        known = models[target]
        target, trained = known["config"], known["original_max_len"]
        pairing = known["pairing"] if pairing is None else pairing
    noted = notes.noted(target := checked(target), pairing=pairing)
    warned = [{"code": one.code, "key": one.key, "message": one.message} for one in noted]
    if len(parts := stacks(target)) > 1:
        each = {name: inspect(part, pairing=pairing) for name, part in parts.items()}
        rows = [row | {"kind": f"{name} {row['kind']}"} for name, found in each.items() for row in found["layers"]]
        return {"layers": rows, "warnings": warned}
    (target,) = parts.values()  # read once for all kinds
    if (ways := unrotated.ways(open_model(target))) is not None:
        rows = []
        for way in ways:
            row = {"kind": way.part, "count": way.count, "encoding": way.encoding, "options": dict(way.options)}
            rows.append(row | ({"also": dict(way.also)} if way.also else {}) | dict.fromkeys(_OF_ROTATION))
        return {"layers": rows, "warnings": warned}
    counts: list[tuple[str | None, int | None]] = [(None, None)]
    with suppress(ValueError):  # without the number of layers, read one kind; `rotary` raises if that is wrong
        counts = [*config.layer_types(target).items()]
    found = []
    for kind, count in counts:
        if kind is not None and not kinds.rotates(kind):
            encoding = "nope" if kind == kinds.NOPE else "none"
            row = {"kind": kind, "count": count, "encoding": encoding, **dict.fromkeys(_OF_ROTATION)}
            found.append(row | _also(target, kind, pairing))
            continue
        rotary = config.rotary(target, kind, pairing=pairing)
        found.append(_layer(target, rotary, count, pairing, trained) | _also(target, rotary.layer_type, pairing))
    return {"layers": found, "warnings": warned}


def fates(plain: Array, scaled: Array, factor: float | None) -> tuple[Fate, ...]:
    """Classify the effect of a scaling on each pair: kept, divided by the factor, or blended (anything else).

    Args:
        plain: Radians per position before the scaling, (n_pairs,).
        scaled: Radians per position after it.
        factor: The factor by which texts get longer; None if unknown.

    >>> fates(np.array([1.0, 0.5, 0.25]), np.array([1.0, 0.3, 0.125]), 2.0)
    ('kept', 'blended', 'divided')
    """
    kept = np.isclose(scaled, plain, rtol=1e-9, atol=0)
    divided = np.isclose(scaled, plain / (factor or 1.0), rtol=1e-9, atol=0)
    both = zip(kept.tolist(), divided.tolist(), strict=True)
    return tuple("kept" if stays else "divided" if falls else "blended" for stays, falls in both)


def _also(target: config.Source, kind: str, pairing: config.Pairing | None) -> dict[str, Any]:
    """Return the growth of the queries of a kind of layer, as another encoding, if they grow."""
    options = growth(target, kind, pairing=pairing)
    return {} if options is None else {"also": {"query_temperature": options}}


def _layer(
    target: config.Source,
    rotary: config.Rotary,
    count: int | None,
    pairing: config.Pairing | None,
    trained: int | None,
) -> dict[str, Any]:
    whole = frequencies.from_config(target, rotary.layer_type, pairing=pairing, seq_len=rotary.max_len)
    plain = frequencies.geometric(rotary.rotary_dim // 2, base=rotary.base, width=rotary.rotary_dim)
    original = rotary.original_max_len or trained or rotary.max_len
    resting = np.zeros((rotary.head_dim - rotary.rotary_dim) // 2)
    return {
        "kind": rotary.layer_type,
        "count": count,
        "encoding": "rope",
        "pairing": whole.pairing,
        "head_dim": rotary.head_dim,
        "rotary_dim": rotary.rotary_dim,
        "axes": len(rotary.sections or (0,)),
        "sections": rotary.sections and list(rotary.sections),
        "layout": rotary.layout,
        "base": rotary.base,
        "rope_type": rotary.rope_type,
        "factor": rotary.factor,
        "inv_freq": whole.inv_freq.tolist(),
        "attention_factor": whole.gain,
        "score_factor": whole.score_factor,
        "original_max_len": original,
        "max_len": rotary.max_len,
        "window": rotary.window,
        "pairs": _pairs(plain, whole.inv_freq, rotary.factor, original, rotary.max_len),
        "critical_dim": original
        and frequencies.critical_dim(width=rotary.rotary_dim, base=rotary.base, original_max_len=original),
        "first_negative": {
            "rotated": (rotated := frequencies.first_negative(whole.inv_freq)),
            "all": frequencies.first_negative(np.concatenate((whole.inv_freq, resting))) if len(resting) else rotated,
        },
        "phase_error": rotary.max_len and _phase_errors(whole.inv_freq, rotary.max_len),
    }


def _pairs(
    plain: Array, scaled: Array, factor: float | None, original: int | None, max_len: int | None
) -> dict[str, Any]:
    """Count the effects of the scaling on pairs, and list wavelengths and numbers of rotations."""
    turns, became = scaled / (2 * math.pi), fates(plain, scaled, factor)
    return {
        "kept": became.count("kept"),
        "blended": became.count("blended"),
        "divided": became.count("divided"),
        "never_full_turn": None if original is None else int((plain * original < 2 * math.pi).sum()),
        "wavelength": [1 / t if t else None for t in turns.tolist()],
        "turns_trained": None if original is None else (turns * original).tolist(),
        "turns_max": None if max_len is None else (turns * max_len).tolist(),
    }


def _phase_errors(inv_freq: Array, max_len: int) -> dict[str, float]:
    """Return by dtype the largest error, in radians up to pi, of angles computed in it near the maximum length."""
    pos = np.arange(max(max_len - 256, 0), max_len, dtype=np.float64)[:, None]
    errors = {}
    with np.errstate(over="ignore", invalid="ignore"):  # float16 ends at 65,504; beyond, the angle is arbitrary
        for name in DTYPES:
            off = _round(_round(pos, name) * _round(inv_freq, name), name).astype(np.float64) - pos * inv_freq
            part = np.abs(off - 2 * math.pi * np.round(off / (2 * math.pi))).max()
            errors[name] = float(part) if np.isfinite(part) else math.pi
    return errors


def _round(x: Array, dtype: str) -> Array:
    """Round to a dtype; bfloat16 is represented in float32, in which the product of two is exact."""
    if dtype != "bfloat16":
        return x.astype(dtype)
    bits = x.astype(np.float32).view(np.uint32)
    even = (bits >> 16) & 1  # ties go to the even neighbour
    return ((bits + 0x7FFF + even) & 0xFFFF0000).astype(np.uint32).view(np.float32)
