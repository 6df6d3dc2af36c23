"""Scores of attention under an encoding, with every choice a parameter of the model."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posenc import config, definitions
from posenc.frequencies import from_config
from posenc.verify.engine import CannotTellError
from posenc.verify.engine.precision import rounded
from posenc.verify.engine.records import Array, Model

Shown = NDArray[np.bool_]  # where a weight can be seen
ROTATIONS = ("rope", "xpos")
NUMBERS = ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor")


@dataclass(frozen=True)
class Asked:
    """The words of a specification; a missing one gets its usual value."""

    encoding: str
    heads: int | None
    head_dim: int
    scale: float
    rotary_dim: int = 0
    base: float = 10000.0
    layout: str = "half"
    inv_freq: Array = field(default_factory=lambda: np.zeros(0))
    side: str = "first"
    gain: float = 1.0  # of the dimensions that are rotated


def asked(spec: Mapping[str, Any]) -> Asked:
    """Read a specification.

    Raises:
        CannotTellError: It names a scaling without the numbers that the scaling needs.
        ValueError: Its configuration says something impossible.
    """
    encoding, heads = str(spec.get("encoding") or ""), spec.get("heads")
    head_dim = int(spec.get("head_dim") or 16)
    heads = None if heads is None else int(heads)
    if encoding not in ROTATIONS:
        return Asked(encoding, heads, head_dim, 1 / math.sqrt(head_dim))
    given = dict(spec.get("config") or _configuration(spec, head_dim))
    pairing = None if given.get("model_type") else spec.get("layout")  # a known type says it itself
    if pairing is None and not spec.get("config"):
        pairing = "half"
    read = from_config(given, pairing=pairing) if pairing else from_config(given)
    return Asked(
        encoding,
        heads,
        int(spec.get("head_dim") or given.get("head_dim") or max(head_dim, read.rotary_dim)),
        read.score_factor / math.sqrt(int(spec.get("head_dim") or given.get("head_dim") or head_dim)),
        read.rotary_dim,
        float(spec.get("base") or given.get("rope_theta") or 10000.0),
        str(spec.get("layout") or read.pairing),
        read.inv_freq.double().numpy(),
        str(spec.get("rotary_side") or config.rotary(given, pairing=pairing).rotary_side),
        read.gain,
    )


def _configuration(spec: Mapping[str, Any], head_dim: int) -> dict[str, Any]:
    """Return a configuration with the words of a specification.

    Raises:
        CannotTellError: The factor of a scaling is missing.
    """
    scaling = spec.get("scaling") or "default"
    if not isinstance(scaling, Mapping):
        scaling = {"rope_type": scaling, **{word: spec[word] for word in NUMBERS if spec.get(word) is not None}}
    if scaling.get("rope_type", scaling.get("type")) not in ("none", "default", None) and "factor" not in scaling:
        raise CannotTellError(
            "the scaling needs numbers that the specification does not give: give them as a mapping "
            "{'rope_type': .., 'factor': ..}, or the model's config"
        )
    scaled = {} if scaling.get("rope_type") in ("none", "default") else {"rope_scaling": dict(scaling)}
    base = spec.get("base") or scaling.get("rope_theta") or 10000.0
    length = spec.get("max_positions") or scaling.get("original_max_position_embeddings") or 4096
    width = int(spec.get("rotary_dim") or head_dim)
    return {"rope_theta": float(base), "max_position_embeddings": length, "head_dim": width, **scaled}


def geometric(rotary: int, base: float, divisor: int | None = None) -> Array:
    """Return base ** (-2 i / rotary), or with another divisor."""
    exponents = -np.arange(0, rotary, 2) / (divisor or rotary)
    found: Array = base**exponents
    return found


def truth(here: Asked, spec: Mapping[str, Any]) -> Model:
    """Return the parameters of what is asked for."""
    return {
        "given": True,  # the positions that are given, not 0, 1, 2, ..
        "shift_q": 0,
        "shift_k": 0,
        "sign_q": 1,  # 0: not rotated
        "sign_k": 1,
        "layout_q": here.layout,
        "layout_k": here.layout,
        "inv_q": here.inv_freq,
        "inv_k": here.inv_freq,
        "rotary": here.rotary_dim,
        "by": "position",  # or the "head", or the "place" that has the head's number
        "last": None,  # farther positions share this one
        "wraps": None,  # positions begin again here
        "round_positions": None,
        "round_frequencies": None,
        "round_table": None,  # of cos and sin
        "size_q": 1,  # xPos's sizes: the power on q and on k
        "size_k": -1,
        "gamma": float(spec.get("gamma") or 0.4),
        "scale_base": float(spec.get("scale_base") or 512.0),
        "slopes": "authors",
        "order": None,  # of the heads
        "bias": -1.0,
        "sums": True,  # the weights of a row add up to 1, or a sink takes the rest
    }


def scores(here: Asked, m: Model, q: Array, k: Array, positions: Array) -> tuple[Array, Array]:
    """Return q.k before any scale, and what is added: (batch, heads, n, n)."""
    p = positions if m["given"] else np.arange(len(positions), dtype=np.float64)
    p = rounded(p, m["round_positions"])
    p = p if m["last"] is None else np.minimum(p, m["last"])
    p = p if m["wraps"] is None else p % m["wraps"]
    bias = np.zeros(1)
    if here.encoding == "alibi":
        bias = m["bias"] * slopes(m, q.shape[1]) * np.abs(p[:, None] - p)
    if here.encoding in ROTATIONS:
        at = _places(p, m["by"], q.shape[1])
        q = rotated(here, m, q, at, "q")
        k = rotated(here, m, k, at, "k")
    return q @ k.swapaxes(-1, -2), bias


def _places(p: Array, by: str, heads: int) -> Array:
    """Return what each query and key is rotated by: (1 | heads, n)."""
    if by == "position":
        return p[None]
    rows = np.arange(heads, dtype=np.float64) if by == "head" else np.resize(p, heads)
    return np.broadcast_to(rows[:, None], (heads, len(p)))


def slopes(m: Model, heads: int) -> Array:
    """Return ALiBi's slopes (heads, 1, 1), read off the definition's bias at distance 1."""
    if m["slopes"] == "from one":
        series = 2.0 ** (-8.0 * np.arange(heads) / heads)
    else:
        found = definitions.find("alibi")
        assert found is not None
        series = -found(np.array([1.0]), np.array([0.0]), n_heads=heads, slopes=m["slopes"])[:, 0, 0]
    series = series if m["order"] is None else series[list(m["order"])]
    shaped: Array = series[:, None, None]
    return shaped


def rotated(here: Asked, m: Model, x: Array, at: Array, side: str) -> Array:
    """Rotate dimensions on one side of x (batch, heads, n, head_dim), and give them xPos's sizes."""
    width, inv_freq = m["rotary"], rounded(m[f"inv_{side}"], m["round_frequencies"])
    angle = m[f"sign_{side}"] * (at + m[f"shift_{side}"])[..., None] * inv_freq
    cut = x.shape[-1] - width if here.side == "last" else width
    head, tail = x[..., :cut], x[..., cut:]
    still, moved = (head, tail) if here.side == "last" else (tail, head)
    pairs = pair(moved, m[f"layout_{side}"])
    cos, sin = (rounded(table, m["round_table"]) for table in (np.cos(angle), np.sin(angle)))
    spun = (pairs[0] + 1j * pairs[1]) * (cos + 1j * sin)
    moved = here.gain * unpair(np.stack([spun.real, spun.imag]), m[f"layout_{side}"])
    if here.encoding == "xpos":
        n = width // 2
        zeta = (np.arange(n) / n + m["gamma"]) / (1 + m["gamma"])
        size = zeta ** (at[..., None] / m["scale_base"] * m[f"size_{side}"])
        moved = moved * unpair(np.stack([size, size]), m[f"layout_{side}"])
    return np.concatenate((still, moved) if here.side == "last" else (moved, still), -1)


def pair(x: Array, layout: str) -> Array:
    """Return the first and the second dimensions of pairs: (2, ..., n_pairs)."""
    return np.stack(np.split(x, 2, -1) if layout == "half" else [x[..., ::2], x[..., 1::2]])


def unpair(pairs: Array, layout: str) -> Array:
    """Return x of its pairs."""
    if layout == "half":
        return np.concatenate([pairs[0], pairs[1]], -1)
    return np.stack([pairs[0], pairs[1]], -1).reshape(*pairs.shape[1:-1], -1)


def rowless(t: Array, shown: Shown) -> Array:
    """Return an array less the mean of what is seen in each row, 0 where nothing is seen."""
    kept = np.where(shown, t, 0.0)
    mean = kept.sum(-1, keepdims=True) / np.maximum(shown.sum(-1, keepdims=True), 1)
    found: Array = np.where(shown, kept - mean, 0.0)
    return found
