"""Figures: one function per figure, each returns a matplotlib Figure; needs the extra `plot`.

    from posenc import RoPE, figures
    figures.profile(RoPE(head_dim=64)).savefig("rope.svg")

No window opens, and a notebook shows each figure once. The numbers come from `posenc.measure`. Inside
`with posenc.languages.use("zh"):` labels are Chinese, if a font with Chinese glyphs is installed.
"""

try:
    import matplotlib  # noqa: F401
except ImportError as error:
    raise ImportError(f"posenc.figures: needs matplotlib ({error}); pip install 'posenc[plot]'.") from error

from posenc.figures.grammar import Drawing, label_of
from posenc.figures.kinds import KINDS, draw, fits, kind_of, kinds_of
from posenc.figures.scores import bias_curves, bias_matrix, effective_distance, precision, profile
from posenc.figures.vectors import dot_product, heat_map, lanes, points, sentence_similarity, similarity
from posenc.figures.waves import finite_size, oscillatory_integrals, wavelengths
from posenc.figures.worked import Worked, work_out, worked_example

__all__ = [
    "KINDS",
    "Drawing",
    "Worked",
    "bias_curves",
    "bias_matrix",
    "dot_product",
    "draw",
    "effective_distance",
    "finite_size",
    "fits",
    "heat_map",
    "kind_of",
    "kinds_of",
    "label_of",
    "lanes",
    "oscillatory_integrals",
    "points",
    "precision",
    "profile",
    "sentence_similarity",
    "similarity",
    "wavelengths",
    "work_out",
    "worked_example",
]
