"""Definitions of the encodings that are added to the token vectors: positions (n,) -> (n, d_model)."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Positions = NDArray[Any]


def sinusoidal(
    pos: Positions,
    *,
    d_model: int,
    base: float = 10000.0,
    order: Literal["alternating", "concatenated"] = "alternating",
    exponent: Literal["paper", "tensor2tensor"] = "paper",
    inv_freq: Array | None = None,
) -> Array:
    """Sines and cosines of the position, at frequencies in geometric progression.

    Paper: Vaswani et al. 2017, "Attention Is All You Need", arXiv 1706.03762, section 3.5:
    PE(pos, 2k) = sin(pos * omega_k), PE(pos, 2k+1) = cos(pos * omega_k), omega_k = base**(-2k/d_model).

    pos (n,) in positions, fractions allowed; omega_k in radians per position; result (n, d_model).
    inv_freq (n_freq,), n_freq = ceil(d_model/2), stands for omega when given; base and exponent then idle.

    order "alternating" is the paper's; "concatenated" (all sines, then all cosines) is Tensor2Tensor's.
    exponent "paper" is the paper's formula. The paper also says that the wavelengths run from 2 pi to
    10000 * 2 pi; that is true only of "tensor2tensor", omega_k = base**(-k/(n_freq-1)), the exponent of
    the authors' code; by the formula the longest is base**(1 - 2/d_model) * 2 pi (even d_model).
    Silent in the paper: odd d_model. Here the last sine has no cosine. (Tensor2Tensor instead takes
    floor(d_model/2) frequencies and appends a lane of zeros.) One lone frequency is base**0 = 1.
    """
    n_freq = math.ceil(d_model / 2)
    out = np.zeros((len(pos), d_model))
    for k in range(n_freq):
        power = {"paper": 2 * k / d_model, "tensor2tensor": k / max(n_freq - 1, 1)}[exponent]
        omega = base**-power if inv_freq is None else inv_freq[k]
        sin_lane, cos_lane = {"alternating": (2 * k, 2 * k + 1), "concatenated": (k, n_freq + k)}[order]
        out[:, sin_lane] = [math.sin(p * omega) for p in pos]
        if k < d_model // 2:
            out[:, cos_lane] = [math.cos(p * omega) for p in pos]
    return out


def learned(pos: Positions, *, d_model: int, max_len: int, weight: Array, offset: int = 0) -> Array:
    """One trained vector per position: row pos + offset of a table.

    Paper: Gehring et al. 2017, arXiv 1705.03122, section 3.1 (position embeddings); also Vaswani et al.
    2017, arXiv 1706.03762, section 3.5, and Devlin et al. 2018, arXiv 1810.04805, section 3.

    pos (n,) whole positions, 0 <= pos < max_len; weight (max_len + offset, d_model); result (n, d_model).
    offset is not of the papers: fairseq's models (BART, OPT) keep 2 rows ahead of that of position 0.
    Positions off the table have no meaning and raise; a negative one does not count from the end.
    """
    out = np.zeros((len(pos), d_model))
    for i, p in enumerate(pos):
        if not 0 <= p < max_len:
            raise IndexError(f"position {p} is outside 0..{max_len - 1}")
        out[i] = weight[int(p) + offset]
    return out


def binary(pos: Positions, *, d_model: int) -> Array:
    """The position written in base two, one bit to a lane.

    No paper: positional notation. It is the usual picture of why sinusoids work, each being a smoothed
    bit (e.g. A. Kazemnejad 2019, "Transformer Architecture: The Positional Encoding", a web article).

    pos (n,) whole positions, 0 <= pos < 2**d_model; result (n, d_model) of 0.0 and 1.0: lane l holds
    floor(pos / 2**(d_model-1-l)) mod 2, so the most significant bit is in lane 0. By that formula a larger
    position loses its leading bits, and a negative one reads as two's complement.
    """
    return np.array(
        [[float((math.floor(p) >> (d_model - 1 - lane)) & 1) for lane in range(d_model)] for p in pos]
    ).reshape(len(pos), d_model)
