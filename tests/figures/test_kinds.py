"""Which kinds of figure fit which encoding."""

import pytest
import torch

import posenc
from posenc import figures
from posenc.families import Additive


class Ramp(Additive):
    """Add the position to every lane."""

    def __init__(self, *, d_model):
        super().__init__()
        self.d_model = d_model

    def vectors(self, pos):
        return pos[..., None].expand(*pos.shape, self.d_model).double()


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", posenc.names())
def test_the_first_kind_that_fits_can_be_drawn_of_every_encoding(name):
    card = posenc.card(name)
    torch.manual_seed(0)
    encoding = card.cls(**card.example)
    kinds = figures.kinds_of(encoding)
    if encoding.reads_x and not kinds:
        return
    assert kinds
    figure = figures.draw(encoding)
    figure._repr_png_()
    assert card.cls.__name__ in (figure.get_suptitle() or figure.axes[0].get_title(loc="left"))


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("encoding", "first", "others"),
    [
        (posenc.ALiBi(n_heads=4), "bias", {"bias-matrix", "profile"}),
        (
            posenc.RoPE(head_dim=16),
            "profile",
            {"heatmap", "lanes", "points", "dot", "similarity", "wavelengths", "precision"},
        ),
        (posenc.SelfExtend(head_dim=16, window=4, group=2), "distances", {"profile"}),
        (posenc.NoPE(), "profile", set()),
        (Ramp(d_model=4), "heatmap", {"lanes", "points", "dot", "similarity", "profile"}),
    ],
    ids=lambda v: getattr(v, "name", None),
)
def test_an_encoding_has_the_kinds_that_mean_something_for_it(encoding, first, others):
    kinds = figures.kinds_of(encoding)
    assert kinds[0] == first == figures.kind_of(encoding)
    assert set(kinds[1:]) == others
    for kind in kinds:
        figures.draw(encoding, kind)._repr_png_()


def test_a_kind_that_does_not_fit_is_refused_with_those_that_do():
    with pytest.raises(ValueError, match="'heatmap' does not fit ALiBi. These fit ALiBi: bias, bias-matrix, profile."):
        figures.draw(posenc.ALiBi(n_heads=4), "heatmap")
    with pytest.raises(ValueError, match="'nonsense' is not a kind of figure. These fit NoPE: profile."):
        figures.draw(posenc.NoPE(), "nonsense")
