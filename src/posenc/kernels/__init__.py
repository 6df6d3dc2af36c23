"""Turning lanes of queries and keys: one entry, `turn`, whatever computes it."""

from posenc.kernels.eager import turn

__all__ = ["turn"]
