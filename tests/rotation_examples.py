"""One example of each learned, mixed or scaled rotation, for a model of four heads that share two of keys."""

from typing import Any

from torch import Tensor

import posenc
from posenc import positions
from strategies import randomise

HEADS: dict[str, Any] = {"n_kv_heads": 2, "head_dim": 8}
LISTS: dict[str, Any] = {"short_factors": (1.0, 1.5, 2.0, 4.0), "long_factors": (1.0, 3.0, 8.0, 20.0)}
NEW: dict[str, dict[str, Any]] = {
    "stretched_rope": {"head_dim": 8},
    "mixed_rope": HEADS,
    "retnet": HEADS,
    "fope": HEADS | {"original_max_len": 100},
    "pope": HEADS,
    "grape_m": HEADS | {"n_planes": 3},
    "liere": {"head_dim": 8, "block": 4},
    "dynamic_ntk": {"head_dim": 8, "factor": 4.0, "original_max_len": 6},
    "longrope": {"head_dim": 8, **LISTS, "original_max_len": 6, "attention_factor": 1.2},
}
LEARNED = [name for name in NEW if list(posenc.create(name, **NEW[name]).parameters())]

L = 20


def made(name: str, seed: int | None = 1) -> Any:
    """Construct it for L positions, with random learned tensors or as it starts."""
    encoding = posenc.create(name, **NEW[name]).resolve(L).double()
    return encoding if seed is None else randomise(encoding, seed)


def places(encoding: Any, n: int = L) -> Tensor:
    return positions.arange(n) if encoding.n_axes == 1 else positions.grid(n // 4, 4) / 4
