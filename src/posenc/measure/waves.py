"""The waves of an encoding: the frequency of each pair of dimensions, and sums over the pairs by distance."""

import math
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from posenc.encoding import Encoding
from posenc.encodings import ComplexOrder, Time2Vec
from posenc.families import Additive, OwnFrequencies
from posenc.families.numbers import size
from posenc.languages import tr
from posenc.measure.asking import check
from posenc.measure.values import Array, Numbers, reals
from posenc.precision import phase_error

OfDistance = Callable[[Array], Array]
_ROWS = 2**20  # cosines computed together: 8 MB
_TOLERANCE = (
    1e-9  # radians, or units of a vector, by which numbers may differ from sines and cosines of pos @ frequencies
)
_MOST = 10**7  # samples of a function in the search for its zeros


def frequencies_of(encoding: Encoding) -> Float64[Array, "*heads n_axes n_pairs"]:
    """Return the frequency of each pair of dimensions on each axis, in radians per position.

    For a rotary encoding these are the frequencies of its tables; for an additive one those of the sines in its
    vectors, in order, with or without a cosine.

    The encoding must rotate pairs by pos @ frequencies, or add their sines and cosines (`Sinusoidal`, `TAPE`,
    `GaussianFourier`, ..), and be resolved if it depends on the length. Heads come first if each has its own
    frequencies.

    >>> from posenc import RoPE
    >>> frequencies_of(RoPE(head_dim=4))
    array([[1.  , 0.01]])
    """
    check("frequencies_of", encoding)
    found = None
    with torch.no_grad():
        if hasattr(encoding, "frequencies"):
            found = _of_tables(encoding)
        elif isinstance(encoding, OwnFrequencies):
            found = encoding.inv_freqs()[None]
        elif isinstance(encoding, ComplexOrder):
            found = encoding.inv_freq[None]
        elif isinstance(encoding, Time2Vec):
            found = encoding.inv_freq[None, 1:]  # dimension 0 is linear
    if isinstance(encoding, Additive) and encoding.accepts_real and found is None:
        found = _of_vectors(encoding)
    if found is None:
        why = tr(
            "{name:s} has no wavelengths, because its numbers are not sines and cosines of frequencies times "
            "positions. Pass a rotary encoding, or a sinusoidal one.",
            name=encoding.name,
        )
        raise ValueError(f"frequencies_of: {why}")
    return found.detach().double().cpu().numpy()


def wavelengths(encoding: Encoding) -> Float64[Array, "*heads n_axes n_pairs"]:
    """Return the wavelength of each pair on each axis, in positions per full rotation; infinite for frequency 0.

    >>> from posenc import RoPE
    >>> wavelengths(RoPE(head_dim=4)).round(2)
    array([[  6.28, 628.32]])
    """
    with np.errstate(divide="ignore"):
        return np.asarray(2 * math.pi / np.abs(frequencies_of(encoding)))


def turns(encoding: Encoding, length: float | int) -> Float64[Array, "*heads n_axes n_pairs"]:
    """Return the number of full rotations of each pair within a length in positions: the length over the wavelength.

    >>> from posenc import RoPE
    >>> turns(RoPE(head_dim=4), 4096).round(2)
    array([[651.9 ,   6.52]])
    """
    return size("turns", "length", length) / wavelengths(encoding)


def dot_by_distance(inv_freq: Numbers, distance: Numbers) -> Float64[Array, " n"]:
    """Return the sum over the pairs of cos(distance · frequency).

    It is the dot product of two sinusoidal vectors, and the score of q = k = (1, 0, 1, 0, ..) under RoPE. In float64
    the error of a term is 1e-16 times its angle: 1e-10 at a distance of a million.

    Frequencies are radians per position, one per pair, or one row of `frequencies_of`. Distances are (n,) positions;
    negative ones look ahead.

    >>> dot_by_distance([1.0, 0.01], [0, 1]).round(4)
    array([2.    , 1.5403])
    """
    return _over_angles("dot_by_distance", inv_freq, distance, lambda angle: np.cos(angle).sum(-1))


def cosine_by_distance(inv_freq: Numbers, distance: Numbers) -> Float64[Array, " n"]:
    """Return the cosine of the angle between two sinusoidal vectors: `dot_by_distance` over the number of pairs.

    The squared length of a sinusoidal vector is its number of pairs, because each pair is a sine and a cosine.

    >>> cosine_by_distance([1.0, 0.01], 1).round(4)
    array([0.7701])
    """
    return _over_angles("cosine_by_distance", inv_freq, distance, lambda angle: np.cos(angle).mean(-1))


def decay_bound(inv_freq: Numbers, distance: Numbers) -> Float64[Array, " n"]:
    """Return the mean over j = 1 .. n_pairs of |sum over the first j pairs of exp(i · distance · frequency)|.

    Multiplied by the largest step between products of q and k of neighbouring pairs, it bounds the score under RoPE.
    This is the argument of Su 2021 (2104.09864), section 3.4.3, that scores fall with distance. The bound falls; scores
    need not.

    The arguments are those of `dot_by_distance`, with the fastest pair first, in the order of the summation by parts.

    >>> decay_bound([1.0, 0.01], 0)
    array([1.5])
    """
    return _over_angles("decay_bound", inv_freq, distance, lambda angle: np.abs(np.exp(1j * angle).cumsum(-1)).mean(-1))


def zeros(
    function_of_distance: OfDistance, start: float | int, end: float | int, *, step: float | int = 0.5
) -> Float64[Array, " n"]:
    """Return the distances where a function changes its sign, to the last bits, and samples at which it is zero.

    Args:
        function_of_distance: Maps distances (n,) to real numbers (n,), such as `lambda x: continuous_limit(x).real`.
        start: The first distance, in positions.
        end: The last distance.
        step: The distance between samples; two sign changes within one step may both be missed. Half a position is
            enough for frequencies up to 1. At most ten million samples are allowed.

    >>> zeros(np.cos, 0.0, 5.0).round(6)
    array([1.570796, 4.712389])
    """
    (low, high), step = reals("zeros", "start and end", [start, end]), size("zeros", "step", step)
    if not low < high or (high - low) / step > _MOST:
        raise ValueError(
            f"zeros: end must be after start, by at most {_MOST:,} steps; got start={start}, end={end}, step={step}."
        )
    pos = np.linspace(low, high, 2 + math.ceil((high - low) / step))
    value = _ask(function_of_distance, pos)
    exact = pos[value == 0]
    change = np.flatnonzero(np.sign(value[:-1]) * np.sign(value[1:]) < 0)
    left, right, sign = pos[change], pos[change + 1], np.sign(value[change])
    while bool(((left < (middle := (left + right) / 2)) & (middle < right)).any()):
        before = np.sign(_ask(function_of_distance, middle)) == sign
        left, right = np.where(before, middle, left), np.where(before, right, middle)
    return np.asarray(np.sort(np.concatenate((exact, right))))


def _ask(function: OfDistance, pos: Array) -> Array:
    value = np.asarray(function(pos))
    if value.dtype.kind not in "iuf" or value.shape != pos.shape:
        raise TypeError(
            f"zeros: the function must return a real number for each distance; got {value.dtype} of shape "
            f"{value.shape} for {pos.shape}. Take the real part of a limit: lambda x: continuous_limit(x).real."
        )
    if not np.isfinite(value).all():
        raise ValueError(f"zeros: the function must be finite; got {value[~np.isfinite(value)][0]}. Narrow the range.")
    return value.astype(np.float64)


def _over_angles(who: str, inv_freq: Numbers, distance: Numbers, function: OfDistance) -> Array:
    """Apply a function of angles (n, n_pairs) to some distances at a time, so that a million fit into memory."""
    row = isinstance(inv_freq, (Tensor, np.ndarray)) and inv_freq.ndim == 2 and len(inv_freq) == 1
    speeds = reals(who, "inv_freq", inv_freq[0] if row else inv_freq)  # type: ignore[index]
    every, rows = reals(who, "distance", distance), max(1, _ROWS // len(speeds))
    return np.concatenate([function(every[i : i + rows, None] * speeds) for i in range(0, len(every), rows)])


def _of_tables(encoding: Encoding) -> Tensor | None:
    """Return the frequencies of a rotary encoding; None if its tables hold other angles."""
    try:
        inv_freq: Tensor = encoding.frequencies().detach().double().cpu()  # type: ignore[operator]
    except NotImplementedError:
        return None
    pos = torch.arange(4)
    n = inv_freq.shape[-2]
    placed = encoding.place(pos[:, None].expand(-1, n) if n > 1 else pos, dtype=torch.float64)
    cos, sin = (t.detach().cpu().reshape(len(pos), -1) for t in placed.parts[:2])
    flat = inv_freq.sum(-2).flatten()  # all axes have the same position
    flat = flat.repeat(max(cos.shape[-1] // len(flat), 1))  # heads may share frequencies
    if cos.shape[-1] != len(flat) or bool(phase_error(cos, sin, pos, flat).max() > _TOLERANCE):
        return None
    return inv_freq


def _of_vectors(encoding: Additive) -> Tensor | None:
    """Return the slopes of the sines at position 0; None if the vectors are not sines and cosines of them."""
    n = encoding.n_axes

    def vectors(pos: Tensor) -> Tensor:
        return encoding.vectors(pos if n > 1 else pos[..., 0]).double()

    origin = torch.zeros(1, n, dtype=torch.float64)
    try:
        slopes = torch.autograd.functional.jacobian(lambda pos: vectors(pos)[0], origin)[:, 0].detach()
    except RuntimeError:
        return None
    with torch.no_grad():
        sines = vectors(origin)[0] == 0
        inv_freq = slopes[sines]  # (n_sines, n_axes)
        # positions where each wave is far from linear, and positions that distinguish the axes
        own = inv_freq * (1.3 / inv_freq.square().sum(-1, keepdim=True)).nan_to_num(0, 0, 0)
        shared = torch.tensor([[0.7], [1.9], [5.3]], dtype=torch.float64) ** torch.linspace(0.5, 1.5, n)
        pos = torch.cat((own, shared))
        found, angle = vectors(pos), pos @ inv_freq.T
        room = _TOLERANCE + 1e-14 * angle.abs()  # more tolerance for waves with large angles
        near = (found[:, sines] - angle.sin()).abs() < room
        cosines = (found[:, ~sines, None] - angle.cos()[:, None]).abs() < room[:, None]
        fit = bool(near.all()) and bool(cosines.all(0).any(-1).all())  # each cosine belongs to one of the sines
    return inv_freq.T if len(inv_freq) and fit else None
