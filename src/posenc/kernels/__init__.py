"""Turning lanes of queries and keys: one entry, `turn_all`, whatever computes it."""

from posenc.kernels import ops as ops  # registers them
from posenc.kernels.again import turn as turn_again
from posenc.kernels.norm import Norm, as_norm
from posenc.kernels.turning import Way, turn, turn_all

__all__ = ["Norm", "Way", "as_norm", "turn", "turn_again", "turn_all"]
