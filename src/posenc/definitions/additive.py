"""Definitions of the encodings that are added to the token vectors: positions (n,) -> (n, d_model).

With several axes (rows and columns, sentences and tokens) positions are (n, n_axes).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Positions = NDArray[Any]


def integer(pos: Positions, *, d_model: int) -> Array:
    """The position itself, in every dimension.

    No paper: the simplest idea. pos (n,) in positions, fractions allowed; result (n, d_model).
    """
    return np.array([[float(p)] * d_model for p in pos]).reshape(len(pos), d_model)


def normalised(pos: Positions, *, d_model: int, length: float, over: Literal["length", "last"] = "length") -> Array:
    """The position as a fraction of the sequence's length, in every dimension.

    No paper: the next idea after `integer`. pos / length ("length": 0 <= . < 1 within the sequence), or
    pos / (length - 1) ("last": the last position is 1). pos (n,) and length in positions, fractions of
    positions allowed; result (n, d_model), without unit. The last position of a sequence of one is 0. The formula
    gives 0 / 0 there; our convention is the divisor 1.
    """
    whole = {"length": length, "last": length - 1}[over] or 1
    return np.array([[float(p / whole)] * d_model for p in pos]).reshape(len(pos), d_model)


def sine(
    pos: Positions, *, d_model: int, spectrum: Literal["octaves", "geometric"] = "octaves", base: float = 10000.0
) -> Array:
    """Only sines of the position, no cosines: a step is then not a linear map of the vector.

    No paper: the step from `binary` to `sinusoidal` in expositions. Lane i is sin(pos / 2**i) ("octaves", the
    smoothed bits, base unused), or sin(pos / base**(i/(d_model-1))) ("geometric": divisors from 1 to base).

    pos (n,) in positions, fractions allowed; result (n, d_model). With one dimension the divisor is base**0 = 1.
    """
    out = np.zeros((len(pos), d_model))
    for i in range(d_model):
        omega = {"octaves": 2.0**-i, "geometric": base ** (-i / max(d_model - 1, 1))}[spectrum]
        out[:, i] = [math.sin(p * omega) for p in pos]
    return out


def sinusoidal(
    pos: Positions,
    *,
    d_model: int,
    base: float = 10000.0,
    order: Literal["alternating", "concatenated"] = "alternating",
    exponent: Literal["paper", "tensor2tensor"] = "paper",
    inv_freq: Array | None = None,
    learned_scale: float | None = None,
    scale: Array | float | None = None,
) -> Array:
    """Sines and cosines of the position, at frequencies in geometric progression.

    Paper: Vaswani et al. 2017, "Attention Is All You Need", arXiv 1706.03762, section 3.5:
    PE(pos, 2k) = sin(pos * omega_k), PE(pos, 2k+1) = cos(pos * omega_k), omega_k = base**(-2k/d_model).

    pos (n,) in positions, fractions allowed; omega_k in radians per position; result (n, d_model).
    inv_freq (n_freq,), n_freq = ceil(d_model/2), stands for omega when given; base and exponent are then unused.

    order "alternating" is the paper's; "concatenated" (all sines, then all cosines) is Tensor2Tensor's.
    exponent "paper" is the paper's formula. The paper also says that the wavelengths run from 2 pi to
    10000 * 2 pi; that holds only for "tensor2tensor", omega_k = base**(-k/(n_freq-1)), the exponent of
    the authors' code; by the formula the longest is base**(1 - 2/d_model) * 2 pi (even d_model).
    Not specified in the paper: odd d_model. Here the last sine has no cosine. (Tensor2Tensor instead uses
    floor(d_model/2) frequencies and appends a lane of zeros.) A single frequency is base**0 = 1.
    scale is not from the paper: one trained factor on all lanes (Li et al. 2018, arXiv 1809.08895, section 3.2,
    alpha); if it is not given, learned_scale, its value before training, replaces it.
    """
    factor = next((np.asarray(number).item() for number in (scale, learned_scale) if number is not None), 1.0)
    n_freq = math.ceil(d_model / 2)
    out = np.zeros((len(pos), d_model))
    for k in range(n_freq):
        power = {"paper": 2 * k / d_model, "tensor2tensor": k / max(n_freq - 1, 1)}[exponent]
        omega = base**-power if inv_freq is None else inv_freq[k]
        sin_lane, cos_lane = {"alternating": (2 * k, 2 * k + 1), "concatenated": (k, n_freq + k)}[order]
        out[:, sin_lane] = [math.sin(p * omega) for p in pos]
        if k < d_model // 2:
            out[:, cos_lane] = [math.cos(p * omega) for p in pos]
    return factor * out


def learned(
    pos: Positions, *, d_model: int, max_len: int, weight: Array, offset: int = 0, padding_idx: int | None = None
) -> Array:
    """One trained vector per position: row pos + offset of a table.

    Paper: Gehring et al. 2017, arXiv 1705.03122, section 3.1 (position embeddings); also Vaswani et al.
    2017, arXiv 1706.03762, section 3.5, and Devlin et al. 2018, arXiv 1810.04805, section 3.

    pos (n,) whole positions, 0 <= pos < max_len; weight (max_len + offset, d_model); result (n, d_model).
    offset is not from the papers: fairseq's models (BART, OPT, RoBERTa) keep 2 rows before that of position 0.
    If there is such a row, position -1 marks padding and uses the row just before that of position 0, offset - 1.
    padding_idx is the row that starts at zero and is not trained (RoBERTa's 1); unused here.
    Other positions outside the table are undefined and raise; they do not count from the end.
    """
    first = 0 if offset == 0 else -1
    out = np.zeros((len(pos), d_model))
    for i, p in enumerate(pos):
        if not first <= p < max_len:
            raise IndexError(f"position {p} is outside {first}..{max_len - 1}")
        out[i] = weight[int(p) + offset]
    return out


def binary(pos: Positions, *, d_model: int) -> Array:
    """The position written in base two, one bit per lane.

    No paper: positional notation. It is the usual picture of why sinusoids work, each being a smoothed
    bit (e.g. A. Kazemnejad 2019, "Transformer Architecture: The Positional Encoding", a web article).

    pos (n,) whole positions, 0 <= pos < 2**d_model; result (n, d_model) of 0.0 and 1.0: lane l holds
    floor(pos / 2**(d_model-1-l)) mod 2, so the most significant bit is in lane 0. By that formula a larger
    position loses its leading bits, and a negative one reads as two's complement.
    """
    out = np.zeros((len(pos), d_model))
    for i, p in enumerate(pos):
        for lane in range(d_model):
            out[i, lane] = math.floor(p / 2 ** (d_model - 1 - lane)) % 2
    return out


def time2vec(pos: Positions, *, d_model: int, inv_freq: Array, phase: Array) -> Array:
    """A lane that is linear in the position, and sines at trained frequencies and phases.

    Paper: Kazemi et al. 2019, "Time2Vec", arXiv 1907.05321, section 4, equation 1:
    lane 0 is inv_freq[0] * pos + phase[0], lane i > 0 is sin(inv_freq[i] * pos + phase[i]).

    pos (n,) in positions, fractions allowed; inv_freq (d_model,) in radians per position (lane 0: units per
    position), phase (d_model,) in radians; result (n, d_model). The paper counts k = d_model - 1 sines. It
    concatenates the vector to the token's features; adding it instead is our departure.
    """
    out = np.zeros((len(pos), d_model))
    for row, p in enumerate(pos):
        out[row, 0] = inv_freq[0] * p + phase[0]
        for i in range(1, d_model):
            out[row, i] = math.sin(inv_freq[i] * p + phase[i])
    return out


def tape(pos: Positions, *, d_model: int, length: float, base: float = 10000.0) -> Array:
    """The sinusoid with its frequencies stretched by d_model / length: fitted to the series' length.

    Paper: Foumani et al. 2023, "Improving Position Encoding of Transformers for Multivariate Time Series
    Classification" (ConvTran), arXiv 2305.16642, section 4 (tAPE): sin and cos of
    pos * omega_k * d_model / length, omega_k = base**(-2k/d_model), sines and cosines alternating.

    pos (n,) and length in positions, fractions allowed; omega_k in radians per position; result (n, d_model).
    Not specified in the paper: odd d_model. Here the last sine has no cosine, as in `sinusoidal`.
    """
    out = np.zeros((len(pos), d_model))
    for lane in range(d_model):
        omega = base ** (-2 * (lane // 2) / d_model) * d_model / length
        wave = math.sin if lane % 2 == 0 else math.cos
        out[:, lane] = [wave(p * omega) for p in pos]
    return out


def cape(
    pos: Positions,
    *,
    d_model: int,
    base: float = 10000.0,
    shift: float = 0.0,
    jitter: Array | float = 0.0,
    scale: float = 1.0,
) -> Array:
    """The sinusoid of positions that training shifts, jitters and stretches: (pos + shift + jitter) * scale.

    Paper: Likhomanenko et al. 2021, "CAPE", arXiv 2106.03143, section 3.1: one shift per sequence, uniform
    within +- max_global_shift, one jitter per token, within +- max_local_shift, and one scale per sequence,
    its logarithm uniform within +- log(max_global_scaling); in this order. The random numbers are arguments here; the
    defaults are evaluation, which is deterministic and equals `sinusoidal`.

    pos (n,) in positions, fractions allowed; shift a number, jitter one or (n,), in positions; scale without
    unit; result (n, d_model). The paper further subtracts the mean position where the absolute position is arbitrary
    (images, audio) and not for text; that is not done here.
    """
    each = np.broadcast_to(jitter, len(pos))
    return sinusoidal(
        np.array([(p + shift + j) * scale for p, j in zip(pos, each, strict=True)]), d_model=d_model, base=base
    )


def sinusoidal_nd(
    pos: Positions,
    *,
    d_model: int,
    n_axes: int = 2,
    base: float = 10000.0,
    order: Literal["alternating", "concatenated"] = "alternating",
    exponent: Literal["paper", "tensor2tensor"] = "paper",
) -> Array:
    """A sinusoid for each axis of the position, concatenated, axis 0 in the first lanes.

    Paper: Parmar et al. 2018, "Image Transformer", arXiv 1802.05751, section 3.1 (half of the lanes for the
    row, half for the column), each run of lanes being `sinusoidal` over its own width.

    pos (n, n_axes) in positions, fractions allowed; result (n, d_model). Not specified in the paper, from the public
    code (PyPI positional-encodings): each run is width = 2 * ceil(d_model/(2 n_axes)) lanes wide, so that every sine
    has its cosine, and lanes beyond d_model are cut from the end, from the last axes.
    """
    width = 2 * math.ceil(d_model / (2 * n_axes))
    out = np.zeros((len(pos), n_axes * width))
    for axis in range(n_axes):
        p = pos.reshape(-1, n_axes)[:, axis]
        lanes = slice(axis * width, (axis + 1) * width)
        out[:, lanes] = sinusoidal(p, d_model=width, base=base, order=order, exponent=exponent)
    return out[:, :d_model]


def learned_2d(pos: Positions, *, d_model: int, height: int, width: int, weight: Array, n_prefix: int = 0) -> Array:
    """One trained vector per patch of an image, counted row by row; prefix tokens have the first rows.

    Paper: Dosovitskiy et al. 2020, "An Image is Worth 16x16 Words" (ViT), arXiv 2010.11929, section 3.1: a
    table over the flattened patches, the class token first (n_prefix = 1).

    pos (n, 2) whole, (row, column) with 0 <= row < height and 0 <= column < width: row
    n_prefix + row * width + column of weight (n_prefix + height * width, d_model); result (n, d_model).
    Our convention: prefix token i (a class token, registers) stands at (-1, i) and has row i of weight.
    Other positions are undefined and raise.
    """
    out = np.zeros((len(pos), d_model))
    for i, (row, column) in enumerate(pos):
        if row == -1 and 0 <= column < n_prefix:
            out[i] = weight[int(column)]
        elif 0 <= row < height and 0 <= column < width:
            out[i] = weight[n_prefix + int(row) * width + int(column)]
        else:
            raise IndexError(f"position ({row}, {column}) is outside {height} x {width} and {n_prefix} prefixes")
    return out


def hierarchical(
    pos: Positions,
    *,
    d_model: int,
    axes: tuple[str, ...] = ("sinusoidal", "sinusoidal"),
    combine: Literal["sum", "concat"] = "sum",
) -> Array:
    """An encoding for each level of the position, such as the sentence and the token within it.

    No single paper: Devlin et al. 2018 (BERT), arXiv 1810.04805, section 3 adds segment and position vectors
    ("sum"); Parmar et al. 2018, arXiv 1802.05751, section 3.1 concatenates those of the coordinates ("concat").

    pos (n, len(axes)), in the units of each encoding; axes their names, here of encodings that need only d_model;
    result (n, d_model). "sum": each is d_model wide; "concat": each d_model/len(axes), a whole number.
    """
    kinds: dict[str, Callable[..., Array]] = {
        "integer": integer,
        "sine": sine,
        "binary": binary,
        "sinusoidal": sinusoidal,
        "cape": cape,
    }
    width = {"sum": d_model, "concat": d_model // len(axes)}[combine]
    if unknown := [name for name in axes if name not in kinds]:
        raise NotImplementedError(f"{unknown} need more than d_model")
    out = np.zeros((len(pos), d_model))
    for axis, name in enumerate(axes):
        lanes = {"sum": slice(0, d_model), "concat": slice(axis * width, (axis + 1) * width)}[combine]
        out[:, lanes] += kinds[name](pos.reshape(len(pos), -1)[:, axis], d_model=width)
    return out
