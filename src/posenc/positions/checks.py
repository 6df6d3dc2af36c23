"""Checks of positions, with messages that name the encoding."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float64, Int64
from torch import Tensor, nn

from posenc.private import is_recorded, is_wrapped, within_transform

_INTEGERS = (torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32, torch.int64)
KINDS = {Tensor, nn.Parameter}  # types of plain tensors
_REALS = (torch.float32, torch.float64)


class _Pretended(threading.local):
    no_float64 = False


_pretended = _Pretended()


def check(pos: Tensor, n_axes: int, who: str) -> Tensor:
    """Check the dtype and axes of positions, and return them as int64 or float64 (float32 on a device without float64).

    Args:
        pos: (seq_len,) or (batch, seq_len) for one axis; (..., seq_len, n_axes) for several.
        n_axes: The encoding's number of axes.
        who: The encoding's name, for the message.

    Raises:
        TypeError: `pos` is no tensor, or its dtype cannot represent positions.
        ValueError: Its shape does not fit `n_axes`, or a position exceeds int64.
    """
    if not isinstance(pos, Tensor):
        raise TypeError(
            f"{who}: pos must be a tensor of positions; got {type(pos).__name__}. "
            "Make one with posenc.positions, for instance positions.arange(seq_len)."
        )
    if pos.dtype not in _INTEGERS + _REALS:
        raise TypeError(
            f"{who}: positions must be integers, float32 or float64, because half precision cannot distinguish "
            f"256 from 257; got {pos.dtype}. Make them with positions.arange(seq_len)."
        )
    fits = pos.ndim in (1, 2) if n_axes == 1 else pos.ndim in (2, 3) and pos.shape[-1] == n_axes
    if not fits:
        wanted = "(seq_len,) or (batch, seq_len)"
        if n_axes > 1:
            wanted = f"(seq_len, {n_axes}) or (batch, seq_len, {n_axes})"
        raise ValueError(
            f"{who}: works on {n_axes} position {'axis' if n_axes == 1 else 'axes'}, so pos must be {wanted}; "
            f"got {tuple(pos.shape)}. "
            + (
                "Wrap it in OnAxes to choose an axis."
                if n_axes == 1
                else "positions.grid makes two axes, and positions.on_each_axis gives text the same number on all."
            )
        )
    if pos.dtype in _REALS:
        return pos.double() if has_float64(pos.device) else pos
    wide = pos.long()
    if pos.dtype == torch.uint64 and may_look(wide) and bool((wide < 0).any()):
        raise ValueError(
            f"{who}: positions must be below 2^63, to fit int64; got {int(pos.cpu().numpy().max())}. Count from 0."
        )
    return wide


def has_float64(device: torch.device) -> bool:
    """Return whether a device can compute in float64."""
    return device.type != "mps" and not _pretended.no_float64


@contextmanager
def without_float64() -> Iterator[None]:
    """Make `has_float64` return False in this thread, to test the path of devices without float64 anywhere."""
    _pretended.no_float64 = True
    try:
        yield
    finally:
        _pretended.no_float64 = False


def check_range(pos: Int64[Tensor, "..."], end: int, who: str, why: str, *, start: int = 0) -> None:
    """Raise if a position lies outside [start, end).

    Only on the CPU and not while compiling, where reading values costs nothing; elsewhere the device's index
    check raises.

    Raises:
        ValueError: A position is below `start` or at least `end`.
    """
    if not may_look(pos):
        return
    low, high = (int(value) for value in pos.aminmax())
    if low < start or high >= end:
        bad = low if low < start else high
        raise ValueError(f"{who}: positions must lie in {start}..{end - 1}, because {why}; got position {bad}.")


def check_reach(away: Float64[Tensor, "..."], reach: float, who: str, why: str) -> None:
    """Raise if a position lies further than `reach` from its centre, where reading values costs nothing.

    Raises:
        ValueError: A position lies too far away.
    """
    if may_look(away) and (furthest := float(away.abs().max())) > reach:
        raise ValueError(
            f"{who}: positions must lie within {reach:,.0f} of the centre, because {why}; got one {furthest:,.0f} away."
        )


def may_look(t: Tensor) -> bool:
    """Return whether values can be read without stalling a device, breaking a graph or leaving a transform."""
    return is_plain(t) and t.device.type == "cpu" and t.numel() > 0


def is_plain(t: Tensor) -> bool:
    """Return whether a tensor is plain memory that can be written in slices: not traced, compiled or transformed."""
    return type(t) in KINDS and not is_traced() and not is_wrapped(t)


def is_traced() -> bool:
    """Return whether operations become a graph, for other values too: compiled, traced by `torch.jit` or `make_fx`."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or is_recorded()


def all_plain(tensors: Iterable[Tensor]) -> bool:
    """Return whether all tensors are plain; state that they share is checked once."""
    if is_traced():
        return False
    if within_transform():
        return all(map(is_plain, tensors))
    return {*map(type, tensors)} <= KINDS


def first_of_run(pos: Tensor) -> int | None:
    """Return the first of consecutive positions, (n,); None for others, or where values cannot be read.

    None also from 2^62 on, so that differences of two runs fit int64.
    """
    if pos.ndim > 1 or pos.is_floating_point() or not may_look(pos):
        return None
    first = int(pos[0])
    run = abs(first) + len(pos) < 2**62 and torch.equal(pos, torch.arange(first, first + len(pos), device=pos.device))
    return first if run else None
