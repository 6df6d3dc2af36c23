"""Encodings of the user's own: each law that does not hold is a cause."""

import pytest

import posenc
from posenc.encoding import Encoding
from posenc.laws import ways
from posenc.verify import laws
from posenc.verify.rules import known


def report(subject, **spec):
    return laws.check(subject, "encoding", spec)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "subject", [posenc.RoPE(head_dim=16), posenc.ALiBi(n_heads=4), posenc.T5(n_heads=2), posenc.RoPE]
)
def test_registered_encodings_pass(subject):
    found = report(subject)
    assert (found.status, found.causes) == ("pass", ())


class ByLength(posenc.RoPE):
    def rotate_k(self, k, placed):
        return super().rotate_k(k, placed) * (1 + placed.pos.shape[-1] / 10)


class Quick(posenc.RoPE):
    def frequencies(self):
        return super().frequencies() * 1.01


class Writes(posenc.RoPE):
    def rotate_q(self, q, placed):
        return q.copy_(super().rotate_q(q, placed))


class Same(posenc.RoPE):
    pass


class Slower(posenc.ValueRotary):
    def __init__(self, *, head_dim=8):
        super().__init__(posenc.RoPE(head_dim=head_dim, base=500.0))
        self.head_dim = head_dim


def test_a_law_that_does_not_hold_is_a_cause_and_the_others_follow_from_it():
    cause = report(ByLength(head_dim=16)).causes[0]
    assert cause.code == "laws.cache"
    assert "laws.packing" in cause.consequences
    assert {cause.code, *cause.consequences} <= set(known())
    assert report(Writes(head_dim=16)).causes[0].code.startswith("laws.")


def test_an_unregistered_class_is_held_against_the_encoding_that_the_spec_names():
    assert report(Quick(head_dim=16), encoding="rope").causes[0].code == "laws.definition"
    assert report(Quick(head_dim=16)).status == "pass"
    assert report(Same(head_dim=16), encoding="rope").status == "pass"
    assert report(Same(head_dim=16), encoding="rope", base=123456.0).causes[0].code == "laws.definition"


class Coloured(Encoding):
    def __init__(self, *, colour):
        super().__init__()


def test_no_encoding_and_too_few_positions():
    assert report(ByLength).causes[0].code == "laws.cache"  # constructed with the usual sizes of a model
    assert report(Coloured).causes[0].code == "laws.no_encoding"
    assert report(posenc.Learned(d_model=16, max_len=32)).status == "cannot_tell"
    assert report(Encoding()).status == "pass"


class Wide(posenc.SwinV2):
    def at(self, h, q, k):
        found = super().at(h, q, k)
        return found.flip(-1) if found.shape[-2:].numel() > 32 else found


class OtherMod(posenc.ALiBi):
    def score_mod(self, placed, k_placed=None):
        mod = super().score_mod(placed, k_placed)
        return lambda score, b, h, q, k: mod(score, b, h + (h == 1), q, k)


class OtherRanks(posenc.T5):
    def of_heads(self, first, n):
        return super().of_heads(0, n)


class OtherSlots(posenc.RoPE):
    def rotate(self, q, k, *places, out=None, **options):
        return super().rotate(q, k if out is None else k * 1.01, *places, out=out, **options)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("encoding", "way"),
    [
        (Wide(n_heads=2, window=(4, 6), width=8), "bias, row by row"),
        (OtherMod(n_heads=4), "score_mod"),
        (OtherRanks(n_heads=4), "of_heads"),
        (OtherSlots(head_dim=8), "rotate_"),
    ],
)
def test_every_way_to_the_numbers_is_held_against_the_others(encoding, way):
    assert way in [found for found, _ in ways.differences(encoding)]
    (base,) = type(encoding).__bases__
    plain = base(**encoding.options())
    assert not list(ways.differences(plain))


def test_a_way_that_differs_is_a_cause():
    cause = report(OtherMod(n_heads=4)).causes[0]
    assert cause.code == "laws.ways"
    assert "score_mod" in cause.message
    assert cause.evidence > 1e-3


def test_values_of_an_unregistered_class_are_compared_too():
    """Scores of both are those of NoPE."""
    wrong = report(Slower(), encoding="vo_rope").causes[0]
    assert wrong.code == "laws.definition"
    assert "gives other scores or values than 'vo_rope'" in wrong.message
    assert report(Slower(), encoding="vo_rope", base=500.0).status == "pass"
