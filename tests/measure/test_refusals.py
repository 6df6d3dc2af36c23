"""What measurements refuse: each by one sentence, which begins with the function's name or says what is wrong."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import posenc
import strategies
from posenc import measure

ROPE, ALIBI, SINES = posenc.RoPE(head_dim=4), posenc.ALiBi(n_heads=2), posenc.Sinusoidal(d_model=4)
ONES, NOISE = np.ones((1, 3, 4)), np.random.default_rng(0)


def example(name: str) -> Any:
    card = posenc.card(name)
    return card.cls(**card.example).resolve(16)


WRONG: list[tuple[Callable[[], Any], type[Exception], str]] = [
    # vectors
    (lambda: measure.heat_map(ROPE, []), ValueError, "heat_map: pos must be a number or a list"),
    (lambda: measure.heat_map(ROPE, [[0, 1]]), ValueError, "got shape (1, 2)"),
    (lambda: measure.heat_map(ROPE, [1j]), TypeError, "heat_map: pos must be real numbers"),
    (lambda: measure.heat_map(ROPE, [True]), TypeError, "heat_map: pos must be real numbers"),
    (lambda: measure.heat_map(ROPE, [math.inf]), ValueError, "heat_map: pos must be finite; got inf"),
    (lambda: measure.heat_map(ROPE, [1], head=1), ValueError, "head must be one of 0..0"),
    (lambda: measure.heat_map(None, [1]), TypeError, "heat_map: encoding must be an Encoding; got NoneType"),
    (lambda: measure.heat_map(example("fox"), [1]), ValueError, "FoX reads the tokens"),
    (lambda: measure.heat_map(example("binary"), [0.5]), TypeError, "Binary accepts only integer positions"),
    (lambda: measure.heat_map(example("binary"), [-1]), ValueError, "Binary: positions must lie in"),
    (lambda: measure.points(ROPE, [1], (0,)), ValueError, "lanes must be two for the plane"),
    (lambda: measure.points(ROPE, [1], (0, 4)), ValueError, "lanes must lie in 0..3, those of RoPE"),
    (lambda: measure.points(ROPE, [1], (0, 0.5)), TypeError, "lanes must be whole numbers"),
    (lambda: measure.project(np.ones((4, 4)), 4), ValueError, "n must be 2 for the plane"),
    (lambda: measure.project(np.ones((1, 4))), ValueError, "at least 2 rows and columns"),
    (lambda: measure.project([1.0, 2.0]), ValueError, "project: vectors must have two dimensions"),
    (lambda: measure.similarity(np.ones((1, 4)), np.ones((1, 3))), ValueError, "equally wide; got 4 and 3"),
    (lambda: measure.by_distance(ROPE, [1, 2], [1]), ValueError, "got shape (1, 2)"),
    # scores
    (lambda: measure.profile(ROPE, []), ValueError, "profile: distance must be a number or a list"),
    (lambda: measure.profile(ROPE, ["far"]), TypeError, "profile: distance must be real numbers"),
    (lambda: measure.profile(ROPE, [0.0, math.nan]), ValueError, "profile: distance must be finite; got nan"),
    (lambda: measure.profile(ROPE, [[0, 1]]), ValueError, "got shape (1, 2)"),
    (lambda: measure.profile(ROPE, [[0, 1], [2]]), TypeError, "profile: distance must be real numbers"),
    (lambda: measure.profile(ROPE, [1], content="alike"), ValueError, "'same' or 'independent'; got 'alike'"),
    (lambda: measure.profile(ROPE, [1], n_draws=0), ValueError, "n_draws must be at least 1"),
    (lambda: measure.profile(ROPE, [1], q_pos=[1, 2]), ValueError, "q_pos must be the position of one query; got 2"),
    (lambda: measure.profile(ROPE, [1], layer="first"), TypeError, "layer must be a whole number"),
    (lambda: measure.profile("rope", [1]), TypeError, "profile: encoding must be an Encoding; got str"),
    (lambda: measure.profile(example("cpvt"), [1]), ValueError, "depend on neighbouring tokens"),
    (lambda: measure.profile(example("graphormer"), [1]), ValueError, "nodes of a graph"),
    (lambda: measure.profile(example("learned"), [128]), ValueError, "positions must lie in 0..127"),
    (lambda: measure.profile(example("t5"), [0.5]), TypeError, "T5 accepts only integer positions"),
    (lambda: measure.profile(example("fox"), [2**20]), ValueError, "0..1048575 on one axis"),
    (lambda: measure.profile(example("cope"), [1], scaled=False), ValueError, "CoPE maps scaled scores"),
    (lambda: measure.bias_matrix(ROPE, [1]), ValueError, "bias_matrix: RoPE adds nothing to the scores."),
    (lambda: measure.bias_matrix(example("cope"), [1]), ValueError, "use score_matrix or profile"),
    (lambda: measure.bias_matrix(example("rerope"), [1]), ValueError, "use effective_distance"),
    (lambda: measure.bias_matrix(example("fox"), [5], tokens=np.ones((3, 16))), ValueError, "reaches position 5"),
    (lambda: measure.bias_curve(example("graphormer"), [1]), ValueError, "nodes of a graph"),
    (lambda: measure.effective_distance(ROPE, 4), ValueError, "RoPE maps no distances"),
    (lambda: measure.effective_distance(example("rerope"), 0), ValueError, "q_pos must be at least 1; got q_pos=0"),
    (lambda: measure.score_matrix(ROPE, ONES[:, :2], ONES, [0, 1]), ValueError, "k must be (heads, 2"),
    (lambda: measure.score_matrix(ROPE, np.ones((3, 2, 4)), np.ones((2, 2, 4)), [0, 1]), ValueError, "a multiple of"),
    (lambda: measure.score_matrix(ROPE, np.ones((1, 2, 6)), np.ones((1, 2, 6)), [0, 1]), ValueError, "head_dim"),
    (lambda: measure.score_matrix(ALIBI, np.ones((3, 1, 4)), np.ones((3, 1, 4)), [0]), ValueError, "n_heads=2"),
    # tables
    (lambda: measure.spectrum([1.0, 2.0]), ValueError, "spectrum: table must have two dimensions"),
    (lambda: measure.norms([]), ValueError, "norms: table must have two dimensions"),
    (lambda: measure.covariance([["a"]]), TypeError, "covariance: table must be real numbers"),
    (lambda: measure.covariance([[1.0, 2.0], [3.0]]), TypeError, "covariance: table must be real numbers"),
    (lambda: measure.spectrum([[math.inf, 0.0]]), ValueError, "spectrum: table must be finite; got inf"),
    (lambda: measure.diagonal_share([[1.0, 2.0]]), ValueError, "as many rows as columns; got shape (1, 2)"),
    # precise
    (lambda: measure.collisions(ALIBI), ValueError, "ALiBi neither adds vectors"),
    (lambda: measure.collisions("rope"), TypeError, "collisions: encoding must be an Encoding; got str"),
    (lambda: measure.collisions(ROPE, 0), ValueError, "collisions: up_to must be at least 1"),
    (lambda: measure.phase_error(SINES, [1]), ValueError, "Sinusoidal has no tables of cos and sin"),
    (lambda: measure.phase_error(ROPE, [0.5]), ValueError, "positions must be whole and below"),
    (lambda: measure.phase_error(ROPE, [2**26]), ValueError, "positions must be whole and below"),
    (lambda: measure.phase_error(ROPE, []), ValueError, "phase_error: positions must be"),
    (lambda: measure.phase_error(ROPE, [1], "int8"), ValueError, "float16; got 'int8'"),
    # waves
    (lambda: measure.turns(ROPE, 0.0), ValueError, "turns: length must be a finite number above zero"),
    (lambda: measure.wavelengths("rope"), TypeError, "frequencies_of: encoding must be an Encoding"),
    (lambda: measure.zeros(np.sin, 2.0, 1.0), ValueError, "zeros: end must be after start"),
    (lambda: measure.zeros(np.sin, 0.0, 1e12), ValueError, "at most 10,000,000 steps"),
    (lambda: measure.zeros(np.sin, 0.0, 1.0, step=0.0), ValueError, "zeros: step must be a finite number above zero"),
    (lambda: measure.zeros(measure.continuous_limit, 1.0, 5.0), TypeError, "lambda x: continuous_limit(x).real."),
    (lambda: measure.zeros(lambda x: x[:2], 1.0, 5.0), TypeError, "must return a real number for each distance"),
    (lambda: measure.zeros(lambda x: x * np.nan, 1.0, 5.0), ValueError, "zeros: the function must be finite; got nan"),
    # limits
    (lambda: measure.continuous_limit(1.0, base="10000"), TypeError, "base must be a number"),
    (lambda: measure.law_frequencies("t", 0), ValueError, "n_pairs must be at least 1"),
    (lambda: measure.law_frequencies("t", 2.5), TypeError, "law_frequencies: n_pairs must be a whole number"),
    (lambda: measure.finite_size_error(1.0, -2, 1e4), ValueError, "finite_size_error: n_pairs must be at least 1"),
    (lambda: measure.power_law(-0.5), ValueError, "power_law: exponent must not be negative"),
    (lambda: measure.power_law(math.nan), ValueError, "power_law: exponent must be finite"),
    (lambda: measure.law_limit(1.0, "t^3"), ValueError, "law must be one of 10000^-t, "),
    (lambda: measure.law_limit(1.0, "t^3"), ValueError, "or a function of t; got 't^3'"),
    (lambda: measure.law_limit(1.0, 3.0), TypeError, "law must be a name or a function of t; got float"),
    (lambda: measure.law_frequencies(lambda t: t + math.inf, 4), ValueError, "finite for all t from 0 to 1; got inf"),
    (lambda: measure.law_limit(1.0, lambda t: t * 1j), ValueError, "law must return a real number for each t"),
    (lambda: measure.law_limit(1.0, lambda t: t[:1]), ValueError, "law must return a real number for each t"),
    (lambda: measure.law_limit(1.0, lambda t: "fast"), ValueError, "law must return a real number for each t"),
    (lambda: measure.law_limit(1.0, lambda t: NOISE.random(t.shape)), ValueError, "cosine_by_distance(law_frequencies"),
    # relative parts and tables of embeddings
    (lambda: measure.relative_parts(SINES, [1], block=[1.0, 2.0]), ValueError, "block must be (4, 4)"),
    (lambda: measure.relative_parts(SINES, [1], block="one"), TypeError, "block must be real numbers"),
    (lambda: measure.relative_parts(ROPE, [1]), TypeError, "encoding must be a Sinusoidal; got RoPE"),
    (lambda: measure.relative_parts(SINES, [1], block=0.0), ValueError, "block must not be zero"),
    (lambda: measure.relative_parts(SINES, [1], block=math.nan), ValueError, "block must be finite; got nan"),
    (lambda: measure.distance_shares(np.arange(25.0).reshape(5, 5)), ValueError, "symmetric matrix"),
    (lambda: measure.distance_shares(np.eye(3)), ValueError, "4 positions or more"),
    (lambda: measure.distance_shares(np.ones((5, 5))), ValueError, "the same"),
    (lambda: measure.embedding_tables(ONES[0], ONES[0, :, :2]), ValueError, "equally wide; got d_model=4 and 2"),
    (lambda: measure.embedding_tables(0 * ONES[0], ONES[0]), ValueError, "tokens must not all be zero"),
    (lambda: measure.embedding_tables(ONES[0], ONES[0], token_scale=0), ValueError, "token_scale must be a finite"),
]


@pytest.mark.parametrize(("ask", "kind", "words"), WRONG, ids=[words for _, _, words in WRONG])
def test_bad_questions_get_one_sentence(ask: Callable[[], Any], kind: type[Exception], words: str) -> None:
    with strategies.refuses(kind, words):
        ask()
