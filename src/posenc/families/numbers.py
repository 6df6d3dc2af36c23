"""Precision: what is learned or exact, in a dtype in which arithmetic with it stays right."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """Return what autocast casts to on a device, or None where it is off or unknown (as on meta)."""
    if torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type):
        return torch.get_autocast_dtype(device.type)
    return None


def no_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which autocast rounds nothing behind our back."""
    known = torch.amp.is_autocast_available(device.type)
    return torch.autocast(device.type, enabled=False) if known else nullcontext()


def wide(t: Tensor) -> Tensor:
    """Return a learned tensor in float32 or wider, so that arithmetic with it is not in half precision."""
    return t if t.dtype == torch.float64 else t.float()


def floating(distance: Tensor) -> Tensor:
    """Return an exact distance as float32, or as float64 if it is one already."""
    return distance if distance.dtype == torch.float64 else distance.float()


def wide_parameter(*shape: int) -> nn.Parameter:
    """Return an empty parameter in float32 or wider, whatever the default dtype is."""
    dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)
    return nn.Parameter(torch.empty(shape, dtype=dtype))
