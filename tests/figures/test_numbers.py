"""What stands in the figures: numbers are read back from the artists and held against NumPy and the papers."""

import math

import numpy as np
import pytest

import posenc
from posenc import colours, figures

POS = np.arange(100)


def sinusoids(pos, d_model, base=10_000.0):
    """Vaswani 2017, section 3.5."""
    found = np.empty((len(pos), d_model))
    for k in range(d_model // 2):
        angle = np.asarray(pos) / base ** (2 * k / d_model)
        found[:, 2 * k], found[:, 2 * k + 1] = np.sin(angle), np.cos(angle)
    return found


def mesh_of(axes):
    """Return the cells of a matrix (rows, columns), and the middles of columns and rows."""
    mesh = axes.collections[0]
    corners = mesh.get_coordinates()
    x, y = corners[0, :, 0], corners[:, 0, 1]
    cells = np.ma.filled(mesh.get_array(), np.nan).reshape(len(y) - 1, len(x) - 1)
    assert mesh.norm.vmin == -mesh.norm.vmax  # zero is white
    return cells, (x[1:] + x[:-1]) / 2, (y[1:] + y[:-1]) / 2


def lines_of(axes):
    """Return the labelled lines as {label: (x, y)}."""
    return {line.get_label(): line.get_data() for line in axes.lines if not line.get_label().startswith("_")}


def test_the_heat_map_has_position_on_x_lane_on_y_and_the_paper_s_numbers():
    axes = figures.heat_map(posenc.Sinusoidal(d_model=512), 100).axes[0]
    cells, x, y = mesh_of(axes)
    np.testing.assert_allclose(cells, sinusoids(POS, 512).T, atol=1e-9)
    np.testing.assert_allclose(x, POS)
    np.testing.assert_allclose(y, np.arange(512))
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("position (tokens)", "dimension (number)")
    assert axes.yaxis_inverted()


def test_the_heat_map_of_a_rotary_encoding_has_cosines_and_sines():
    cells, _, _ = mesh_of(figures.heat_map(posenc.RoPE(head_dim=8), [0, 3, 70]).axes[0])
    angle = np.outer(10_000.0 ** (-np.arange(4) / 4), [0, 3, 70])
    np.testing.assert_allclose(cells, np.concatenate((np.cos(angle), np.sin(angle))), atol=1e-12)


def test_wavelengths_are_those_of_the_paper_on_a_logarithmic_axis():
    axes = figures.wavelengths(posenc.Sinusoidal(d_model=512), length=2048).axes[0]
    assert axes.get_yscale() == "log"
    x, y = axes.lines[0].get_data()
    np.testing.assert_allclose(x, np.arange(256))
    np.testing.assert_allclose(y, 2 * np.pi * 10_000 ** (2 * np.arange(256) / 512))
    assert set(axes.lines[1].get_ydata()) == {2048}
    assert axes.texts[0].get_text().startswith("2,048 tokens")


def test_wavelengths_of_several_axes_leave_out_what_stands_still():
    axes = figures.wavelengths(posenc.AxialRoPE(head_dim=8, base=100.0)).axes[0]
    drawn = [line.get_data() for line in axes.lines]
    assert sorted(x.tolist() for x, _ in drawn) == [[0, 1], [2, 3]]
    for _, y in drawn:
        np.testing.assert_allclose(y, [2 * np.pi, 20 * np.pi])


def test_points_are_joined_in_order():
    p = np.arange(16)
    wanted = {
        posenc.Integer(d_model=4): ((0, 1), np.stack((p, p), 1)),
        posenc.Binary(d_model=8): ((6, 7), np.stack((p // 2 % 2, p % 2), 1)),
        posenc.Sine(d_model=4): ((1, 2), np.stack((np.sin(p / 2), np.sin(p / 4)), 1)),
        posenc.Sinusoidal(d_model=4): ((0, 1), np.stack((np.sin(p), np.cos(p)), 1)),
        posenc.RoPE(head_dim=4): ((0, 2), np.stack((np.cos(p), np.sin(p)), 1)),
    }
    figure = figures.points(*wanted, pos=16, lanes=[lanes for lanes, _ in wanted.values()])
    for axes, (encoding, (lanes, where)) in zip(figure.axes, wanted.items(), strict=False):
        np.testing.assert_allclose(np.stack(axes.lines[0].get_data(), 1), where, atol=1e-12)
        np.testing.assert_allclose(axes.collections[0].get_offsets(), where, atol=1e-12)
        assert (axes.get_xlabel(), axes.get_ylabel()) == tuple(f"dimension {lane}" for lane in lanes)
        assert axes.lines[0].get_color() == colours.colour(figures.grammar.name_of(encoding))
    corners = {text.get_text() for text in figure.axes[1].texts}
    assert corners == {"0, 4, …", "1, 5, …", "2, 6, …", "3, 7, …"}


def test_the_dot_product_of_the_middle_is_a_sum_of_cosines():
    sinusoidal, rope = posenc.Sinusoidal(d_model=64), posenc.RoPE(head_dim=64)
    wanted = np.cos(np.outer(POS - 40, 10_000.0 ** (-np.arange(32) / 32))).sum(1)
    axes = figures.dot_product(sinusoidal, rope, middle=40, pos=100).axes[0]
    for x, y in lines_of(axes).values():
        np.testing.assert_allclose(x, POS)
        np.testing.assert_allclose(y, wanted, atol=1e-9)
    cosines = figures.dot_product(sinusoidal, middle=40, pos=100, cosine=True).axes[0]
    np.testing.assert_allclose(cosines.lines[0].get_ydata(), wanted / 32, atol=1e-9)


def test_similarity_is_the_cosine_of_vectors():
    cells, x, y = mesh_of(figures.similarity(posenc.Sinusoidal(d_model=64), 20).axes[0])
    vectors = sinusoids(np.arange(20), 64)
    np.testing.assert_allclose(cells, vectors @ vectors.T / 32, atol=1e-9)
    np.testing.assert_allclose(x, y)


def test_lanes_has_a_panel_for_each_position():
    figure = figures.lanes(posenc.Sinusoidal(d_model=32), (0, 10, 20, 30, 40))
    assert [axes.get_ylabel() for axes in figure.axes] == [f"position {p}" for p in (0, 10, 20, 30, 40)]
    drawn = np.array([axes.lines[0].get_ydata() for axes in figure.axes])
    np.testing.assert_allclose(drawn, sinusoids([0, 10, 20, 30, 40], 32), atol=1e-9)


@pytest.mark.slow
def test_oscillatory_integrals_have_their_known_values():
    near, far = figures.oscillatory_integrals(near=100.0, far=1000.0).axes
    drawn = lines_of(near)
    assert drawn["θ = $10000^{-t}$"][1][-1] == pytest.approx(0.436773293209, abs=1e-11)
    x, y = drawn["θ = t"]
    np.testing.assert_allclose(y, np.sinc(x / np.pi), atol=1e-9)
    np.testing.assert_allclose(drawn["θ = 1"][1], np.cos(x), atol=1e-9)
    drawn = lines_of(far)
    assert drawn["θ = $10000^{-t}$"][1][-1] == pytest.approx(0.187690642512, abs=1e-11)
    assert drawn["θ = $10000^{-t}$"][1][0] == pytest.approx(0.973962771210, abs=1e-11)
    assert far.get_xscale() == "log"
    assert "θ = 1" not in drawn
    assert "without θ = 1" in far.get_title(loc="left")


def test_finite_sums_stand_beside_their_limit():
    axes = figures.finite_size((4, 64), base=500_000.0, far=10_000.0).axes[0]
    drawn = lines_of(axes)
    x, y = drawn["4 pairs"]
    np.testing.assert_allclose(y, np.cos(np.outer(x, 500_000.0 ** (-np.arange(4) / 4))).mean(1), atol=1e-9)
    assert drawn["infinitely many"][1][-1] == pytest.approx(0.254136902860, abs=1e-11)


def test_a_sentence_has_a_panel_for_each_way():
    words = ["a", "b", "a"]
    vectors = {"none": [[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]], "other": [[1.0, 0.0], [1.0, 1.0], [-1.0, 0.0]]}
    figure = figures.sentence_similarity(vectors, words)
    first, second = figure.axes[:2]
    np.testing.assert_allclose(mesh_of(first)[0], [[1, 0, 1], [0, 1, 0], [1, 0, 1]], atol=1e-12)
    h = math.sqrt(0.5)
    np.testing.assert_allclose(mesh_of(second)[0], [[1, h, -1], [h, 1, -h], [-1, -h, 1]], atol=1e-12)
    assert [t.get_text() for t in first.get_yticklabels()] == words == [t.get_text() for t in second.get_xticklabels()]
    assert [axes.get_title(loc="left") for axes in (first, second)] == ["none", "other"]
    with pytest.raises(ValueError, match="one vector per word"):
        figures.sentence_similarity(vectors, ["a", "b"])


def test_the_worked_example_is_right_and_its_slips_are_wrong():
    m, n = 2, 5
    found = figures.work_out(m, n)
    first, second = sinusoids([m, n], 4)
    np.testing.assert_allclose(found.products, first * second, atol=1e-12)
    assert found.dot == pytest.approx(math.cos(3) + math.cos(0.03), abs=1e-12) == found.dot_shifted
    assert found.cosine == pytest.approx(found.dot / 2, abs=1e-12)
    crossed = sum(first[i] * second[j] for i, j in enumerate((0, 2, 1, 3)))  # sin, cos, sin, cos by sin, sin, cos, cos
    assert found.mixed == pytest.approx(crossed, abs=1e-12)
    assert abs(found.mixed - found.mixed_shifted) > 0.1
    said = [text.get_text() for text in figures.worked_example(m, n).axes[0].texts]
    for number in (*first, *second, *first * second):
        assert f"{number:.4f}".replace("-", "−") in said
    assert f"{found.dot:.4f}".replace("-", "−") in said


def test_the_profile_of_alibi_is_that_of_nope_less_the_slope():
    distance = np.arange(33)
    alibi, nope = (
        figures.profile(encoding, distance=33).axes[0] for encoding in (posenc.ALiBi(n_heads=2), posenc.NoPE())
    )
    drop = alibi.lines[0].get_ydata() - alibi.lines[0].get_ydata()[0]
    np.testing.assert_allclose(drop, -distance / 16, atol=1e-9)  # the first of two slopes is 2^-4
    assert np.ptp(nope.lines[0].get_ydata()) < 1e-9
    outline = alibi.collections[0].get_paths()[0].vertices
    assert outline[:, 1].min() < alibi.lines[0].get_ydata().min()
    assert outline[:, 1].max() > alibi.lines[0].get_ydata().max()


def test_bias_curves_are_the_paper_s_slopes():
    axes = figures.bias_curves(posenc.ALiBi(n_heads=8), 65).axes[0]
    for head, (x, y) in enumerate(lines_of(axes).values()):
        np.testing.assert_allclose(y, -x / 2 ** (head + 1), atol=1e-12)
    assert list(lines_of(axes)) == [f"head {h}" for h in range(8)]


def test_the_bias_matrix_has_queries_on_y_and_one_scale():
    figure = figures.bias_matrix(posenc.ALiBi(n_heads=2), 6, heads=(1, 0))
    q, k = np.mgrid[:6, :6]
    for axes, slope in zip(figure.axes, (2**-8, 2**-4), strict=False):
        np.testing.assert_allclose(mesh_of(axes)[0], -slope * abs(q - k), atol=1e-12)
        assert axes.get_xlabel() == "key position (tokens)"
    assert figure.axes[0].get_ylabel() == "query position (tokens)"
    assert figure.axes[0].collections[0].norm.vmax == figure.axes[1].collections[0].norm.vmax == 5 * 2**-4


def test_effective_distances_are_those_of_self_extend():
    matrix, last = figures.effective_distance(posenc.SelfExtend(head_dim=8, window=4, group=2), 16).axes[:2]
    cells, _, _ = mesh_of(matrix)
    for q in range(16):
        for k in range(16):
            wanted = q - k if q - k < 4 else q // 2 - k // 2 + 4 - 2  # Jin 2024, equation 4
            assert math.isnan(cells[q, k]) if k > q else cells[q, k] == wanted
    x, y = lines_of(last)["mapped"]
    np.testing.assert_allclose(y, cells[-1])
    np.testing.assert_allclose(x, 15 - np.arange(16))
    long = figures.effective_distance(posenc.SelfExtend(head_dim=8, window=100, group=2)).axes[0]
    assert mesh_of(long)[0].shape == (256, 256)


def test_precision_shows_what_rounding_positions_does():
    import torch

    ours, formula = figures.precision(posenc.RoPE(head_dim=2), up_to=3000).axes
    x, y = lines_of(formula)["bfloat16"]
    rounded = torch.tensor(x).to(torch.bfloat16).double().numpy()  # the angle itself, as the only frequency is 1
    missed = abs((rounded - x + np.pi) % (2 * np.pi) - np.pi)
    assert (missed > 1).any()
    np.testing.assert_allclose(np.nan_to_num(y), missed, atol=0.01)
    assert np.nanmax(lines_of(ours)["bfloat16"][1]) < 0.01
    assert np.nanmax(lines_of(ours)["float32"][1]) < 1e-6
