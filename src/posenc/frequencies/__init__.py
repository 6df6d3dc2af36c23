"""Frequencies of sinusoids and rotations: pure functions from parameters to radians per position.

All results are float64: an angle is a frequency times a position that may be in the millions, and is rounded only
after its cosine and sine are computed.
"""

from posenc.frequencies.basic import Given, check_base, geometric, given
from posenc.frequencies.configured import Frequencies, from_config
from posenc.frequencies.scaling import (
    by_parts,
    critical_dim,
    dynamic_base,
    first_negative,
    larger_base,
    linear,
    llama3,
    longrope,
    longrope_gain,
    mscale,
    ntk_base,
    proportional,
    resonance,
    yarn,
    yarn_bounds,
)

__all__ = [
    "Frequencies",
    "Given",
    "by_parts",
    "check_base",
    "critical_dim",
    "dynamic_base",
    "first_negative",
    "from_config",
    "geometric",
    "given",
    "larger_base",
    "linear",
    "llama3",
    "longrope",
    "longrope_gain",
    "mscale",
    "ntk_base",
    "proportional",
    "resonance",
    "yarn",
    "yarn_bounds",
]
