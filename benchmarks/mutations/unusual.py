"""Ways to the same turn that a model's plain path does not take: a device without float64, in place, other formulas."""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from wrapped import turned

import posenc
from posenc.encodings import RoPE
from posenc.families import angles
from posenc.frequencies import geometric, scaling


class Unwide:
    """An encoding that forms angles as on a device that has no float64."""

    def __init__(self, encoding: posenc.Encoding) -> None:
        self.encoding = encoding

    def __getattr__(self, name: str) -> Any:
        return getattr(self.encoding, name)

    def place(self, *args: Any, **options: Any) -> Any:
        had = angles.has_float64
        angles.has_float64 = lambda device: False
        try:
            return self.encoding.place(*args, **options)
        finally:
            angles.has_float64 = had


def without_float64(encoding: posenc.Encoding) -> Callable[[Tensor, Tensor], Tensor]:
    """Form angles as on a device that has no float64."""
    return turned(Unwide(encoding))


def in_place(encoding: RoPE, **options: Any) -> Callable[[Tensor, Tensor], Tensor]:
    """Turn copies in place, where no gradient is asked for."""

    def turn(x: Tensor, pos: Tensor) -> Tensor:
        if x.requires_grad:
            return turned(encoding)(x, pos)
        q, k = x.clone(), x.clone()
        encoding.rotate_(q, k, encoding.place(pos), **options)
        return (q + k) / 2

    return turn


def by_scaling(name: str, trained: int) -> Callable[[int], RoPE]:
    """Compute frequencies by the pure scalings, with the numbers that they take where none are given."""
    plain = geometric(64, base=1e4, width=128)
    found = {
        "yarn": lambda: scaling.yarn(width=128, base=1e4, factor=8.0, original_max_len=trained),
        "by parts": lambda: scaling.by_parts(plain, factor=8.0, original_max_len=trained),
    }
    scaled = name.partition(",")[0]
    gain = scaling.mscale(8.0) if scaled == "yarn" else 1.0
    return lambda seq_len: RoPE(head_dim=128, inv_freq=found[scaled](), attention_factor=gain)
