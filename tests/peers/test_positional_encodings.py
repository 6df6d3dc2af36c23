"""Agreement with the package positional-encodings, whose angles are float32: rounded once more a unit of distance."""

import pytest
import torch

import posenc
from peers.agreement import assert_same, leaf
from posenc import positions

peer = pytest.importorskip("positional_encodings.torch_encodings")


def spread(*sizes):
    """Return the positions of all cells of a box, the last axis fastest, as the peer flattens it."""
    return torch.cartesian_prod(*(positions.arange(size) for size in sizes))


@pytest.mark.parametrize("d_model", [4, 32, 512])
def test_sinusoidal_is_theirs(d_model):
    x = leaf(2, 100, d_model)
    ours = posenc.Sinusoidal(d_model=d_model)(x, positions.arange(100))
    assert_same(ours, peer.Summer(peer.PositionalEncoding1D(d_model))(x), [x], atol=1e-5)


@pytest.mark.parametrize("d_model", [1, 5, 33])
def test_an_odd_width_is_the_even_one_cut(d_model):
    """They make the width even before the exponent is formed, as our several axes do; our one axis does not."""
    x = leaf(1, 50, d_model)
    ours = posenc.SinusoidalND(d_model=d_model, n_axes=1)(x, positions.arange(50))
    assert_same(ours, peer.Summer(peer.PositionalEncoding1D(d_model))(x), [x], atol=1e-5)
    cut = posenc.Sinusoidal(d_model=d_model + 1).vectors(positions.arange(50))[:, :d_model]
    torch.testing.assert_close(ours - x, cut[None].float(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("d_model", [4, 6, 7, 10, 11, 30, 64])  # of these 4 and 64 alone divide
def test_two_axes_are_theirs(d_model):
    x = leaf(2, 9, 14, d_model)
    theirs = peer.Summer(peer.PositionalEncoding2D(d_model))(x).flatten(1, 2)
    ours = posenc.SinusoidalND(d_model=d_model)(x.flatten(1, 2), positions.grid(9, 14))
    assert_same(ours, theirs, [x], atol=2e-6)


@pytest.mark.parametrize("d_model", [6, 11, 16, 32, 48])
def test_three_axes_are_theirs(d_model):
    x = leaf(1, 4, 3, 7, d_model)
    theirs = peer.Summer(peer.PositionalEncoding3D(d_model))(x).flatten(1, 3)
    ours = posenc.SinusoidalND(d_model=d_model, n_axes=3)(x.flatten(1, 3), spread(4, 3, 7))
    assert_same(ours, theirs, [x], atol=2e-6)


@pytest.mark.parametrize("d_model", [7, 8])
def test_three_axes_with_too_few_lanes_are_refused(d_model):
    """With 4 lanes for each of the first two axes, the third has none: they leave it out, we say so."""
    with pytest.raises(ValueError, match="each of n_axes=3 axes needs 4 dimensions of its own"):
        posenc.SinusoidalND(d_model=d_model, n_axes=3)
    theirs = peer.PositionalEncoding3D(d_model)(torch.zeros(1, 2, 2, 5, d_model))
    assert torch.equal(theirs, theirs[:, :, :, :1].expand_as(theirs))
