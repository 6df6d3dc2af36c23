"""Figures in Chinese: every label is translated, numbers stay, and without a font labels stay English."""

import re
import warnings

import numpy as np
import pytest
import torch
from matplotlib.text import Text

import posenc
from posenc import figures, languages
from posenc.figures import fonts

ROPE, SINUSOIDAL, ALIBI = posenc.RoPE(head_dim=16), posenc.Sinusoidal(d_model=16), posenc.ALiBi(n_heads=4)
SELF_EXTEND = posenc.SelfExtend(head_dim=16, window=4, group=2)
WORDS = {"none": np.eye(2), "rope": np.eye(2)}
OTHERS = {
    "several profiles": lambda: figures.profile(ROPE, ALIBI, n_draws=2, content="independent", distance=9),
    "a length": lambda: figures.wavelengths(ROPE, SINUSOIDAL, length=2048),
    "cosines": lambda: figures.dot_product(ROPE, SINUSOIDAL, cosine=True),
    "dot products": lambda: figures.similarity(ROPE, cosine=False),
    "added vectors": lambda: figures.heat_map(SINUSOIDAL),
    "rotated values": lambda: figures.heat_map(posenc.VORoPE(head_dim=16)),
    "a sentence": lambda: figures.sentence_similarity(WORDS, ["a", "b"]),
    "laws": figures.oscillatory_integrals,
    "finite sums": figures.finite_size,
    "worked": figures.worked_example,
    "learned": lambda: figures.draw(posenc.T5(n_heads=2), seed=3),
}
# Latin words that Chinese labels keep: names and formulas. Panels of a sentence and its words have the caller's names.
KEPT = r"\w+\([^()]*=[^()]*\)|\b(posenc|query|key|value|tokens?|dtype|b?float\d+|softmax|d_model|sin|cos|none|rope)\b"


@pytest.fixture
def with_font(monkeypatch):
    """Let a font with Chinese glyphs be found; labels are read, not drawn, so that none is needed."""
    monkeypatch.setattr(fonts, "find_chinese", lambda: fonts.PLAIN)


@pytest.fixture
def without_font(monkeypatch):
    monkeypatch.setattr(fonts, "CHINESE", ("No Such Font",))


def texts_of(figure):
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def drawing_of(kind):
    if kind in OTHERS:
        return OTHERS[kind]
    encoding = next(e for e in (ROPE, ALIBI, SELF_EXTEND) if figures.fits(e, kind))
    return lambda: figures.draw(encoding, kind)


def in_both(kind):
    """Return a figure in English and in Chinese."""
    draw = drawing_of(kind)
    torch.manual_seed(0)
    english = draw()
    torch.manual_seed(0)
    with languages.use("zh"):
        return english, draw()


@pytest.mark.sample(6)
@pytest.mark.parametrize("kind", [*figures.KINDS, *OTHERS])
def test_every_label_is_chinese_and_has_the_numbers_of_the_english_one(kind, with_font):
    english, chinese = map(texts_of, in_both(kind))
    assert len(english) == len(chinese) > 2
    for before, after in zip(english, chinese, strict=True):
        assert sorted(re.findall(r"\d[\d,.]*\d|\d", before)) == sorted(re.findall(r"\d[\d,.]*\d|\d", after))
        words = re.findall(r"[A-Za-z]{2,}", re.sub(KEPT, "", after))
        assert not words, after
        if re.search(r"[A-Za-z]{2,}", re.sub(KEPT, "", before)):
            assert re.search(r"[\u4e00-\u9fff]", after), before


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", figures.KINDS)
def test_lines_and_matrices_are_those_of_the_english_figure(kind, with_font):
    for english, chinese in zip(*(figure.axes for figure in in_both(kind)), strict=True):
        for one, other in zip(english.lines, chinese.lines, strict=True):
            np.testing.assert_array_equal(one.get_xydata(), other.get_xydata())
        for one, other in zip(english.collections, chinese.collections, strict=True):
            np.testing.assert_array_equal(one.get_array(), other.get_array())


def test_english_figures_look_for_no_font(monkeypatch):
    monkeypatch.setattr(fonts, "find_chinese", lambda: pytest.fail("looked for a font"))
    assert figures.profile(ROPE, distance=4, n_draws=2).axes[0].xaxis.label.get_family() == ["DejaVu Sans"]


def test_the_font_with_chinese_glyphs_stands_behind_that_of_numbers(monkeypatch):
    monkeypatch.setattr(fonts, "find_chinese", lambda: "SimHei")
    with languages.use("zh"):
        figure = figures.profile(ROPE, distance=4, n_draws=2)
    assert figure.axes[0].xaxis.label.get_family() == ["DejaVu Sans", "SimHei"]


def test_without_a_font_one_warning_says_what_to_install_and_labels_stay_english(without_font):
    with languages.use("zh"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figure = figures.draw(posenc.T5(n_heads=2), seed=3)
    assert [warning.category for warning in caught] == [UserWarning]
    assert re.search(r"no font with Chinese glyphs .* labels stay English.* Noto Sans CJK SC", str(caught[0].message))
    assert caught[0].filename == __file__
    assert "freshly initialised (seed 3)" in figure.get_supxlabel()
    assert texts_of(figure) == texts_of(figures.draw(posenc.T5(n_heads=2), seed=3))


def test_a_font_is_found_that_is_newer_than_matplotlib_s_list(monkeypatch):
    """DejaVu Sans is taken off the list, as if it had been installed after the list was written."""
    manager = fonts.font_manager.fontManager
    plain = fonts.font_manager.findfont(fonts.PLAIN)
    monkeypatch.setattr(fonts, "CHINESE", ("No Such Font", fonts.PLAIN))
    monkeypatch.setattr(manager, "ttflist", [font for font in manager.ttflist if font.name != fonts.PLAIN])
    monkeypatch.setattr(fonts.font_manager, "findSystemFonts", lambda: [plain, __file__])
    assert fonts.find_chinese() == fonts.PLAIN
