"""Each way to an encoding's numbers that is spoilt alone is seen, and named."""

import math

import pytest

import posenc
from posenc.laws import ways
from posenc.private import is_wrapped


class OverTheWrongWay(posenc.ALiBi):
    def over(self, distance):
        return super().over(distance) * (1 + 0.01 * (distance > 300))


class VectorsAreLate(posenc.Shaw):
    def vectors(self, distance, dtype):
        return super().vectors(distance + (distance > 5), dtype)


class TakesKeysForQueries(posenc.ALiBi):
    def score_mod(self, placed, k_placed=None):
        return super().score_mod(k_placed or placed, k_placed)


class TracesOtherwise(posenc.T5):
    def bucket(self, distance):
        traced = is_wrapped(distance)
        return super().bucket(distance + 1 if traced else distance)


class ReadsTheFirstRow(posenc.ALiBi):
    def parts(self, pos, x, past, dtype):
        return super().parts(pos[:1].expand_as(pos) if pos.ndim == 2 else pos, x, past, dtype)


class AddsTheFirstRow(posenc.Sinusoidal):
    def vectors(self, pos):
        return super().vectors(pos[:1].expand_as(pos) if pos.ndim == 2 else pos)


class MakesARowMore(posenc.ALiBi):
    def bias(self, q, k, placed, k_placed):
        found = super().bias(q, k, placed, k_placed)
        return found if q.shape[2] > 1 else found.repeat(1, 1, 2, 1)


SPOILT = {
    "over": OverTheWrongWay(n_heads=3),
    "vectors": VectorsAreLate(head_dim=8),
    "score_mod, mapped": TakesKeysForQueries(n_heads=4),
    "bias, traced": TracesOtherwise(n_heads=4),
    "scores, of a row in a batch": ReadsTheFirstRow(n_heads=4),
    "embed, of a row in a batch": AddsTheFirstRow(d_model=32),
}


@pytest.mark.sample(5)
@pytest.mark.parametrize("way", SPOILT)
def test_a_way_that_gives_other_numbers_is_named(way):
    seen = {named for named, off in ways.differences(SPOILT[way]) if off > 1e-3}
    assert way in seen


@pytest.mark.sample(4)
@pytest.mark.parametrize("way", SPOILT)
def test_the_unspoilt_parent_agrees_with_itself(way):
    spoilt = SPOILT[way]
    assert list(ways.differences(type(spoilt).__mro__[1](**spoilt.options()))) == []


def test_numbers_of_another_shape_are_infinitely_far_off():
    assert ("bias, row by row", math.inf) in ways.differences(MakesARowMore(n_heads=2))


def test_each_distance_may_have_a_vector_of_its_own():
    assert list(ways.differences(posenc.TransformerXL(d_model=16, n_heads=4, head_dim=8))) == []
