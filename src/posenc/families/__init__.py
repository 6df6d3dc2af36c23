"""The families: an author writes one method, and the family does the rest of the contract."""

from posenc.families.bias import Bias, ContentBias
from posenc.families.embedded import Additive, Embedded, with_table
from posenc.families.numbers import autocast_dtype, floating, no_autocast, wide, wide_parameter
from posenc.families.options import OfLength, OwnFrequencies, Scaled
from posenc.families.rotary import Rotary, by_key_head, check_heads, check_lanes

__all__ = [
    "Additive",
    "Bias",
    "ContentBias",
    "Embedded",
    "OfLength",
    "OwnFrequencies",
    "Rotary",
    "Scaled",
    "autocast_dtype",
    "by_key_head",
    "check_heads",
    "check_lanes",
    "floating",
    "no_autocast",
    "wide",
    "wide_parameter",
    "with_table",
]
