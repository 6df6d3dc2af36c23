"""Measurements of position: what an encoding does, as arrays; nothing is drawn here."""

from posenc.measure.alike import Distances, by_distance, similarity
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
from posenc.measure.tables import Spectrum, covariance, diagonal_share, norms, spectrum
from posenc.measure.taylor import TaylorTerms, interaction_block, taylor_terms
from posenc.measure.vectors import Projection, by_pair, heat_map, points, project
from posenc.measure.waves import (
    cosine_by_distance,
    decay_bound,
    dot_by_distance,
    first_negative,
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
