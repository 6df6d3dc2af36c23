"""Functions that make and check `pos`: positions are always passed in, never guessed from a shape."""

from posenc.positions.checks import check, check_range, check_reach, has_float64, is_plain, may_look
from posenc.positions.images import from_hf, grid, on_each_axis, unit_grid
from posenc.positions.multimodal import circle_rope, mrope, v2pe, videorope
from posenc.positions.random import jittered, randomised, shifted
from posenc.positions.sharded import sharded
from posenc.positions.text import arange, continued, left_padded, packed, padded, tree

__all__ = [
    "arange",
    "check",
    "check_range",
    "check_reach",
    "circle_rope",
    "continued",
    "from_hf",
    "grid",
    "has_float64",
    "is_plain",
    "jittered",
    "left_padded",
    "may_look",
    "mrope",
    "on_each_axis",
    "packed",
    "padded",
    "randomised",
    "sharded",
    "shifted",
    "tree",
    "unit_grid",
    "v2pe",
    "videorope",
]
