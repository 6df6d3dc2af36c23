import math

import pytest
import torch

import posenc
from posenc import registry
from posenc.cli.picture import N_DISTANCES, N_POSITIONS, define, measure
from posenc.families import Additive, Bias, Rotary


class Axial(Rotary):
    n_axes = 2

    def frequencies(self):
        return torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)


class Heads(Bias):
    def at(self, h, q, k):
        return -h.float() * (q - k)


class Reader(posenc.Encoding):
    reads_x = True


class Unfinished(Additive):
    pass


def values(picture, row):
    return picture.series[row].values


def test_sinusoidal_vectors_are_sines_and_cosines():
    picture = measure(lambda: posenc.Sinusoidal(d_model=4), "")
    assert (picture.kind, len(picture.series), picture.x) == ("vectors", N_POSITIONS, [0, 1, 2, 3])
    wanted = [math.sin(3), math.cos(3), math.sin(0.03), math.cos(0.03)]
    assert values(picture, 3) == pytest.approx(wanted, abs=1e-6)
    assert not picture.learned


def test_rope_scores_are_the_sum_of_cosines():
    picture = measure(lambda: posenc.RoPE(head_dim=4), "")
    wanted = [2 * (math.cos(d) + math.cos(d / 100)) / 2 for d in range(N_DISTANCES)]
    assert (picture.kind, picture.x) == ("scores", list(range(N_DISTANCES)))
    assert values(picture, 0) == pytest.approx(wanted, abs=1e-5)


def test_values_of_vo_rope_are_the_sum_of_cosines():
    picture = measure(lambda: posenc.VORoPE(head_dim=4), "")
    wanted = [2 * (math.cos(d) + math.cos(d / 100)) for d in range(N_DISTANCES)]
    assert (picture.kind, picture.x) == ("values", list(range(N_DISTANCES)))
    assert values(picture, 0) == pytest.approx(wanted, abs=1e-5)


def test_xpos_decays_with_distance_not_before_it():
    """The query is the later of the two: the other way round, scores would grow."""
    scores = values(measure(lambda: posenc.XPos(head_dim=2, scale_base=16.0), ""), 0)
    wanted = [2**0.5 * math.cos(d) * (0.4 / 1.4) ** (d / 16) for d in range(N_DISTANCES)]
    assert scores == pytest.approx(wanted, abs=1e-5)


def test_alibi_falls_by_its_slope():
    picture = measure(lambda: posenc.ALiBi(n_heads=4), "")
    assert [series.label for series in picture.series] == ["head 0", "head 1", "head 2", "head 3"]
    assert values(picture, 0)[:3] == [0, -0.25, -0.5]
    assert values(picture, 3)[16] == -16 / 256


def test_distance_looks_back():
    """T5 without `bidirectional` has one bucket for everything ahead: looking back, there are many."""
    assert len(set(values(measure(lambda: posenc.T5(n_heads=1), ""), 0))) > 10


def test_a_few_heads_are_chosen_evenly():
    picture = measure(lambda: Heads(n_heads=16), "")
    assert [series.label for series in picture.series] == ["head 0", "head 5", "head 10", "head 15"]
    assert [series.values[1] for series in picture.series] == [0, -5, -10, -15]


def test_learned_numbers_are_the_same_each_time_and_leave_the_generator_alone():
    torch.manual_seed(7)
    first = measure(lambda: posenc.Learned(d_model=4, max_len=8), "")
    after = torch.rand(1)
    second = measure(lambda: posenc.Learned(d_model=4, max_len=8), "")
    torch.manual_seed(7)
    assert first == second
    assert first.learned
    assert torch.equal(after, torch.rand(1))
    assert len(first.series) == 8  # no further than the table reaches


def test_several_axes_move_along_the_first():
    scores = values(measure(lambda: Axial(head_dim=4), ""), 0)
    assert scores == pytest.approx([math.cos(d) + 1 for d in range(N_DISTANCES)], abs=1e-5)


def test_nothing_is_drawn_where_nothing_enters_or_tokens_decide():
    nothing, tokens = measure(posenc.NoPE, ""), measure(Reader, "")
    assert (nothing.kind, nothing.series) == ("none", [])
    assert "this encoding uses no positions" in nothing.title
    assert "depends on the tokens" in tokens.title


def test_an_unfinished_class_says_what_it_lacks():
    with pytest.raises(NotImplementedError, match="must define vectors"):
        measure(Unfinished, "")


def test_what_training_draws_is_not_in_the_picture():
    """CAPE shakes positions while training; at position 0 it adds 0, 1, 0, 1."""
    assert values(measure(lambda: posenc.CAPE(d_model=4), ""), 0) == [0, 1, 0, 1]


def test_where_nothing_is_added_a_token_of_ones_is_shown():
    """ComplexOrder's first pair turns by a radian a position: (cos 1 - sin 1, cos 1 + sin 1)."""
    picture = measure(lambda: posenc.ComplexOrder(d_model=4), "")
    assert picture.title == "a token of ones at each position"
    assert values(picture, 0) == [1, 1, 1, 1]
    assert values(picture, 1)[:2] == pytest.approx([-0.301169, 1.381773], abs=1e-6)


@pytest.mark.parametrize("name", registry.names())
def test_definitions_draw_what_the_code_computes(name):
    card = registry.card(name)
    drawn, seen = define(card), measure(lambda: card.cls(**card.example), card.as_dict()["example"])
    if drawn is None:
        assert card.traits["learned"] or "viewmats" in card.example
        return
    assert (drawn.drawn_for, drawn.x, drawn.learned) == (seen.drawn_for, seen.x, seen.learned)
    product = 0.0
    if card.family == "piecewise":  # whose bias replaces the product of q = k = ones by their score
        assert (seen.kind, drawn.kind) == ("bias", "scores")
        product = card.example["head_dim"] ** 0.5
    else:
        assert (drawn.kind, drawn.title) == (seen.kind, seen.title)
    assert [one.label for one in drawn.series] == [one.label for one in seen.series]
    for ours, theirs in zip(drawn.series, seen.series, strict=True):
        assert ours.values == pytest.approx([value + product for value in theirs.values], rel=1e-5, abs=2e-5)
