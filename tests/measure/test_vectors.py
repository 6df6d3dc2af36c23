"""Heat maps, pairs, points and similarity over the whole registry, against definitions in float64."""

import math
from typing import Any

import numpy as np
import pytest
import torch

import defined
import posenc
import strategies
from posenc import Compose, Mapped, PerLayer, measure

NAMES = posenc.names()
ADDED = [n for n in NAMES if posenc.card(n).family in ("additive", "embedded")]
UNPAIRED = {"liere", "query_temperature", "prope", "gta", *defined.READ_TOKENS}
PAIRED = [n for n in NAMES if posenc.card(n).family == "rotary" and n not in UNPAIRED]
OTHERS = [n for n in NAMES if n not in ADDED + PAIRED and posenc.card(n).family != "values"]
WAVES = ("complex_order", "gaussian_fourier", "nerf_fourier", "sinusoidal", "sinusoidal_nd", "tape")
N_POSITIONS = 9


def example(name: str, **options: Any) -> Any:
    """The registry's example for texts of ten tokens, with all that it learns drawn from N(0, 1) in float64."""
    card = posenc.card(name)
    return strategies.randomise(card.cls(**{**card.example, **options}).resolve(10), 5).eval()


def places(encoding: Any) -> np.ndarray:
    if encoding.n_axes == 1:
        return np.arange(N_POSITIONS)
    return np.random.default_rng(0).permutation(40)[: N_POSITIONS * encoding.n_axes].reshape(N_POSITIONS, -1)


def lanes(encoding: Any) -> tuple[np.ndarray, np.ndarray]:
    """The first and the second lane of each pair, as the papers number them."""
    n, width = encoding.head_dim, encoding.rotary_dim
    pairs = [(i, i + width // 2) if encoding.pairing == "half" else (2 * i, 2 * i + 1) for i in range(width // 2)]
    shift = 0 if encoding.rotary_side == "first" else n - width
    return np.array(pairs).T + shift


@pytest.mark.parametrize("name", ADDED)
def test_heat_map_of_what_is_added_is_the_definition(name: str) -> None:
    encoding = example(name)
    pos = places(encoding)
    x = np.zeros((len(pos), encoding.d_model)) + (posenc.card(name).family == "embedded")
    wanted = defined.embedded(name, encoding, x, pos)
    found = measure.heat_map(encoding, pos)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-10 * max(1.0, np.abs(wanted).max()))


@pytest.mark.parametrize("name", [n for n in PAIRED if n != "pope"])
def test_heat_map_of_a_turn_is_the_definition_s_matrix(name: str) -> None:
    encoding = example(name)
    pos, heads = places(encoding), encoding.n_kv_heads or 1
    matrices = defined.matrices(name, encoding, pos, 0, encoding.head_dim)
    matrices = matrices if matrices.ndim == 4 else matrices[:, None]
    unit = np.zeros(encoding.head_dim)
    unit[lanes(encoding)[0]] = 1.0
    for head in {0, heads - 1}:
        wanted = matrices[:, min(head, matrices.shape[1] - 1)] @ unit
        found = measure.heat_map(encoding, pos, head=head)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-10 * max(1.0, np.abs(wanted).max()))


@pytest.mark.parametrize("name", [n for n in PAIRED if n not in ("pope", "grape_m")])
def test_pairs_are_the_lanes_of_the_heat_map_s_definition(name: str) -> None:
    encoding = example(name)
    pos, heads = places(encoding), encoding.n_kv_heads or 1
    matrices = defined.matrices(name, encoding, pos, 0, encoding.head_dim)
    matrices = matrices if matrices.ndim == 4 else matrices[:, None]
    first, second = lanes(encoding)
    for head in {0, heads - 1}:
        one = matrices[:, min(head, matrices.shape[1] - 1)]
        wanted = one[:, first, first] + 1j * one[:, second, first]
        found = measure.by_pair(encoding, pos, head=head)
        assert found.dtype == np.complex128
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-10 * max(1.0, np.abs(wanted).max()))


def test_pairs_of_learned_planes_turn_at_learned_speed() -> None:
    grape = example("grape_m")
    speed = np.exp(grape.log_freq.detach().numpy())
    wanted = np.exp(1j * np.outer(np.arange(9), speed[2]))
    np.testing.assert_allclose(measure.by_pair(grape, range(9), head=2), wanted, atol=1e-12)


def test_pope_shows_lanes_of_length_one() -> None:
    theta = 10000.0 ** (-np.arange(64) / 64)
    angle = np.outer(np.arange(9), theta)
    found = measure.heat_map(example("pope"), range(9), head=1)
    np.testing.assert_allclose(found, np.concatenate([np.cos(angle), np.sin(angle)], 1), atol=1e-12)
    np.testing.assert_allclose(measure.by_pair(example("pope"), range(9)), np.exp(1j * angle), atol=1e-12)


@pytest.mark.parametrize("name", OTHERS)
def test_others_say_that_they_have_no_vectors(name: str) -> None:
    for ask in (measure.heat_map, measure.by_pair, measure.points):
        with pytest.raises(ValueError, match=r"^(heat_map|by_pair): \w+ .*\.$"):
            ask(example(name), [0, 1])


def test_pairs_of_waves_are_cosines_and_sines() -> None:
    n = np.arange(9)
    half = 10000.0 ** (-np.arange(8) / 8)
    wanted = {
        "sinusoidal": np.outer(n, half),
        "tape": np.outer(n, half * 16 / 10),
        "complex_order": np.outer(n, example("complex_order", d_model=16).inv_freq.detach().numpy()),
        "nerf_fourier": np.outer(n / 1024, math.pi * 2.0 ** np.arange(8)),
    }
    for name, angle in wanted.items():
        found = measure.by_pair(example(name, d_model=16), n)
        np.testing.assert_allclose(found, np.exp(1j * angle), atol=1e-12, err_msg=name)
    gaussian = np.random.RandomState(0).standard_normal((8, 1)) * 2 * math.pi * 10 / 1024
    np.testing.assert_allclose(
        measure.by_pair(example("gaussian_fourier", d_model=16), n), np.exp(1j * n[:, None] * gaussian.T)
    )
    for order in ("alternating", "concatenated"):
        odd = posenc.Sinusoidal(d_model=5, order=order, learned_scale=0.5)  # the third sine has no cosine
        found = measure.by_pair(odd, n)
        np.testing.assert_allclose(found, 0.5 * np.exp(1j * np.outer(n, 10000.0 ** (-np.arange(2) / 2.5))), atol=1e-7)
        axes = posenc.SinusoidalND(d_model=12, n_axes=3, order=order)
        pos = np.array([[1, 2, 3], [4, 0, 6]])
        angles = np.concatenate([np.outer(pos[:, a], [1.0, 0.01]) for a in range(3)], 1)
        np.testing.assert_allclose(measure.by_pair(axes, pos), np.exp(1j * angles), atol=1e-12)


@pytest.mark.parametrize("name", [n for n in ADDED if n not in WAVES])
def test_what_has_no_sine_beside_each_cosine_has_no_pairs(name: str) -> None:
    with strategies.refuses(ValueError, "by_pair: ", "has no pairs of a sine and a cosine"):
        measure.by_pair(example(name), [0, 1])


def test_first_axis_is_the_default_of_several() -> None:
    grid = posenc.SinusoidalND(d_model=8)
    wanted = measure.heat_map(grid, np.array([[3, 0], [5, 0]]))
    np.testing.assert_array_equal(measure.heat_map(grid, [3, 5]), wanted)
    assert (wanted[:, 4:] == [0, 1, 0, 1]).all()


def test_members_and_layers() -> None:
    sine, rope, alibi = posenc.Sine(d_model=4), posenc.RoPE(head_dim=4), posenc.ALiBi(n_heads=2)
    turns = np.stack([f(np.outer(range(5), [1.0, 0.01])) for f in (np.cos, np.sin)], 1).reshape(5, 4)
    np.testing.assert_allclose(measure.heat_map(Compose(alibi, rope), range(5)), turns, atol=1e-12)
    layers = PerLayer([alibi, rope])
    np.testing.assert_allclose(measure.heat_map(layers, range(5), layer=1), turns, atol=1e-12)
    with strategies.refuses(ValueError, "ALiBi neither adds"):
        measure.heat_map(layers, range(5))
    both = measure.heat_map(Compose(sine, posenc.Integer(d_model=4), rope), range(5))
    np.testing.assert_allclose(
        both, np.sin(np.outer(range(5), 0.5 ** np.arange(4))) + np.arange(5)[:, None], atol=1e-12
    )
    halves = Mapped(sine, lambda pos: pos / 2)
    np.testing.assert_allclose(measure.heat_map(halves, [6]), np.sin(3 * 0.5 ** np.arange(4))[None], atol=1e-12)
    with strategies.refuses(ValueError, "has 2 rotations at once"):
        measure.heat_map(Compose(rope, posenc.XPos(head_dim=4)), [1])


def test_points_are_lanes() -> None:
    found = measure.points(posenc.Sinusoidal(d_model=6), range(4), (1, 0, -1))
    angle = np.outer(range(4), 10000.0 ** (-np.arange(3) / 3))
    np.testing.assert_allclose(found, np.stack([np.cos(angle[:, 0]), np.sin(angle[:, 0]), np.cos(angle[:, 2])], 1))


@pytest.mark.parametrize("n", [2, 3])
def test_projection_is_along_the_covariance_s_axes(n: int) -> None:
    vectors = strategies.normal(50, 8, seed=2).numpy() * np.array([9, 4, 2, 1, 1, 1, 1, 1]) + 3.0
    found = measure.project(vectors, n)
    centred = vectors - vectors.mean(0)
    values, axes = np.linalg.eigh(centred.T @ centred)
    np.testing.assert_allclose(found.share, values[::-1][:n] / values.sum(), atol=1e-12)
    expected = centred @ axes[:, ::-1][:, :n]
    np.testing.assert_allclose(np.abs(found.points), np.abs(expected), atol=1e-9)
    np.testing.assert_allclose(measure.project(-vectors, n).points, -found.points, atol=1e-9)  # no sign by chance


def test_similarity_is_products_and_cosines() -> None:
    rows, columns = (strategies.normal(n, 5, seed=n).numpy() for n in (7, 3))
    rows[2] = 0.0
    np.testing.assert_allclose(measure.similarity(rows), np.einsum("il,jl->ij", rows, rows), atol=1e-12)
    found = measure.similarity(rows, columns, cosine=True)
    for i, j in np.ndindex(7, 3):
        size = math.dist(rows[i], 0 * rows[i]) * math.dist(columns[j], 0 * columns[j])
        assert found[i, j] == pytest.approx(sum(rows[i] * columns[j]) / size if size else 0.0, abs=1e-12)
    np.testing.assert_allclose(np.diagonal(measure.similarity(columns, cosine=True)), 1.0)


def test_dot_product_of_the_middle_is_a_sum_of_cosines() -> None:
    theta = 10000.0 ** (-np.arange(32) / 32)
    pos = np.arange(100)
    wanted = np.cos(np.outer(pos - 50, theta)).sum(1)
    for encoding in (posenc.Sinusoidal(d_model=64), posenc.RoPE(head_dim=64)):
        found = measure.by_distance(encoding, 50, pos)
        np.testing.assert_allclose(found.dot, wanted, atol=1e-10)
        np.testing.assert_allclose(found.cosine, wanted / 32, atol=1e-12)
        np.testing.assert_allclose(measure.by_distance(encoding, 50, pos[:9]).dot, wanted[:9], atol=1e-10)
        np.testing.assert_allclose(measure.by_distance(encoding, 49.5, [49.5]).cosine, 1.0, atol=1e-12)


def test_neighbours_stay_as_they_are_where_they_count() -> None:
    """The middle is one of the image's tokens, and not a second one in its place."""
    cpvt, image = example("cpvt"), np.array([[0, 0], [0, 1], [1, 0]])
    rows = defined.embedded("cpvt", cpvt, np.ones((3, 32)), image)
    np.testing.assert_allclose(measure.by_distance(cpvt, [0, 1], image).dot, rows @ rows[1], rtol=1e-10)


def test_half_precision_and_tensors_are_read() -> None:
    half = posenc.Learned(d_model=4, max_len=8).half()
    found = measure.heat_map(half, torch.tensor([2, 7]))
    np.testing.assert_array_equal(found, half.weight.detach().double().numpy()[[2, 7]])


def test_values_that_rotate_are_shown_as_what_rotates_them() -> None:
    """Next to a rotation of queries and keys it is this one that is shown."""
    vo, rope, alibi = posenc.VORoPE(head_dim=4), posenc.RoPE(head_dim=4, base=9.0), posenc.ALiBi(n_heads=2)
    n = np.arange(9)
    wanted = np.stack([np.cos(n), np.cos(n / 100), np.sin(n), np.sin(n / 100)], 1)
    for encoding in (vo, Compose(alibi, vo)):
        np.testing.assert_allclose(measure.heat_map(encoding, n), wanted, rtol=0, atol=1e-14)
    np.testing.assert_array_equal(measure.heat_map(Compose(vo, rope), n), measure.heat_map(rope, n))
    np.testing.assert_allclose(measure.frequencies_of(vo), [[1.0, 0.01]], rtol=1e-15)
