"""The arrays of one kind of layer that rotates: angles at chosen positions, and queries and keys before and after."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posenc.config import Pairing, Rotary
from posenc.config.axes import axes_of_pairs
from posenc.definitions.positions import mrope_positions

Array = NDArray[Any]
FAR = 2**20
N_HEADS = 2
MAX_NUMBERS = 1 << 22  # entries of one array; q with 30 positions and head_dim 256 has 15,360
SEGMENTS = (3, (1, 2, 3), 2, (2, 2, 2), 2)  # tokens of text; frames, rows and columns of an image and of a video
MEANINGS = {
    "inv_freq": "radians per position, one for each pair of dimensions (n_pairs,)",
    "inv_freq_float32": "inv_freq rounded to float32 (n_pairs,)",
    "positions": "positions in tokens (seq,), or of each axis (seq, n_axes): time, row, column",
    "cos": "gain * cos(position * inv_freq), radians, without unit (seq, n_pairs)",
    "sin": "gain * sin(position * inv_freq), radians, without unit (seq, n_pairs)",
    "q": "queries, multiples of 1/64 that bfloat16 represents exactly (n_heads, seq, head_dim)",
    "k": "keys, multiples of 1/64 that bfloat16 represents exactly (n_heads, seq, head_dim)",
    "q_rotated": "q, each token rotated by its own position (n_heads, seq, head_dim)",
    "k_rotated": "k, each token rotated by its own position (n_heads, seq, head_dim)",
}
LAW = (
    "Pair j rotates its dimensions (a, b): a' = a cos[j] - b sin[j], b' = b cos[j] + a sin[j]; clockwise, with -sin. "
    "With rotary_dim r and first dimension f: pairing half has a = f + j, b = f + j + r/2; interleaved has a = f + 2j, "
    "b = f + 2j + 1. Other dimensions are unchanged. axis_of_pair is the column of positions that pair j follows. "
    "cos and sin include the gain. Everything follows from the float64 numbers of inv_freq in the file."
)


def chosen(lengths: Sequence[int | None]) -> list[int]:
    """Return positions near 0, around each known length, and far away.

    They include all powers of two, which determine whole rotations.

    >>> chosen([4096, None])[-5:]
    [65536, 131072, 262144, 524288, 1048576]
    """
    powers = {2**i for i in range(FAR.bit_length())}
    ends = {p for n in lengths if n is not None for p in (n - 1, n)}
    return sorted({0, 3, 7} | powers | ends)


def placed(rotary: Rotary, positions: Sequence[int]) -> tuple[Array, list[Any]]:
    """Return positions as a model of this kind expects them, and the parts of a prompt before the given ones.

    With several axes, a prompt of text, an image and a video comes first, numbered as in Qwen2-VL; at the given
    positions all axes are equal, as in text.
    """
    text = np.array(positions, dtype=np.int64)
    if rotary.sections is None or rotary.layout == "doubled":
        return text, []
    n_axes, prompt = len(rotary.sections), mrope_positions(SEGMENTS).T
    return np.concatenate((prompt[:, -n_axes:], np.repeat(text[:, None], n_axes, 1))), list(SEGMENTS)


def axes_read(rotary: Rotary) -> list[int] | None:
    """Return the axis that each pair follows; None if positions have one axis."""
    if rotary.sections is None or rotary.layout in (None, "doubled"):
        return None
    return axes_of_pairs(rotary.sections, rotary.layout, rotary.rotary_dim // 2)


def first_dimension(rotary: Rotary) -> int:
    """Return the first rotated dimension of a head."""
    return rotary.head_dim - rotary.rotary_dim if rotary.rotary_side == "last" else 0


def arrays(rotary: Rotary, inv_freq: Array, gain: float, positions: Array) -> dict[str, Array]:
    """Return the arrays of one kind of layer in float64, and their inputs.

    Args:
        rotary: Its configuration.
        inv_freq: Radians per position, one for each pair.
        gain: The factor of rotated dimensions of queries and of keys.
        positions: (seq,), or (seq, n_axes).

    Raises:
        ValueError: There are too many numbers.
    """
    shape = (N_HEADS, len(positions), rotary.head_dim)
    if np.prod(shape) > MAX_NUMBERS:
        raise ValueError(
            f"golden: q may have at most {MAX_NUMBERS:,} numbers; got {len(positions):,} positions of {N_HEADS} heads "
            f"with {rotary.head_dim:,} dimensions. Pass fewer by --positions."
        )
    axes = axes_read(rotary)
    angle = (positions[:, None] if axes is None else positions[:, axes]) * inv_freq
    cos, sin = gain * np.cos(angle), gain * np.sin(angle)
    found = {"inv_freq": inv_freq, "inv_freq_float32": inv_freq.astype(np.float32), "positions": positions}
    found |= {"cos": cos, "sin": sin}
    inputs = {name: exact(shape, f"{name} {rotary.layer_type}") for name in ("q", "k")}
    turn = -sin if rotary.clockwise else sin
    rotated = {f"{name}_rotated": rotate(x, cos, turn, rotary.pairing, first_dimension(rotary))
               for name, x in inputs.items()}  # fmt: skip
    return found | inputs | rotated


def rotate(x: Array, cos: Array, sin: Array, pairing: Pairing, first: int) -> Array:
    """Return vectors (.., seq, head_dim) rotated counter-clockwise by cos and sin (seq, n_pairs), with the gain."""
    j = np.arange(cos.shape[-1])
    a, b = (j, j + len(j)) if pairing == "half" else (2 * j, 2 * j + 1)
    a, b = a + first, b + first
    out = np.array(x, dtype=np.float64)
    out[..., a] = x[..., a] * cos - x[..., b] * sin
    out[..., b] = x[..., b] * cos + x[..., a] * sin
    return out


def exact(shape: tuple[int, ...], seed: str) -> Array:
    """Return multiples of 1/64, from 1/64 to 2 in size and of both signs, the same on every machine."""
    draw = random.Random(seed).random
    numbers = [(1 + int(draw() * 128)) / 64 * (1 if draw() < 0.5 else -1) for _ in range(int(np.prod(shape)))]
    return np.array(numbers).reshape(shape)
