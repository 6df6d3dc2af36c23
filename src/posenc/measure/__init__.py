"""Measurements of position encodings, as arrays; `posenc.figures` draws them.

An encoding is copied to float64 with its parameters as they are, and resolved for the last position. Every function
raises a TypeError for an argument of a wrong type (not an encoding, not real numbers, not an integer), and a ValueError
for one that it cannot use (an encoding without such numbers, positions out of range, a wrong shape, NaN, infinity).
Each message begins with the function's name. Docstrings list only other exceptions.
"""

from posenc.frequencies import first_negative
from posenc.measure.attention import attention_by_distance, attention_maps
from posenc.measure.embedding_tables import EmbeddingTables, embedding_tables, read_table
from posenc.measure.extension import METHODS, Extension, extend
from posenc.measure.limits import (
    LAWS,
    Law,
    continuous_limit,
    finite_size_error,
    geometric_law,
    law_frequencies,
    law_limit,
    power_law,
)
from posenc.measure.precise import collisions, phase_error
from posenc.measure.profiles import Profile, profile
from posenc.measure.question import TaylorQuestion, taylor_question
from posenc.measure.relative import DistanceShares, RelativeParts, distance_shares, relative_parts
from posenc.measure.scores import bias_curve, bias_matrix, effective_distance, score_matrix
from posenc.measure.tables import Projection, Spectrum, covariance, diagonal_share, norms, project, similarity, spectrum
from posenc.measure.taylor import TaylorTerms, interaction_block, taylor_terms
from posenc.measure.vectors import Distances, by_distance, by_pair, heat_map, points
from posenc.measure.waves import (
    cosine_by_distance,
    decay_bound,
    dot_by_distance,
    frequencies_of,
    turns,
    wavelengths,
    zeros,
)

__all__ = [
    "LAWS",
    "METHODS",
    "DistanceShares",
    "Distances",
    "EmbeddingTables",
    "Extension",
    "Law",
    "Profile",
    "Projection",
    "RelativeParts",
    "Spectrum",
    "TaylorQuestion",
    "TaylorTerms",
    "attention_by_distance",
    "attention_maps",
    "bias_curve",
    "bias_matrix",
    "by_distance",
    "by_pair",
    "collisions",
    "continuous_limit",
    "cosine_by_distance",
    "covariance",
    "decay_bound",
    "diagonal_share",
    "distance_shares",
    "dot_by_distance",
    "effective_distance",
    "embedding_tables",
    "extend",
    "finite_size_error",
    "first_negative",
    "frequencies_of",
    "geometric_law",
    "heat_map",
    "interaction_block",
    "law_frequencies",
    "law_limit",
    "norms",
    "phase_error",
    "points",
    "power_law",
    "profile",
    "project",
    "read_table",
    "relative_parts",
    "score_matrix",
    "similarity",
    "spectrum",
    "taylor_question",
    "taylor_terms",
    "turns",
    "wavelengths",
    "zeros",
]
