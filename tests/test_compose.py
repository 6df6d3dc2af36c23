"""Compose, OnAxes and PerLayer against what their members do one by one."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import posenc
from posenc import Compose, Encoding, OnAxes, PerLayer, positions
from posenc.placed import tensors
from strategies import check, normal, randomise, refuses

ROPE, ALIBI, T5 = (
    posenc.RoPE(head_dim=8),
    posenc.ALiBi(n_heads=4),
    randomise(posenc.T5(n_heads=4, score_scale=1.0), 3),
)
SINES, XL = posenc.Sinusoidal(d_model=32), randomise(posenc.TransformerXL(d_model=8, n_heads=4, head_dim=8), 4)
POS = torch.tensor([[4, 0, 9, 2, 7], [1, 2, 3, 4, 5]])


class Logn(Encoding):
    """Depends on the length, as log-n scaling does; unresolved it has no scale."""

    def __init__(self, *, seq_len: int | None = None) -> None:
        super().__init__()
        self.seq_len = seq_len

    def score_scale(self, head_dim: int) -> float:
        return float(self.seq_len or 1)

    def resolve(self, seq_len: int) -> "Logn":
        return Logn(seq_len=seq_len)


class CountsPlaces(posenc.RoPE):
    """Counts how often it is placed."""

    count = 0

    def place(self, *arguments: Any, **options: Any) -> posenc.Placed:
        self.count += 1
        return super().place(*arguments, **options)


def heads(n: int = 5, lanes: int = 8) -> tuple[Tensor, Tensor]:
    return normal(2, 4, n, lanes, seed=1), normal(2, 2, n, lanes, seed=2)


def test_doors_run_in_order() -> None:
    both, second = Compose(ROPE, ALIBI, SINES), posenc.Sinusoidal(d_model=32, base=100.0)
    placed = both.place(POS, dtype=torch.float64)
    single = {e: e.place(POS, dtype=torch.float64) for e in (ROPE, ALIBI, SINES, second)}
    (q, k), x = heads(), normal(2, 5, 32)
    for got, wanted in zip(both.rotate(q, k, placed), ROPE.rotate(q, k, single[ROPE]), strict=True):
        assert torch.equal(got, wanted)
    assert torch.equal(both.bias(q, k, placed, placed), ALIBI.bias(q, k, single[ALIBI], single[ALIBI]))
    twice = Compose(SINES, second)
    wanted = x + single[SINES].parts[0] + single[second].parts[0]
    torch.testing.assert_close(twice.embed(x, twice.place(POS, dtype=torch.float64)), wanted, rtol=0, atol=0)


def test_two_rotations_turn_by_the_sum_of_angles_and_back() -> None:
    double = posenc.RoPE(head_dim=8, inv_freq=[2.0, 0.2, 0.02, 0.002])
    both = Compose(ROPE, ROPE)
    (q, k), placed = heads(), both.place(POS, dtype=torch.float64)
    turned = both.rotate(q, k, placed)
    for got, wanted in zip(turned, double.rotate(q, k, double.place(POS, dtype=torch.float64)), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-13)
    for got, wanted in zip(both.rotate(*turned, placed, inverse=True), (q, k), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-13)


def test_turns_of_different_pairs_do_not_commute() -> None:
    other = posenc.RoPE(head_dim=8, pairing="interleaved")
    (q, k), both = heads(), Compose(ROPE, other)
    placed = both.place(POS, dtype=torch.float64)
    first, second = (e.place(POS, dtype=torch.float64) for e in (ROPE, other))
    turned = both.rotate(q, k, placed)
    assert torch.equal(turned[0], other.rotate_q(ROPE.rotate_q(q, first), second))
    for got, wanted in zip(both.rotate(*turned, placed, inverse=True), (q, k), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-13)


def test_biases_are_added_and_one_scale_is_kept() -> None:
    both = Compose(ALIBI, T5)
    (q, k), placed = heads(), both.place(POS, dtype=torch.float64)
    distance = POS[:, :, None] - POS[:, None]
    slopes = torch.tensor([1 / 4, 1 / 16, 1 / 64, 1 / 256], dtype=torch.float64)
    penalty = -slopes[:, None, None] * distance.abs()[:, None]
    learned = T5.weight[T5.bucket(distance)].movedim(-1, 1)
    torch.testing.assert_close(both.bias(q, k, placed, placed), penalty + learned, rtol=0, atol=1e-14)
    assert both.score_scale(64) == 1.0
    assert both.score_scale(16) == 1.0


@pytest.mark.parametrize("head_dim", [4, 16, 64, 100])
def test_a_scale_that_is_the_default_for_one_width_is_kept_for_all(head_dim: int) -> None:
    eighth = posenc.T5(n_heads=4, score_scale=0.125)
    assert Compose(eighth, ALIBI).score_scale(head_dim) == 0.125
    with refuses(ValueError, "at most one member may change the score scale", "'T5', 'T5'"):
        Compose(eighth, T5)


def test_compose_of_nothing_is_nope() -> None:
    nothing = Compose(Encoding(), posenc.NoPE(), Compose())
    placed, (q, k), x = nothing.place(POS), heads(), normal(2, 5, 32)
    assert nothing.bias(q, k, placed, placed) is None
    assert nothing.embed(x, placed) is x
    assert nothing.score_scale(64) == 0.125
    assert all(got is wanted for got, wanted in zip(nothing.rotate(q, k, placed), (q, k), strict=True))


def test_members_agree_on_axes() -> None:
    two = OnAxes(posenc.ALiBi(n_heads=4), (0,), n_axes=2)
    with refuses(ValueError, "same number of axes", "'RoPE': 1", "OnAxes(encoding, axes"):
        Compose(ROPE, two)
    with refuses(ValueError, "same number of axes"):
        Compose(OnAxes(ALIBI, (0,)), two)
    assert Compose(OnAxes(ROPE, (1,), n_axes=2), two).n_axes == 2


def test_perlayer_does_not_go_inside() -> None:
    with refuses(ValueError, "put PerLayer around Compose", "PerLayer"):
        Compose(ROPE, PerLayer([ALIBI]))


def test_compose_resolves_and_resets_its_members() -> None:
    resolved = Compose(ROPE, Logn()).resolve(12)
    assert resolved.score_scale(64) == 12.0
    learned = Compose(posenc.Learned(d_model=8, max_len=4, init_std=3.0))
    before = next(learned.parameters()).detach().clone()
    learned.reset_parameters()
    assert not torch.equal(next(learned.parameters()), before)
    assert list(learned.state_dict()) == ["encodings.0.weight"]


def test_on_axes_chooses_columns() -> None:
    grid = positions.grid(3, 4)
    rows, columns = (OnAxes(ROPE, (axis,), n_axes=2) for axis in (0, 1))
    q, k = heads(12)
    for encoding, column in ((rows, grid[:, 0]), (columns, grid[:, 1])):
        got = encoding.rotate(q, k, encoding.place(grid, dtype=torch.float64))
        wanted = ROPE.rotate(q, k, ROPE.place(column, dtype=torch.float64))
        assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))
    nested = OnAxes(OnAxes(ALIBI, (1,), n_axes=2), (2, 0), n_axes=3)
    pos = torch.tensor([[5, 0, 1], [2, 9, 9]])
    placed = nested.place(pos, dtype=torch.float64)
    assert float(nested.bias(*heads(2), placed, placed)[0, 0, 0, 1]) == -0.75  # axis 1 of (2, 0) is 0: 5 and 2


def test_on_axes_passes_everything_on() -> None:
    on = OnAxes(T5, (0,))
    assert on.score_scale(64) == 1.0
    assert on.n_axes == 1
    assert OnAxes(XL, (1,)).reads_qk
    assert OnAxes(Logn(), (1,)).resolve(7).score_scale(64) == 7.0
    x = normal(2, 5, 32)
    grid = torch.stack((POS, POS + 3), -1)
    embedded = OnAxes(SINES, (1,)).embed(x, OnAxes(SINES, (1,)).place(grid, dtype=torch.float64))
    torch.testing.assert_close(embedded, x + SINES.vectors(POS + 3), rtol=0, atol=0)


@pytest.mark.parametrize(("axes", "n_axes"), [((2,), 2), ((-1,), 2), ((0, 1), 2), ((), None)])
def test_axes_that_do_not_fit(axes: tuple[int, ...], n_axes: int | None) -> None:
    with refuses(ValueError, "OnAxes: RoPE needs 1 of n_axes=", f"got axes={axes}"):
        OnAxes(ROPE, axes, n_axes=n_axes)


def test_each_layer_has_its_own() -> None:
    counting = CountsPlaces(head_dim=8)
    layers = PerLayer([counting, ALIBI, counting, counting])
    assert len(layers) == 4
    placed = layers.place(POS)
    assert counting.count == 1
    assert [layers.layer(i, placed)[0] for i in range(4)] == [counting, ALIBI, counting, counting]
    assert len(layers.distinct) == 2
    assert all(torch.equal(layers.layer(i, placed)[1].pos, POS) for i in range(4))
    for index in (-1, 4):
        with refuses(ValueError, "has encodings for 4 layers", f"got layer {index}"):
            layers.layer(index, placed)


def test_layers_must_be_chosen_before_use() -> None:
    layers = PerLayer([ROPE, ALIBI])
    (q, k), placed = heads(), layers.place(POS)
    for call in (
        lambda: layers.rotate_q(q, placed),
        lambda: layers.rotate_k(k, placed),
        lambda: layers.bias(q, k, placed, placed),
        lambda: layers.rotate(q, k, placed),
        lambda: layers.rotate(q, k, placed, inverse=True),
        lambda: posenc.attend(q, q, q, layers, POS),
    ):
        with refuses(ValueError, "PerLayer: each layer has its own encoding", "per_layer.layer(index, placed)"):
            call()


def test_only_the_first_layer_embeds() -> None:
    first = PerLayer([Compose(SINES, ROPE), ROPE, ALIBI])
    x = normal(2, 5, 32)
    torch.testing.assert_close(
        first.embed(x, first.place(POS, dtype=torch.float64)), x + SINES.vectors(POS), rtol=0, atol=0
    )
    for late in (SINES, Compose(ROPE, SINES), OnAxes(SINES, (0,))):
        with refuses(ValueError, "only its encoding may be additive", late.name):
            PerLayer([ROPE, late])
    with refuses(ValueError, "needs an encoding for every layer; got none"):
        PerLayer([])
    with refuses(ValueError, "same number of axes; got [1, 2]"):
        PerLayer([ROPE, OnAxes(ROPE, (1,))])


def test_layers_resolve_each_distinct_once() -> None:
    length = Logn()
    resolved = PerLayer([length, ROPE, length]).resolve(9)
    assert resolved.index == (0, 1, 0)
    assert resolved.distinct[0].score_scale(64) == 9.0


@given(st.integers(1, 6), st.integers(1, 6), st.booleans())
@check(20)
def test_composed_caches(past: int, new: int, batched: bool) -> None:
    both = Compose(ROPE, OnAxes(XL, (0,)), Compose(ALIBI))
    pos = torch.arange(past + new) * 3
    whole = pos.expand(2, -1) if batched else pos
    together = both.place(pos[:past]).cat(both.place(whole[..., past:]))
    fresh = both.place(whole)
    q, kept = heads(new)[0], heads(past + new)[1]
    assert torch.equal(together.pos, whole)
    bias = both.bias(q, kept, together.last(new), together)
    torch.testing.assert_close(bias, both.bias(q, kept, fresh.last(new), fresh))
    assert torch.equal(both.rotate_k(kept, together), both.rotate_k(kept, fresh))


@pytest.mark.parametrize(
    "reader", [posenc.Shaw(head_dim=4), posenc.TransformerXL(d_model=4, n_heads=2, head_dim=4)], ids=lambda e: e.name
)
def test_a_term_of_the_content_stands_beside_no_other_scale(reader: posenc.Encoding) -> None:
    """It divides by the root of head_dim as q·k does, and would be half of what it means beside T5's 1.0."""
    with refuses(ValueError, "no other member may change the score scale", reader.name, "T5"):
        posenc.Compose(reader, posenc.T5(n_heads=2, score_scale=1.0))
    posenc.Compose(reader, posenc.T5(n_heads=2))


@pytest.mark.parametrize("wrap", [lambda e: e, lambda e: posenc.OnAxes(e, (0,), n_axes=2)], ids=["compose", "axes"])
def test_positions_get_the_batch_of_tokens_that_a_member_reads(wrap) -> None:
    """So that all that is placed has one shape, and a cache can append to it."""
    encoding = wrap(posenc.Compose(posenc.Sinusoidal(d_model=16), posenc.FoX(d_model=16, n_heads=4)))
    pos = torch.arange(5) if encoding.n_axes == 1 else positions.grid(1, 5).flip(-1)
    x = normal(2, 5, 16).float()
    whole = encoding.place(pos, x)
    past = encoding.place(pos[:3], x[:, :3])
    grown = past.cat(encoding.place(pos[3:], x[:, 3:], past=past))
    assert whole.pos.shape[:2] == (2, 5)
    for a, b in zip(tensors(grown), tensors(whole), strict=True):
        torch.testing.assert_close(a, b)
