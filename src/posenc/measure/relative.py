"""How much p_m · H p_n depends on relative position: its parts that depend on m - n, on m + n, and on both."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Complex128, Float64

from posenc.encodings.sinusoidal import Sinusoidal
from posenc.measure.asking import exact, plain, read_both
from posenc.measure.values import Array, Numbers, matrix, numbers


@dataclass(frozen=True)
class RelativeParts:
    """The parts of p_m · H p_n for sinusoidal p; `total` is their sum.

    Args:
        total: p_m · H p_n for the encoding's vectors, (q, k).
        difference: The part that depends only on m - n, (q, k).
        sum: The part that depends only on m + n, (q, k).
        mixed: The part that depends on both, (q, k): products of dimensions with different frequencies.
        shares: The share of each part in the mean square over infinitely many positions, where the parts do not
            overlap; they add up to 1.
        inv_freq: The distinct frequencies of the sines, radians per position, (n,).
        difference_waves: c with difference = sum of Re(c exp(i (m - n) inv_freq)), (n,).
        sum_waves: c with sum = sum of Re(c exp(i (m + n) inv_freq)), (n,).
    """

    total: Float64[Array, "q k"] = field(repr=False)
    difference: Float64[Array, "q k"] = field(repr=False)
    sum: Float64[Array, "q k"] = field(repr=False)
    mixed: Float64[Array, "q k"] = field(repr=False)
    shares: Mapping[str, float]
    inv_freq: Float64[Array, " n"] = field(repr=False)
    difference_waves: Complex128[Array, " n"] = field(repr=False)
    sum_waves: Complex128[Array, " n"] = field(repr=False)


@dataclass(frozen=True)
class DistanceShares:
    """How much of a symmetric matrix over positions m - n and m + n explain.

    Args:
        difference: The share of the variance of its pairs m > n that the means over equal m - n explain, from 0 to 1.
        sum: The same for equal m + n. The two may overlap.
        chance: The averages of both for random numbers, in this order.
    """

    difference: float
    sum: float
    chance: tuple[float, float]


def relative_parts(
    encoding: Sinusoidal, pos: Numbers, k_pos: Numbers | None = None, *, block: Numbers = 1.0
) -> RelativeParts:
    """Split p_m · H p_n into parts that depend on m - n, on m + n, and on both.

    With H = 1 everything depends on m - n: the sum of cos((m - n) θ). With a diagonal H each pair of dimensions h, h'
    (sine, cosine) gives (h + h') / 2 cos((m - n) θ) and (h' - h) / 2 cos((m + n) θ). Products of dimensions with two
    frequencies oscillate with both m θ - n θ' and m θ + n θ', so a general H mixes m - n and m + n.

    Args:
        encoding: The encoding; its current frequencies, order and scale are used.
        pos: Positions m: one number or (q,) numbers.
        k_pos: Positions n, (k,); the same as m if left out.
        block: H: a matrix (d_model, d_model) as from `interaction_block`, a diagonal (d_model,), or a number times the
            identity.

    Source: Su 2021, kexue.fm/archives/8231, sections on the relative position of the second-order term.

    >>> parts = relative_parts(Sinusoidal(d_model=4), range(3))
    >>> parts.shares
    {'difference': 1.0, 'sum': 0.0, 'mixed': 0.0}
    >>> parts.difference[2].round(4).tolist()  # cos(2) + cos(0.02), cos(1) + cos(0.01), 2
    [0.5837, 1.5403, 2.0]
    """
    if not isinstance(encoding, Sinusoidal):
        raise TypeError(
            f"relative_parts: encoding must be a Sinusoidal; got {type(encoding).__name__}. For other vectors compute "
            "p_m · H p_n and pass it to distance_shares."
        )
    who = "relative_parts"
    h = _block(who, block, encoding.d_model)
    m, n = read_both(who, encoding, pos, k_pos)
    same: Any = exact(encoding, m, n)
    with torch.no_grad():
        total = plain(same.vectors(m)) @ h @ plain(same.vectors(n)).T
        inv_freq, lanes = _waves(same)
    # p_m = lanes @ exp(i m speed), so p_m · H p_n is a sum over pairs of waves, and each pair belongs to one part
    speed = np.concatenate((inv_freq, -inv_freq[inv_freq > 0]))
    wave_m, wave_n = (np.exp(1j * np.outer(pos.double().numpy(), speed)) for pos in (m, n))
    strength = lanes.T @ h @ lanes
    power = np.abs(strength) ** 2
    opposite = speed[:, None] == -speed
    alike = (speed[:, None] == speed) & ~opposite
    of_parts = [strength * mask for mask in (opposite, alike)]
    difference, both = ((wave_m @ part @ wave_n.T).real for part in of_parts)
    if not power.any():
        raise ValueError(f"{who}: block must not be zero, because zero has no parts.")
    square = {"difference": power[opposite].sum(), "sum": power[alike].sum(), "mixed": power[~(opposite | alike)].sum()}
    shares = {name: float(value / power.sum()) for name, value in square.items()}
    # each wave has one partner in a part; with its conjugate it counts twice, unless its frequency is 0
    waves = [np.where(inv_freq > 0, 2, 1) * part.sum(1)[: len(inv_freq)] for part in of_parts]
    return RelativeParts(total, difference, both, total - difference - both, shares, inv_freq, *waves)


def distance_shares(values: Numbers) -> DistanceShares:
    """Return how much of a symmetric matrix over positions 0 .. n - 1 depends on m - n, and how much on m + n.

    Use it for measured matrices such as `TaylorTerms.interaction`, where every pair of tokens has its own H. The
    diagonal is left out. The matrix must have at least 4 positions, and pairs must differ.

    >>> m = np.arange(6.0)
    >>> round(distance_shares(np.cos(m[:, None] - m)).difference, 12)
    1.0
    """
    found = matrix("distance_shares", "values", values)
    size = len(found)
    if found.shape[1] != size or size < 4 or not np.allclose(found, found.T, atol=1e-6 * np.abs(found).max()):
        raise ValueError(
            f"distance_shares: values must be a symmetric matrix of 4 positions or more; got shape {found.shape}."
        )
    m, n = np.tril_indices(size, -1)
    pairs = found[m, n] - found[m, n].mean()
    variance = float((pairs**2).sum())
    if not variance:
        raise ValueError("distance_shares: values must differ between pairs; all are the same.")
    shares, chance = [], []
    for groups in (m - n, m + n):
        counts, sums = np.bincount(groups), np.bincount(groups, pairs)
        counts, sums = counts[counts > 0], sums[counts > 0]
        shares.append(float((sums**2 / counts).sum()) / variance)
        chance.append((len(counts) - 1) / (len(pairs) - 1))
    return DistanceShares(shares[0], shares[1], (chance[0], chance[1]))


def _block(who: str, given: Numbers, d_model: int) -> Float64[Array, "d_model d_model"]:
    """Return H as a matrix."""
    shapes = (), (d_model,), (d_model, d_model)
    form = f"be {shapes[2]}, as wide as the encoding's d_model, or a diagonal {shapes[1]}, or one number"
    values = numbers(who, "block", given, form, shapes.__contains__).astype(np.float64)
    return values if values.ndim == 2 else np.eye(d_model) * values


def _waves(encoding: Sinusoidal) -> tuple[Float64[Array, " n"], Complex128[Array, "d_model waves"]]:
    """Return the distinct frequencies, and each dimension's amplitudes of exp(i pos θ), then exp(-i pos θ), θ > 0."""
    signed = plain(encoding.inv_freqs().double())
    lane = np.arange(encoding.d_model)
    alternating = encoding.order == "alternating"
    pair, cosine = (lane // 2, lane % 2 == 1) if alternating else (lane % len(signed), lane >= len(signed))
    inv_freq, which = np.unique(np.abs(signed), return_inverse=True)
    scale = 1.0 if encoding.learned_scale is None else float(encoding.scale)
    half = scale / 2 * np.where(cosine, 1.0, -1j * np.sign(signed[pair]))  # cos x = Re e^ix, sin x = Re -i e^ix
    up = np.zeros((encoding.d_model, len(inv_freq)), np.complex128)
    up[lane, which[pair]] = half
    constant = inv_freq == 0  # a wave of frequency 0 is its own conjugate
    return inv_freq, np.concatenate((up + up.conj() * constant, up[:, ~constant].conj()), 1)
