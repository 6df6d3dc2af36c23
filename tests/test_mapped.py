"""Positions that the encoding sees otherwise than they were passed in."""

import copy

import pytest
import torch

import posenc
from posenc import laws, positions
from strategies import normal, refuses


def halved(pos: torch.Tensor) -> torch.Tensor:
    return pos / 2


def last_axis(pos: torch.Tensor) -> torch.Tensor:
    return pos[..., -1]


HALVED = [posenc.Mapped(posenc.ALiBi(n_heads=4), halved)]
COMPILES = [name for name, law in laws.LAWS.items() if law.compiles]


@pytest.mark.slow
@laws.parametrize(HALVED, COMPILES)
def test_law_of_compilers(encoding: posenc.Encoding, law: str, dtype: torch.dtype) -> None:
    assert laws.run(encoding, [law], dtype) == []


@laws.parametrize(HALVED, [name for name in laws.LAWS if name not in COMPILES])
def test_law(encoding: posenc.Encoding, law: str, dtype: torch.dtype) -> None:
    assert laws.run(encoding, [law], dtype) == []


def test_interpolated_rope_is_rope_with_slower_frequencies() -> None:
    rope, pos = posenc.RoPE(head_dim=8), positions.arange(9)
    slow = posenc.RoPE(head_dim=8, inv_freq=lambda k: 10000.0 ** (-k / 4) / 2)
    mapped, q = posenc.Mapped(rope, halved), normal(1, 2, 9, 8)
    torch.testing.assert_close(
        mapped.rotate_q(q, mapped.place(pos, dtype=torch.float64)),
        slow.rotate_q(q, slow.place(pos, dtype=torch.float64)),
        rtol=0,
        atol=1e-14,
    )


def test_a_map_may_change_the_number_of_axes() -> None:
    columns = posenc.Mapped(posenc.ALiBi(n_heads=2), last_axis, n_axes=2)
    chosen = posenc.OnAxes(posenc.ALiBi(n_heads=2), (1,), n_axes=2)
    pos, q = positions.grid(2, 3), normal(1, 2, 6, 4)
    biases = [e.bias(q, q, e.place(pos), e.place(pos)) for e in (columns, chosen)]
    assert torch.equal(*biases)
    with refuses(ValueError, "Mapped: works on 2 position axes"):
        columns.place(positions.arange(3))


def test_a_map_sees_positions_that_are_exact_and_the_encoding_checks_what_it_returns() -> None:
    seen: list[torch.dtype] = []
    mapped = posenc.Mapped(posenc.Learned(d_model=2, max_len=4), lambda pos: seen.append(pos.dtype) or pos + 2)
    mapped.place(torch.tensor([0, 1], dtype=torch.uint8))
    assert seen == [torch.int64]
    with refuses(ValueError, "Learned: positions must lie in 0..3", "got position 4"):
        mapped.place(torch.tensor([2]))
    with refuses(TypeError, "Learned: needs integer positions"):
        posenc.Mapped(posenc.Learned(d_model=2, max_len=4), halved).place(torch.tensor([2]))


def test_what_depends_on_the_length_is_resolved_inside_and_anything_else_is_left() -> None:
    open_ = posenc.Mapped(posenc.TAPE(d_model=2), halved)
    resolved = open_.resolve(8)
    assert resolved.encoding.length == 8
    assert resolved.f is halved
    assert resolved.resolve(9) is resolved
    fixed = posenc.Compose(posenc.Mapped(posenc.RoPE(head_dim=4), halved), posenc.ALiBi(n_heads=2))
    assert fixed.resolve(8) is fixed
    layers = posenc.PerLayer([open_, posenc.NoPE()])
    assert layers.resolve(8).distinct[0].encoding.length == 8
    assert layers.resolve(8).distinct[1] is layers.distinct[1]


def test_layers_are_put_around_and_not_inside() -> None:
    with refuses(ValueError, "Mapped: put PerLayer around Mapped"):
        posenc.Mapped(posenc.PerLayer([posenc.NoPE()]), halved)


def test_an_embedding_behind_the_first_layer_is_found_through_the_map() -> None:
    with refuses(ValueError, "only its encoding may be additive"):
        posenc.PerLayer([posenc.NoPE(), posenc.Mapped(posenc.Integer(d_model=2), halved)])


def test_copies_share_nothing() -> None:
    mapped = posenc.Mapped(posenc.Learned(d_model=2, max_len=4), torch.abs)
    twin = copy.deepcopy(mapped)
    with torch.no_grad():
        twin.encoding.weight.zero_()
    assert mapped.encoding.weight.any()


@pytest.mark.parametrize("shift", [0, 7])
def test_a_shifted_sequence_moves_as_one(shift: int) -> None:
    pos = positions.arange(5).expand(400, 5)
    moved = positions.shifted(pos, shift, generator=torch.Generator().manual_seed(0))
    steps = moved - pos
    assert (steps == steps[:, :1]).all()
    assert steps.unique().tolist() == list(range(shift + 1))


def test_shifts_refuse_a_negative_reach_and_keep_the_kind() -> None:
    with refuses(ValueError, "positions.shifted: max_shift must not be negative; got -1"):
        positions.shifted(positions.arange(3), -1)
    assert positions.shifted(torch.zeros(3, dtype=torch.float64), 3).dtype == torch.float64


def test_an_image_is_shifted_as_a_whole_along_each_axis() -> None:
    grid = positions.grid(3, 4).expand(50, 12, 2)
    steps = positions.shifted(grid, 9, n_axes=2, generator=torch.Generator().manual_seed(0)) - grid
    assert (steps == steps[:, :1]).all()
    assert not torch.equal(steps[..., 0], steps[..., 1])
    assert positions.shifted(grid[0], 9, n_axes=2).shape == (12, 2)


def test_a_mask_that_is_added_to_scores_is_no_mask_of_tokens() -> None:
    for wrong in (torch.tensor([[0.0, -1e9]]), torch.tensor([[1, 2]])):
        with refuses(ValueError, "positions.padded: attention_mask must be 0 or False", "pass mask == 0"):
            positions.padded(wrong)


def test_a_map_to_another_number_of_positions_is_refused() -> None:
    with refuses(ValueError, "Mapped: the map must return a position for each position", "got 1 for 3"):
        posenc.Mapped(posenc.ALiBi(n_heads=2), lambda pos: pos[:1]).place(positions.arange(3))


def test_resolving_keeps_the_mode_and_shares_what_is_learned() -> None:
    class Stretched(posenc.TAPE):
        def __init__(self) -> None:
            super().__init__(d_model=2)
            self.weight = torch.nn.Parameter(torch.ones(()))

    own = Stretched().eval()
    assert own.resolve(4).weight is own.weight
    for whole in (own, posenc.Mapped(own, halved), posenc.Compose(own, posenc.ALiBi(n_heads=2))):
        assert whole.eval().resolve(4).training is False
        assert whole.train().resolve(4).training is True
    with refuses(TypeError, "Stretched: length must be a whole number; got length=4.5"):
        own.resolve(4.5)


def test_random_positions_rise_without_repetition_and_every_one_comes_up() -> None:
    drawn = positions.randomised(4, 10, batch=3000, generator=torch.Generator().manual_seed(0))
    assert drawn.shape == (3000, 4)
    assert (drawn.diff(dim=1) > 0).all()
    counts = drawn.flatten().bincount(minlength=10)
    assert counts.shape == (10,)
    assert ((counts - 1200).abs() < 150).all()  # each with probability 4 / 10; five standard deviations
    assert positions.randomised(3, 9).shape == (3,)
    assert positions.randomised(0, 0).shape == (0,)
    with refuses(ValueError, "got n=4, max_len=3", "Pass a max_len of 4 or more"):
        positions.randomised(4, 3)


def test_padding_has_position_minus_one_wherever_it_stands() -> None:
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 0], [1, 0, 1, 1], [0, 0, 0, 0]])
    wanted = [[-1, -1, 0, 1], [0, 1, 2, -1], [0, -1, 1, 2], [-1, -1, -1, -1]]
    assert positions.padded(mask).tolist() == wanted
    assert positions.padded(mask.bool()).tolist() == wanted
