"""What p_m · H p_n can say of relative position: its parts of m - n, of m + n, and of both."""

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
        total: p_m · H p_n of the vectors that the encoding makes, (q, k).
        difference: What depends on m - n only, (q, k).
        sum: What depends on m + n only, (q, k).
        mixed: What depends on both, (q, k): products of lanes of different frequencies.
        shares: Of each, its part of the mean square over all positions without end, where they do not overlap; of 1.
        inv_freq: The frequencies of the sines, radians per position, each once, (n,).
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
    """How much of a symmetric matrix over positions is explained by m - n, and by m + n.

    Args:
        difference: The part of the variance of its pairs m > n that the means over equal m - n explain; of 1.
        sum: The same for equal m + n. The two may overlap.
        chance: What both would be on average, in this order, for numbers without any order.
    """

    difference: float
    sum: float
    chance: tuple[float, float]


def relative_parts(
    encoding: Sinusoidal, pos: Numbers, k_pos: Numbers | None = None, *, block: Numbers = 1.0
) -> RelativeParts:
    """Split p_m · H p_n into what depends on m - n, on m + n, and on both.

    With H = 1 all of it depends on m - n: the sum of cos((m - n) θ). With a diagonal H each pair of lanes h, h' gives
    (h + h') / 2 cos((m - n) θ) and (h' - h) / 2 cos((m + n) θ), sine before cosine. Products of lanes of two
    frequencies swing with both m θ - n θ' and m θ + n θ', so that a general H mixes m - n and m + n.

    Args:
        encoding: Its frequencies, order and scale are taken as they stand.
        pos: Positions m, (q,) numbers or one.
        k_pos: Positions n, (k,); the same as m if left out.
        block: H, (d_model, d_model) as `interaction_block` returns; (d_model,) is a diagonal, a number its multiple
            of the identity.

    Source: Su 2021, kexue.fm/archives/8231, sections on the relative position of the second-order term.

    >>> parts = relative_parts(Sinusoidal(d_model=4), range(3))
    >>> parts.shares
    {'difference': 1.0, 'sum': 0.0, 'mixed': 0.0}
    >>> parts.difference[2].round(4).tolist()  # cos(2) + cos(0.02), cos(1) + cos(0.01), 2
    [0.5837, 1.5403, 2.0]
    """
    if not isinstance(encoding, Sinusoidal):
        raise TypeError(
            f"relative_parts: encoding must be a Sinusoidal; got {type(encoding).__name__}. For other vectors form "
            "p_m · H p_n and ask distance_shares."
        )
    who = "relative_parts"
    h = _block(who, block, encoding.d_model)
    m, n = read_both(who, encoding, pos, k_pos)
    same: Any = exact(encoding, m, n)
    with torch.no_grad():
        total = plain(same.vectors(m)) @ h @ plain(same.vectors(n)).T
        inv_freq, lanes = _waves(same)
    # p_m = lanes @ exp(i m speed), so that p_m · H p_n is a sum over two waves, each of which belongs to one part
    speed = np.concatenate((inv_freq, -inv_freq[inv_freq > 0]))
    turn_m, turn_n = (np.exp(1j * np.outer(pos.double().numpy(), speed)) for pos in (m, n))
    strength = lanes.T @ h @ lanes
    power = np.abs(strength) ** 2
    opposite = speed[:, None] == -speed
    alike = (speed[:, None] == speed) & ~opposite
    of_parts = [strength * mask for mask in (opposite, alike)]
    difference, both = ((turn_m @ part @ turn_n.T).real for part in of_parts)
    if not power.any():
        raise ValueError(f"{who}: block must not be zero, which has no parts.")
    square = {"difference": power[opposite].sum(), "sum": power[alike].sum(), "mixed": power[~(opposite | alike)].sum()}
    shares = {name: float(value / power.sum()) for name, value in square.items()}
    # each wave has one partner in a part; with its conjugate it counts twice, unless it stands still
    waves = [np.where(inv_freq > 0, 2, 1) * part.sum(1)[: len(inv_freq)] for part in of_parts]
    return RelativeParts(total, difference, both, total - difference - both, shares, inv_freq, *waves)


def distance_shares(values: Numbers) -> DistanceShares:
    """Return how much of a symmetric matrix over positions 0 .. n - 1 depends on m - n, and how much on m + n.

    For what is measured, as `TaylorTerms.interaction` of neighbouring tokens: there every pair has an H of its own. The
    diagonal is left out. There must be 4 positions at least, and pairs that differ.

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
    """Return each frequency once, and the strength of exp(i pos θ), then of exp(-i pos θ) for θ > 0, in each lane."""
    signed = plain(encoding.inv_freqs().double())
    lane = np.arange(encoding.d_model)
    alternating = encoding.order == "alternating"
    pair, cosine = (lane // 2, lane % 2 == 1) if alternating else (lane % len(signed), lane >= len(signed))
    inv_freq, which = np.unique(np.abs(signed), return_inverse=True)
    scale = 1.0 if encoding.learned_scale is None else float(encoding.scale)
    half = scale / 2 * np.where(cosine, 1.0, -1j * np.sign(signed[pair]))  # cos x = Re e^ix, sin x = Re -i e^ix
    up = np.zeros((encoding.d_model, len(inv_freq)), np.complex128)
    up[lane, which[pair]] = half
    still = inv_freq == 0  # a wave that does not move is its own opposite
    return inv_freq, np.concatenate((up + up.conj() * still, up[:, ~still].conj()), 1)
