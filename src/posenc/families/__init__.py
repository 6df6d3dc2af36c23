"""The families: an author writes one method, and the family implements the rest of the contract."""

from posenc.families.angles import geometric
from posenc.families.bias import Bias, ContentBias
from posenc.families.cameras import CameraTransform
from posenc.families.embedded import Additive, Embedded, with_table
from posenc.families.heads import by_key_head, check_groups, check_lanes, check_tokens, of_each_head
from posenc.families.norm import Norm
from posenc.families.numbers import (
    autocast_dtype,
    entries,
    finite,
    floating,
    no_autocast,
    number,
    numbers,
    size,
    wide,
    wide_parameter,
)
from posenc.families.options import Budgeted, Given, OfLength, OwnFrequencies, ReadsTokens, Scaled, check_word
from posenc.families.rotary import Rotary
from posenc.families.score_map import ScoreMap
from posenc.families.tables import Matrices, Table
from posenc.families.values import ValueRotary

__all__ = [
    "Additive",
    "Bias",
    "Budgeted",
    "CameraTransform",
    "ContentBias",
    "Embedded",
    "Given",
    "Matrices",
    "Norm",
    "OfLength",
    "OwnFrequencies",
    "ReadsTokens",
    "Rotary",
    "Scaled",
    "ScoreMap",
    "Table",
    "ValueRotary",
    "autocast_dtype",
    "by_key_head",
    "check_groups",
    "check_lanes",
    "check_tokens",
    "check_word",
    "entries",
    "finite",
    "floating",
    "geometric",
    "no_autocast",
    "number",
    "numbers",
    "of_each_head",
    "size",
    "wide",
    "wide_parameter",
    "with_table",
]
