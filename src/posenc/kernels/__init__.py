"""The rotation of queries and keys: `rotate_all` is the one entry to all backends."""

from posenc.kernels.rotation import Way, rotate, rotate_all

__all__ = ["Way", "rotate", "rotate_all"]
