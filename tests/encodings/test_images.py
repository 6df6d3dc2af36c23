"""Encodings of several axes: patches, class tokens, other image sizes, convolution over the grid."""

import pytest
import torch
from torch.nn import functional as F

import posenc
from posenc import positions
from strategies import normal, refuses


def test_a_grid_with_prefix_tokens_is_the_layout_of_the_table() -> None:
    table = posenc.Learned2D(d_model=3, height=2, width=4, n_prefix=2)
    assert torch.equal(table.vectors(positions.grid(2, 4, n_prefix=2)), table.weight)


@pytest.mark.parametrize("bad", [(2, 0), (0, 4), (-1, 2), (-2, 0), (0, -1), (-1, -1)])
def test_a_place_outside_the_image_is_an_error(bad: tuple[int, int]) -> None:
    table = posenc.Learned2D(d_model=3, height=2, width=4, n_prefix=2)
    with refuses(ValueError, "Learned2D: positions must be patches of 2 x 4, or (-1, i) for one of 2", f"got {bad}"):
        table.place(torch.tensor([[0, 0], bad]))


def test_resizing_keeps_constants_prefixes_and_kind() -> None:
    table = posenc.Learned2D(d_model=2, height=3, width=5, n_prefix=1).half()
    with torch.no_grad():
        table.weight.fill_(0.5)
        table.weight[0] = 7.0
    larger = table.resized(6, 4)
    assert (larger.height, larger.width, larger.n_prefix) == (6, 4, 1)
    assert larger.weight.dtype == torch.float16
    assert larger.weight[0].tolist() == [7.0, 7.0]
    torch.testing.assert_close(larger.weight[1:], torch.full((24, 2), 0.5, dtype=torch.float16), atol=1e-3, rtol=0)
    assert not torch.equal(posenc.Learned2D(d_model=2, height=3, width=5).resized(4, 4).weight, larger.weight[1:])


def test_cpvt_on_a_whole_grid_is_a_depthwise_convolution() -> None:
    cpvt, x = posenc.CPVT(d_model=3, kernel_size=5).double(), normal(2, 4 * 6, 3)
    image = x.transpose(1, 2).unflatten(-1, (4, 6))
    wanted = image + F.conv2d(image, cpvt.weight[:, None], cpvt.shift, padding=2, groups=3)
    got = cpvt(x, positions.grid(4, 6))
    torch.testing.assert_close(got, wanted.flatten(2).transpose(1, 2), rtol=0, atol=1e-13)


def test_cpvt_leaves_class_tokens_alone_and_out() -> None:
    cpvt, x = posenc.CPVT(d_model=3).double(), normal(1, 2 + 6, 3)
    got = cpvt(x, positions.grid(2, 3, n_prefix=2))
    assert torch.equal(got[:, :2], x[:, :2])
    assert torch.equal(got[:, 2:], cpvt(x[:, 2:], positions.grid(2, 3)))


def test_cpvt_with_padding_in_a_negative_row() -> None:
    """The law's padding stands where token 0 does; outside the image it reaches nothing, not even as NaN."""
    cpvt, x, grid = posenc.CPVT(d_model=3).double(), normal(2, 7, 3), positions.grid(2, 3)
    x[0, 0] = torch.nan
    pos = torch.stack((torch.cat((torch.tensor([[-1, 0]]), grid)), torch.cat((grid, torch.tensor([[5, 5]])))))
    got = cpvt(x, pos)
    assert torch.equal(got[0, 1:], cpvt(x[:1, 1:], grid)[0])
    assert torch.equal(got[1, :6], cpvt(x[1:, :6], grid)[0])


def test_cpvt_is_a_map_of_places_not_of_order_and_its_border_is_what_tells_position() -> None:
    cpvt, grid = posenc.CPVT(d_model=2).double(), positions.grid(3, 3)
    same = cpvt(torch.ones(1, 9, 2, dtype=torch.float64), grid)[0]
    assert not torch.allclose(same[0], same[4])  # a corner and the middle of an image of one colour
    assert not torch.allclose(same[1], same[3])
    x, order = normal(1, 9, 2), torch.randperm(9, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(cpvt(x[:, order], grid[order]), cpvt(x, grid)[:, order], rtol=0, atol=1e-14)


@pytest.mark.parametrize("size", [2, 4])
def test_cpvt_refuses_a_kernel_without_a_middle(size: int) -> None:
    with refuses(ValueError, "CPVT: kernel_size must be odd", f"got {size}"):
        posenc.CPVT(d_model=2, kernel_size=size)


def test_axial_rope_turns_each_axis_alone() -> None:
    """A row step turns the first pairs, a column step the others; scores see differences of each axis."""
    rope, q = posenc.AxialRoPE(head_dim=8, pairing="interleaved"), torch.ones(1, 1, 1, 8)
    down, right = (rope.rotate_q(q, rope.place(torch.tensor([step])))[0, 0, 0] for step in ([3, 0], [0, 3]))
    line = posenc.RoPE(head_dim=4, pairing="interleaved")
    turned = line.rotate_q(q[..., :4], line.place(torch.tensor([3])))[0, 0, 0]
    assert torch.equal(down, torch.cat((turned, torch.ones(4))))
    assert torch.equal(right, torch.cat((torch.ones(4), turned)))


DIFFUSION = {  # dimensions of each axis, base, and the frequency of the second and the last pair of each, by its code
    "FLUX": ((16, 56, 56), 1e4, [(0.316227766, 0.000316227766), *[(0.719685673, 0.00013894955)] * 2]),
    "Wan": ((44, 42, 42), 1e4, [(0.657933225, 0.00015199111), *[(0.644946677, 0.00015505158)] * 2]),
    "CogVideoX": ((16, 24, 24), 1e4, [(0.316227766, 0.000316227766), *[(0.464158883, 0.00021544347)] * 2]),
    "FLUX.2": ((32, 32, 32, 32), 2e3, [(0.621849981, 0.00080405245)] * 4),
}


@pytest.mark.parametrize("model", DIFFUSION)
def test_axial_rope_is_that_of_diffusion_models(model: str) -> None:
    """Their code: 1 / base ** (arange(0, width, 2) / width) for each axis, and complex numbers of neighbours."""
    widths, base, printed = DIFFUSION[model]
    speeds = [1 / base ** (torch.arange(0, w, 2).double() / w) for w in widths]
    for speed, few in zip(speeds, printed, strict=True):
        assert (float(speed[1]), float(speed[-1])) == pytest.approx(few, rel=1e-6)
    pos = torch.tensor([[0, 3, 7, 1], [5, 1, 2, 4], [80, 60, 103, 9]])[:, : len(widths)]
    angles = torch.cat([torch.outer(pos[:, axis].double(), speed) for axis, speed in enumerate(speeds)], -1)
    q = torch.randn(1, 2, 3, sum(widths), dtype=torch.float64)
    pairs = torch.view_as_complex(q.unflatten(-1, (-1, 2)).contiguous())
    want = torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)
    rope = posenc.AxialRoPE(head_dim=sum(widths), base=base, widths=widths, pairing="interleaved")
    torch.testing.assert_close(rope.rotate_q(q, rope.place(pos, dtype=torch.float64)), want, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("head_dim", "n_axes"), [(6, 2), (8, 3)])
def test_axial_rope_refuses_lanes_that_the_axes_cannot_share(head_dim: int, n_axes: int) -> None:
    with refuses(ValueError, "AxialRoPE: head_dim must be a multiple of", f"head_dim={head_dim}, n_axes={n_axes}"):
        posenc.AxialRoPE(head_dim=head_dim, n_axes=n_axes)


@pytest.mark.parametrize("layout", ["blocks", "interleaved"])
def test_text_is_turned_by_mrope_as_by_rope(layout: str) -> None:
    mrope, rope, q = (
        posenc.MRoPE(head_dim=32, sections=(6, 5, 5), layout=layout),
        posenc.RoPE(head_dim=32),
        normal(1, 2, 9, 32),
    )
    turned = mrope.rotate_q(q, mrope.place(positions.mrope([9]), dtype=torch.float64))
    plain = rope.rotate_q(q, rope.place(positions.arange(9), dtype=torch.float64))
    torch.testing.assert_close(turned, plain, rtol=0, atol=1e-14)


@pytest.mark.parametrize("sections", [(16, 24, 23), (), (33, -1)])
def test_sections_that_do_not_add_up_are_refused(sections: tuple[int, ...]) -> None:
    with refuses(
        ValueError, "MRoPE: sections must be numbers of pairs that add up to rotary_dim / 2 = 32", f"{sections}"
    ):
        posenc.MRoPE(head_dim=64, sections=sections)


def test_sections_that_cannot_take_turns_are_refused() -> None:
    with refuses(ValueError, "at most (22, 21, 21) pairs", "got sections=(16, 24, 24)"):
        posenc.MRoPE(head_dim=128, sections=(16, 24, 24), layout="interleaved")


@pytest.mark.parametrize(("d_model", "n_axes"), [(2, 2), (7, 3)])
def test_sinusoids_refuse_axes_without_lanes(d_model: int, n_axes: int) -> None:
    with refuses(ValueError, "SinusoidalND: each of", "dimensions of its own", f"got d_model={d_model}"):
        posenc.SinusoidalND(d_model=d_model, n_axes=n_axes)
