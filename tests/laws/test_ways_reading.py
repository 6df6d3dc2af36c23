"""What an encoding reads is held against what it says of it, and what it makes of what nobody sees is seen."""

import pytest

import posenc
from posenc.laws import ways
from posenc.private import is_wrapped


class ReadsKeys(posenc.ALiBi):
    def bias(self, q, k, placed, k_placed):
        return super().bias(q, k, placed, k_placed) + k[:, :1].mean(-1)[:, :, None]


class ReadsQueriesInRows(posenc.DAPE):
    def rescore(self, scores, q, k, placed, k_placed, mask):
        return super().rescore(scores, q, k, placed, k_placed, mask) * q.sigmoid().mean(-1, keepdim=True)


class TakesOneHead(posenc.ALiBi):
    def at(self, h, q, k):
        return super().at(h[:1] if h.ndim == 1 else h, q, k)


class NeedsABatch(posenc.Sinusoidal):
    def mix(self, x, *parts):
        return x + parts[0] * (x.ndim == 3)


class HasOtherVectors(posenc.Hierarchical):
    def vectors(self, pos):
        return super().vectors(pos) * 1.1


class SumsInFloat32(posenc.FoX):
    def at(self, h, q, k):
        return q[0] - k[0]


class ClampsUnseen(posenc.Learned):
    def vectors(self, pos):
        unseen = is_wrapped(pos)
        return super().vectors(pos.clamp(0, self.max_len - 1) if unseen else pos)


class ShiftsUnseen(posenc.Learned):
    def vectors(self, pos):
        unseen = is_wrapped(pos)
        return super().vectors(pos.clamp(min=1) if unseen else pos)


class LooksUpTheFirstNode(posenc.Graphormer):
    def at(self, h, q, k):
        return super().at(h, q, k.where(k >= 0, 0))


class TakesOneTextForTwo(posenc.FoX):
    def score_mod(self, placed, k_placed=None):
        if placed.pos.shape[0] > 1:
            return super().score_mod(placed, k_placed)
        mod = super().score_mod(placed, k_placed)
        return lambda score, b, h, q, k: mod(score, b, h, q, k) + b


SPOILT = {
    "bias of other queries and keys, without reads_qk": ReadsKeys(n_heads=4),
    "rescore of other queries and keys, without reads_qk": ReadsQueriesInRows(n_heads=4, width=4),
    "score_mod, of several pairs at once": TakesOneHead(n_heads=4),
    "embed, without a batch": NeedsABatch(d_model=16),
    "vectors": HasOtherVectors(d_model=16),
    "bias, at the end of a long text": SumsInFloat32(d_model=16, n_heads=4),
    "place with hidden values, at the refused position 64": ClampsUnseen(d_model=8, max_len=64),
    "place with hidden values": ShiftsUnseen(d_model=8, max_len=64),
    "place with hidden values, at the refused position -1": LooksUpTheFirstNode(**posenc.card("graphormer").example),
    "score_mod, mapped": TakesOneTextForTwo(d_model=16, n_heads=4),
}


@pytest.mark.sample(5)
@pytest.mark.parametrize("way", SPOILT)
def test_what_is_read_otherwise_is_named(way):
    assert way in {named for named, _ in ways.differences(SPOILT[way])}


@pytest.mark.sample(5)
@pytest.mark.parametrize("way", SPOILT)
def test_the_unspoilt_parent_agrees(way):
    spoilt = SPOILT[way]
    assert list(ways.differences(type(spoilt).__mro__[1](**spoilt.options()))) == []


class SaysThatItReads(ReadsKeys):
    reads_qk = True


def test_who_says_that_it_reads_keys_may():
    seen = {named for named, _ in ways.differences(SaysThatItReads(n_heads=4))}
    assert "bias of other queries and keys, without reads_qk" not in seen
