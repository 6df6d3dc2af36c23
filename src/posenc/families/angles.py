"""Cosines and sines of large angles: computed in float64 and rounded once.

A position is split into a multiple of 512 and a remainder, and the angle sum identities combine the two angles.
The remainders have the same 512 rows of tables everywhere, so a long run of positions costs one product per number.
"""

import math
from collections.abc import Iterator
from functools import reduce
from itertools import groupby, pairwise

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from posenc.encoding import Pos
from posenc.positions import has_float64, is_plain, may_look

CosSin = tuple[Tensor, Tensor]
BLOCK = 512  # a power of two
_GROUP = 32  # blocks at once: few thread barriers, and little enough memory for the cache
_SHORTEST = 32  # rows: a shorter run does not repay a product of its own
_CHUNK = 2**15  # numbers of a table computed at once: as many as fit in a core's cache and one thread processes


def geometric(n: int, *, base: float, width: int) -> Float64[Tensor, " n"]:
    """Return base^(-2k / width) for k = 0 .. n - 1: `frequencies.geometric` in torch, so that compilers can trace it.

    NumPy arrays do not work here: torch.compile would put them on the default device, which may be meta.

    Args:
        n: Number of frequencies.
        base: The 10,000 of the papers.
        width: Number of dimensions over which the exponent runs from 0 to 1.

    >>> geometric(2, base=10000.0, width=4)
    tensor([1.0000, 0.0100], dtype=torch.float64)
    """
    return base ** (torch.arange(n, dtype=torch.float64, device="cpu") * (-2 / width))


def tabulate(
    pos: Pos, inv_freq: Float64[Tensor, "n_axes n"], *, dtype: torch.dtype, gain: float = 1.0
) -> tuple[Float[Tensor, "*batch seq n"], Float[Tensor, "*batch seq n"]]:
    """Return the tables (cos, sin) of pos @ inv_freq, times a gain.

    In float32 the error is at most 2e-7 up to position 10,000,000 and 5e-7 up to 10^10; in float64, 2e-16 times the
    largest angle. A position gets the same numbers in every call, up to float64 rounding. No temporary is larger than
    the tables, unless gradients or a compiler need the whole formula. On the CPU, runs of positions are found by
    reading their values; on other devices nothing is read.

    Args:
        pos: (seq_len,) or (batch, seq_len), with a last dimension of n_axes if that is more than one; int64 or float64,
            or float32 on a device without float64.
        inv_freq: Radians per position.
        dtype: Dtype of the tables: float32 or float64.
        gain: Factor on both tables.
    """
    if not has_float64(pos.device):
        return _without_float64(pos, inv_freq, dtype, gain)
    inv_freq = inv_freq.to(pos.device)
    learned = torch.is_grad_enabled() and (inv_freq.requires_grad or pos.requires_grad)
    if learned or not (is_plain(pos) and is_plain(inv_freq)):
        cos, sin = cos_sin(pos, inv_freq, gain)
        return cos.to(dtype), sin.to(dtype)
    n_axes, n = inv_freq.shape
    if n_axes == 1:
        where, rows = pos.shape, pos.reshape(-1)
        starts = _runs(rows)
    else:
        where, rows, starts = pos.shape[:-1], pos.reshape(-1, n_axes), None
    out = tuple(torch.empty(len(rows), n, dtype=dtype, device=pos.device) for _ in "cs")
    if starts is None:
        _fill_any(out, rows, inv_freq, gain)
    else:
        _fill_runs(out, rows, starts, inv_freq, gain)
    return out[0].view(*where, n), out[1].view(*where, n)


def cos_sin(
    pos: Pos, inv_freq: Float64[Tensor, "n_axes n"], gain: float
) -> tuple[Float64[Tensor, "*batch seq n"], Float64[Tensor, "*batch seq n"]]:
    """Return cos and sin of pos @ inv_freq in float64, times a gain."""
    near = pos.remainder(BLOCK)
    angles = _of_angle(pos - near, inv_freq, gain), _of_angle(near, inv_freq)
    return _cos_of_sum(*angles), _sin_of_sum(*angles)


def _of_angle(pos: Pos, inv_freq: Tensor, gain: float = 1.0) -> CosSin:
    # a product over one axis is not written as a matrix product, for which compilers specialise on the length
    angle = pos.double() @ inv_freq if len(inv_freq) > 1 else pos.double()[..., None] * inv_freq[0]
    return (angle.cos(), angle.sin()) if gain == 1.0 else (angle.cos() * gain, angle.sin() * gain)


def _cos_of_sum(far: CosSin, near: CosSin, out: Tensor | None = None) -> Tensor:
    return torch.addcmul(torch.mul(near[0], far[0], out=out), near[1], far[1], value=-1, out=out)


def _sin_of_sum(far: CosSin, near: CosSin, out: Tensor | None = None) -> Tensor:
    return torch.addcmul(torch.mul(near[1], far[0], out=out), near[0], far[1], out=out)


def _runs(pos: Int64[Tensor, " n"] | Float64[Tensor, " n"]) -> list[int] | None:
    """Return the starts of runs of consecutive positions within one block; None if the runs are too short to pay."""
    if len(pos) < BLOCK or pos.is_floating_point() or not may_look(pos):
        return None
    breaks = (pos.diff() != 1) | (pos[1:] % BLOCK == 0)
    starts = [0, *(breaks.nonzero().flatten() + 1).tolist()]
    return starts if len(pos) >= _SHORTEST * len(starts) else None


def _fill_runs(
    out: tuple[Tensor, ...], pos: Int64[Tensor, " n"], starts: list[int], inv_freq: Tensor, gain: float
) -> None:
    """Write tables block by block: one row of far angles, combined with rows of near angles."""
    begin = pos[starts]
    first = begin.remainder(BLOCK)
    far = _of_angle(begin - first, inv_freq, gain)
    near = _of_angle(torch.arange(BLOCK, device=pos.device), inv_freq)
    offsets, lengths = first.tolist(), [end - start for start, end in pairwise((*starts, len(pos)))]
    most = max(1, min(_GROUP, len(starts) // 4))
    room, block = inv_freq.new_empty(most * BLOCK, *inv_freq.shape), 0
    for count in _together(lengths, most):
        at, n = offsets[block], lengths[block]
        some = slice(block, block + count)
        angles = (far[0][some, None], far[1][some, None]), (near[0][at : at + n], near[1][at : at + n])
        rows, into = room[: count * n].view(count, n, -1), slice(starts[block], starts[block] + count * n)
        out[0][into] = _cos_of_sum(*angles, out=rows).flatten(0, 1)
        out[1][into] = _sin_of_sum(*angles, out=rows).flatten(0, 1)
        block += count


def _together(lengths: list[int], most: int) -> Iterator[int]:
    """Yield how many blocks to compute at once: whole blocks together, as in a long run, and other blocks singly."""
    for whole, same in groupby(n == BLOCK for n in lengths):
        blocks, step = list(same), most if whole else 1
        yield from (len(blocks[i : i + step]) for i in range(0, len(blocks), step))


def _fill_any(out: tuple[Tensor, ...], pos: Pos, inv_freq: Tensor, gain: float) -> None:
    """Write tables a few rows at a time, so that the float64 temporaries stay small compared with the tables."""
    size = _CHUNK if pos.device.type == "cpu" else max(_CHUNK, out[0].numel() // 16)
    rows = max(1, size // max(1, inv_freq.shape[1]))
    for start in range(0, len(pos), rows):
        for table, exact in zip(out, cos_sin(pos[start : start + rows], inv_freq, gain), strict=True):
            table[start : start + rows] = exact


def _without_float64(pos: Pos, inv_freq: Tensor, dtype: torch.dtype, gain: float) -> tuple[Tensor, Tensor]:
    """Return tables in float32, from rotation counts that are exact to 2^-24 before the last product.

    Positions and rotations per position are split into digits of 12 bits, whose products are exact in float32. Whole
    rotations are dropped. The result is within 2e-6 for positions up to 2^31. Learned frequencies are computed on the
    host.
    """
    if inv_freq.requires_grad:
        cos, sin = cos_sin(pos.cpu(), inv_freq.cpu(), gain)
        return cos.to(dtype).to(pos.device), sin.to(dtype).to(pos.device)
    axes = pos[..., None] if len(inv_freq) == 1 else pos
    whole = axes.floor().long()
    rotations = reduce(_add_rotations, _rotations_of_digits(whole, inv_freq))
    if axes.is_floating_point():  # integer positions have no fraction
        slow = (inv_freq / (2 * math.pi)).float().to(pos.device)
        rotations = rotations + ((axes - whole).float().unsqueeze(-1) * slow).sum(-2)
    angle = rotations * (2 * math.pi)
    return (angle.cos() * gain).to(dtype), (angle.sin() * gain).to(dtype)


def _add_rotations(some: Tensor, more: Tensor) -> Tensor:
    rotations = some + more
    return rotations - rotations.round()


def _rotations_of_digits(whole: Int64[Tensor, "*batch seq n_axes"], inv_freq: Tensor) -> Iterator[Tensor]:
    """Yield the fractional rotations of each pair of digits, of the position and of the frequency, on each axis."""
    for digits, per_position in zip(_digits_of(whole), _digits_of_frequencies(inv_freq.cpu()), strict=True):
        for shift, part in enumerate(per_position):
            scaled = digits.unsqueeze(-1) * part.to(whole.device) * 2.0 ** (-12 * (shift + 1))
            yield from (scaled - scaled.round()).unbind(-2)


def _digits_of(whole: Int64[Tensor, "..."]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the lowest 12 bits, the next 12, and the signed remainder."""
    return (whole & 4095).float(), ((whole >> 12) & 4095).float(), (whole >> 24).float()


def _digits_of_frequencies(inv_freq: Float64[Tensor, "n_axes n"]) -> list[list[Tensor]]:
    """Return rotations per position, per 2^12 and per 2^24 positions, each as two digits of 12 bits and a remainder."""
    found = []
    for place in (1, 2**12, 2**24):
        rest = (inv_freq / (2 * math.pi) * place).remainder(1.0) * 2**12
        high = rest.floor()
        middle = ((rest - high) * 2**12).floor()
        found.append([high.float(), middle.float(), (((rest - high) * 2**12 - middle) * 2**12).float()])
    return found
