"""The rotation of queries and keys: one entry, `turn_all`, whatever computes it."""

from posenc.kernels.turning import Way, turn, turn_all

__all__ = ["Way", "turn", "turn_all"]
