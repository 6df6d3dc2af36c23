"""How figures look: labels, colours, fonts and grounds; nothing overlaps; files open and are the same each time."""

import itertools
import subprocess
import sys
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from PIL import Image

import posenc
from posenc import colours, figures

VECTORS = {"none": np.eye(4), "sinusoidal": np.eye(4)[::-1], "learned": np.eye(4)}
DRAW = {
    "heat_map": lambda: figures.heat_map(posenc.Sinusoidal(d_model=512), 100),
    "heat_map_rope": lambda: figures.heat_map(posenc.RoPE(head_dim=64), 200),
    "lanes": lambda: figures.lanes(posenc.Sinusoidal(d_model=64)),
    "points": lambda: figures.points(posenc.Binary(d_model=8), posenc.RoPE(head_dim=4), posenc.Sine(d_model=4), pos=16),
    "dot_product": lambda: figures.dot_product(posenc.Sinusoidal(d_model=64), posenc.RoPE(head_dim=64)),
    "similarity": lambda: figures.similarity(posenc.Sinusoidal(d_model=64)),
    "sentence": lambda: figures.sentence_similarity(VECTORS, ["some", "long", "wordings", "here"]),
    "wavelengths": lambda: figures.wavelengths(posenc.RoPE(head_dim=64), posenc.RoPE(head_dim=64, base=5e5), length=99),
    "oscillatory": figures.oscillatory_integrals,
    "finite_size": figures.finite_size,
    "profile": lambda: figures.profile(posenc.RoPE(head_dim=64), posenc.ALiBi(n_heads=4), n_draws=8, distance=64),
    "bias": lambda: figures.bias_curves(posenc.T5(n_heads=8)),
    "bias_matrix": lambda: figures.bias_matrix(posenc.ALiBi(n_heads=8)),
    "distances": lambda: figures.effective_distance(posenc.SelfExtend(head_dim=64, window=16, group=4)),
    "precision": lambda: figures.precision(posenc.RoPE(head_dim=64)),
    "worked": figures.worked_example,
}


@pytest.fixture(scope="module")
def drawn():
    """Draw each figure once."""
    torch.manual_seed(0)
    return {name: draw() for name, draw in DRAW.items()}


def words_of(figure):
    """Return every visible text with its box in pixels."""
    FigureCanvasAgg(figure).draw()
    texts = [*figure.texts, *([figure._suptitle] if figure.get_suptitle() else [])]
    for axes in figure.axes:
        legend = axes.get_legend()
        texts += [axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label, *axes.texts]
        texts += legend.get_texts() if legend else []
        for axis in (axes.xaxis, axes.yaxis) if axes.axison else ():
            texts += [label for tick in axis._update_ticks() for label in (tick.label1, tick.label2)]
    shown = [t for t in dict.fromkeys(texts) if t.get_text() and t.get_visible()]
    shown = [t for t in shown if t.axes is None or t.axes.axison or t in t.axes.texts or t is t.axes._left_title]
    return [(t.get_text(), t.get_window_extent(), t.get_rotation() % 90) for t in shown]


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", DRAW)
def test_no_two_texts_overlap_and_none_is_cut_off(name, drawn):
    figure = drawn[name]
    words = words_of(figure)
    assert len(words) > 8
    for text, box, _ in words:
        assert figure.bbox.padded(2).contains(box.x0, box.y0), text
        assert figure.bbox.padded(2).contains(box.x1, box.y1), text
    upright = [(text, box.padded(-1)) for text, box, slant in words if not slant]  # the boxes of slanted ones may cross
    clashes = [(a, b) for (a, one), (b, other) in itertools.combinations(upright, 2) if one.overlaps(other)]
    assert not clashes


@pytest.mark.parametrize("name", [name for name in DRAW if name != "worked"])
def test_every_axis_says_what_it_shows(name, drawn):
    panels = [axes for axes in drawn[name].axes if axes.axison]
    assert panels
    for axes in panels:
        bar = hasattr(axes, "_colorbar")
        shared = [a for a in panels if a is axes or a.get_shared_x_axes().joined(a, axes)]
        assert bar or any(a.get_xlabel() for a in shared)
        shared = [a for a in panels if a is axes or a.get_shared_y_axes().joined(a, axes)]
        assert any(a.get_ylabel() for a in shared)
    first = drawn[name]
    assert first.get_suptitle() or first.axes[0].get_title(loc="left")


def test_an_encoding_has_one_colour_in_all_figures(drawn):
    rope, sinusoidal = colours.colour("rope"), colours.colour("sinusoidal")
    assert {line.get_color() for line in drawn["wavelengths"].axes[0].lines[:2]} == {rope}
    assert [line.get_color() for line in drawn["dot_product"].axes[0].lines[:2]] == [sinusoidal, rope]
    assert [line.get_color() for line in drawn["profile"].axes[0].lines[:2]] == [rope, colours.colour("alibi")]
    assert [to_hex(c.get_facecolor()) for c in drawn["profile"].axes[0].collections[:1]] == [rope]
    assert drawn["lanes"].axes[0].lines[0].get_color() == sinusoidal


def test_lines_of_one_colour_differ_by_dash(drawn):
    first, second = drawn["wavelengths"].axes[0].lines[:2]
    assert (first.get_color(), first.get_linestyle()) != (second.get_color(), second.get_linestyle())
    assert [text.get_text() for text in drawn["wavelengths"].axes[0].get_legend().get_texts()] == [
        "RoPE(head_dim=64)",
        "RoPE(head_dim=64, base=500000.0)",
    ]


def test_matrices_are_painted_from_the_shared_map(drawn):
    mesh = drawn["heat_map"].axes[0].collections[0]
    for value in (-1.0, -0.5, 0.0, 0.5, 1.0):
        painted = np.array(mesh.cmap(mesh.norm(value))[:3]) * 255
        np.testing.assert_allclose(painted, colours.rgb(colours.diverging((1 + value) / 2)), atol=2)  # in 256 steps


@pytest.mark.sample(1)
@pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
def test_files_open_and_are_the_same_each_time(suffix, drawn, tmp_path):
    first, second = (tmp_path / f"{i}.{suffix}" for i in range(2))
    drawn["wavelengths"].savefig(first)
    DRAW["wavelengths"]().savefig(second)
    assert first.read_bytes() == second.read_bytes()
    if suffix == "svg":
        assert ElementTree.parse(first).getroot().tag.endswith("}svg")
        assert b"<dc:date>" not in first.read_bytes()
    elif suffix == "png":
        with Image.open(first) as image:
            image.verify()
            assert min(image.size) > 500
    else:
        assert first.read_bytes().startswith(b"%PDF-")
        assert b"CreationDate" not in first.read_bytes()


def test_a_notebook_shows_a_figure_that_a_call_returns(drawn):
    figure = drawn["wavelengths"]
    assert isinstance(figure, Figure)
    assert figure._repr_png_().startswith(b"\x89PNG\r\n")


@pytest.mark.slow
def test_no_window_can_open_and_no_style_is_left_behind():
    code = (
        "import sys, posenc, matplotlib as m; from posenc import figures\n"
        "state = lambda: {k: m.rcParams[k] for k in m.rcParams if k != 'backend'}; before = state()\n"
        "figure = figures.wavelengths(posenc.RoPE(head_dim=8)); figure._repr_png_()\n"
        "print('matplotlib.pyplot' in sys.modules, state() == before)"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("False True\n", "")


def test_the_ground_is_light_whatever_style_the_caller_has():
    with mpl.style.context("dark_background"):
        figure = figures.wavelengths(posenc.RoPE(head_dim=8))
    assert to_hex(figure.get_facecolor()) == colours.PAPER
    assert figure.axes[0].xaxis.label.get_size() >= 10
    assert figure.axes[0].xaxis.label.get_color() == figures.grammar.INK


def test_drawing_takes_no_one_s_random_numbers():
    torch.manual_seed(3)
    wanted = torch.rand(1)
    torch.manual_seed(3)
    figures.heat_map(posenc.Sinusoidal(d_model=8), 4)
    figures.profile(posenc.RoPE(head_dim=8), distance=4, n_draws=2)
    assert torch.rand(1) == wanted


@pytest.mark.parametrize("name", ["wavelengths", "profile", "points", "dot_product"])
def test_nothing_to_draw_is_refused(name):
    with pytest.raises(ValueError, match="nothing to draw"):
        getattr(figures, name)()


def test_a_long_name_says_that_something_is_left_out():
    label = figures.label_of(
        posenc.LongRoPE(head_dim=8, short_factors=(1.0,) * 4, long_factors=(1.0,) * 4, original_max_len=64), 40
    )
    assert label.startswith("LongRoPE(head_dim=8")
    assert label.endswith(", …)")
    assert len(label) <= 60
    assert figures.label_of(posenc.NoPE()) == "NoPE"
