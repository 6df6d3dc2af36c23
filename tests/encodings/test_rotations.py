"""The learned, mixed and scaled rotations by themselves: groups of heads, starts, state, training."""

import copy
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor
from torch.nn import functional as F

import posenc
from defined import matrices
from posenc import positions
from posenc.encodings.liere import _AT_ONCE
from rotation_examples import HEADS, LEARNED, NEW, L, made, places
from strategies import normal, randomise

DRAWN = {"mixed_rope", "fope", "liere"}  # which start at random
PER_HEAD = ["mixed_rope", "retnet", "fope", "pope", "grape_m"]


def turned(encoding: Any, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    return encoding.rotate(q, k, encoding.place(places(encoding, q.shape[-2]), dtype=torch.float64))


# groups


@pytest.mark.parametrize("name", [n for n in PER_HEAD if n != "retnet"])
def test_queries_take_what_belongs_to_the_key_head_of_their_group(name: str) -> None:
    """Heads 0 and 1 of the queries look at key head 0, heads 2 and 3 at head 1, as attention groups them."""
    both, q, k = made(name), normal(2, 4, L, 8), normal(2, 2, L, 8, seed=1)
    got_q, got_k = turned(both, q, k)
    for head in (0, 1):
        alone = posenc.create(name, **NEW[name] | {"n_kv_heads": 1}).double()
        with torch.no_grad():
            for parameter, whole in zip(alone.parameters(), both.parameters(), strict=True):
                parameter.copy_(whole[head : head + 1])
        group = slice(2 * head, 2 * head + 2)
        wanted_q, wanted_k = turned(alone, q[:, group], k[:, head : head + 1])
        torch.testing.assert_close(got_q[:, group], wanted_q, rtol=0, atol=1e-13)
        torch.testing.assert_close(got_k[:, head : head + 1], wanted_k, rtol=0, atol=1e-13)
        if name != "pope":  # whose queries are the same in all heads
            assert not torch.allclose(got_q[:, group], turned(alone, q[:, [2, 0]], k[:, :1])[0], atol=0.1)
    ahead = turned(both, q, k.flip(1))[1].flip(1)
    assert not torch.allclose(ahead, got_k, atol=0.1)


def test_queries_of_retnet_shrink_at_the_pace_of_their_key_head() -> None:
    retnet, q = posenc.RetNet(**HEADS), normal(1, 4, 2, 8)
    sizes = retnet.rotate_q(q, retnet.place(torch.tensor([0, 3]), dtype=torch.float64)).norm(dim=-1) / q.norm(dim=-1)
    torch.testing.assert_close(sizes[0, :, 0], torch.ones(4, dtype=torch.float64))
    paces = torch.tensor([31 / 32, 31 / 32, 63 / 64, 63 / 64], dtype=torch.float64)
    torch.testing.assert_close(sizes[0, :, 1], paces**3)


# starts


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("options", [{}, {"rotary_dim": 4, "rotary_side": "last", "base": 500.0}])
def test_stretched_rope_starts_as_rope_bit_for_bit(options: dict[str, Any], dtype: torch.dtype) -> None:
    stretched, rope = posenc.StretchedRoPE(head_dim=8, **options), posenc.RoPE(head_dim=8, **options)
    pos = torch.cat((positions.arange(3000), torch.tensor([10**7, -5])))
    for mine, plain in zip(*(e.place(pos, dtype=dtype).parts for e in (stretched, rope)), strict=True):
        assert torch.equal(mine, plain)


def test_grape_m_starts_as_rope_in_pairs() -> None:
    """Planes that are left out are the slowest. Logarithms in float32 keep seven digits of a frequency."""
    q, k, pos = normal(1, 4, 50, 8), normal(1, 2, 50, 8), positions.arange(50, start=100)
    rope = posenc.RoPE(head_dim=8, pairing="interleaved")
    plain = rope.rotate(q, k, rope.place(pos, dtype=torch.float64))
    for n_planes, turning in ((None, 8), (2, 4)):
        grape = posenc.GRAPEM(**HEADS, n_planes=n_planes)
        for mine, x, wanted in zip(
            grape.rotate(q, k, grape.place(pos, dtype=torch.float64)), (q, k), plain, strict=True
        ):
            torch.testing.assert_close(mine[..., :turning], wanted[..., :turning], rtol=0, atol=2e-4)
            torch.testing.assert_close(mine[..., turning:], x[..., turning:], rtol=0, atol=1e-14)


def test_fope_starts_near_rope_and_is_it_without_noise() -> None:
    """Of 32 pairs those turn that make a turn within 200 positions: base^(-k / 32) above 2 pi / 200."""
    rope, pos = posenc.RoPE(head_dim=64), positions.arange(300)
    exact = posenc.FoPE(n_kv_heads=1, head_dim=64, original_max_len=200, init_gain=0.0)
    assert exact.n_turning == 13
    for mine, plain, still in zip(exact.place(pos).parts, rope.place(pos).parts, (1.0, 0.0), strict=True):
        torch.testing.assert_close(mine[:, 0, :13], plain[:, :13], rtol=0, atol=1e-7)
        assert (mine[:, 0, 13:] == still).all()
    torch.manual_seed(0)
    noisy = posenc.FoPE(n_kv_heads=500, head_dim=64, original_max_len=200)
    for mix in (noisy.cos_mix, noisy.sin_mix):
        noise = mix.detach() - torch.eye(13)
        assert float(noise.std()) == pytest.approx(0.3 / 13**0.5, rel=0.02)
        assert abs(float(noise.mean())) < 0.002


def test_a_pair_of_fope_turns_as_those_that_are_mixed_into_it() -> None:
    """Pair 0 of head 1 gets half the cosine of pair 2 and a quarter of its sine, and pair 2 nothing but its own."""
    fope, pos = posenc.FoPE(n_kv_heads=2, head_dim=8, original_max_len=1000), positions.arange(9, start=5)
    with torch.no_grad():
        for mix, part in ((fope.cos_mix, 0.5), (fope.sin_mix, 0.25)):
            mix.copy_(torch.eye(3).expand(2, 3, 3))
            mix[1, :, 0] = torch.tensor([0.0, 0.0, part])
    angle = pos[:, None] * torch.tensor([1.0, 0.1, 0.01], dtype=torch.float64)
    cos, sin = fope.place(pos, dtype=torch.float64).parts
    for table, f, part in ((cos, torch.cos, 0.5), (sin, torch.sin, 0.25)):
        torch.testing.assert_close(table[:, 0, :3], f(angle), rtol=0, atol=1e-14)
        torch.testing.assert_close(table[:, 1, 0], part * f(angle[:, 2]), rtol=0, atol=1e-14)
        torch.testing.assert_close(table[:, 1, 1:3], f(angle[:, 1:]), rtol=0, atol=1e-14)


def test_mixed_rope_starts_along_one_direction_and_across_it() -> None:
    mixed = posenc.MixedRoPE(n_kv_heads=500, head_dim=16, base=100.0)
    row, column = mixed.inv_freq.detach().unbind(1)
    sizes = torch.hypot(row, column)
    torch.testing.assert_close(sizes, 100.0 ** (-torch.arange(4) / 4).repeat(2).expand(500, 8), rtol=1e-5, atol=0)
    torch.testing.assert_close(
        (row[:, :4] * row[:, 4:] + column[:, :4] * column[:, 4:]) / sizes[:, :4] ** 2, torch.zeros(500, 4)
    )
    directions = torch.atan2(row[:, :4], column[:, :4])
    torch.testing.assert_close(directions, directions[:, :1].expand(500, 4))
    assert directions[:, 0].histc(4, -torch.pi, torch.pi).min() > 90  # any direction, of 125 a quarter


def test_the_other_starts_are_those_of_the_docstrings() -> None:
    torch.manual_seed(0)
    with torch.no_grad():
        assert not posenc.PoPE(n_kv_heads=2, head_dim=8).phase.any()
        phase = posenc.PoPE(n_kv_heads=50, head_dim=100, phase_init="uniform").phase
        assert -2 * torch.pi <= float(phase.min()) < -6.2
        assert -0.1 < float(phase.max()) <= 0
        assert float(posenc.LieRE(head_dim=800, init_std=0.5).skew.std()) == pytest.approx(0.5, rel=0.03)


@pytest.mark.parametrize("name", NEW)
def test_constructors_take_random_numbers_only_to_start_and_sow_none(name: str) -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    first = posenc.create(name, **NEW[name])
    assert torch.equal(torch.get_rng_state(), before) is (name not in DRAWN)
    second = posenc.create(name, **NEW[name])
    second.reset_parameters()
    assert torch.initial_seed() == 7
    torch.manual_seed(7)
    again = posenc.create(name, **NEW[name])
    for one, other, same in zip(*(e.parameters() for e in (first, second, again)), strict=True):
        assert torch.equal(one, same)
        assert torch.equal(one, other) is (name not in DRAWN)


@pytest.mark.parametrize("name", LEARNED)
def test_a_reset_returns_to_the_start(name: str) -> None:
    torch.manual_seed(0)
    fresh = posenc.create(name, **NEW[name])
    changed = copy.deepcopy(fresh)
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter.add_(1.0)
    torch.manual_seed(0)
    changed.reset_parameters()
    for one, other in zip(fresh.parameters(), changed.parameters(), strict=True):
        assert torch.equal(one, other)


# state


@pytest.mark.parametrize("name", LEARNED)
def test_what_is_learned_is_saved_and_loaded(name: str) -> None:
    """Through safetensors, which know no pickle; the copy computes the same and shares nothing."""
    encoding = made(name)
    saved = safetensors.torch.save(dict(encoding.state_dict()))
    fresh = made(name, seed=None)
    fresh.load_state_dict(safetensors.torch.load(saved))
    twin = copy.deepcopy(encoding)
    q, k = normal(1, 4, L, 8), normal(1, 2, L, 8)
    wanted = turned(encoding, q, k)
    for copied in (fresh, twin):
        for mine, theirs in zip(turned(copied, q, k), wanted, strict=True):
            assert torch.equal(mine, theirs)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(0.5)
    assert not torch.allclose(turned(twin, q, k)[1], wanted[1])
    assert torch.equal(turned(encoding, q, k)[1], wanted[1])


@pytest.mark.parametrize("name", NEW)
def test_a_cast_to_half_precision_leaves_angles_alone(name: str) -> None:
    encoding = randomise(posenc.create(name, **NEW[name]).resolve(L), 1).float()
    wanted = encoding.place(places(encoding)).parts
    cast = encoding.bfloat16()
    assert cast.keeps_float32 is (name in LEARNED)
    assert {p.dtype for p in cast.parameters()} <= {torch.float32}
    for mine, before in zip(cast.place(places(encoding)).parts, wanted, strict=True):
        assert torch.equal(mine, before)


@pytest.mark.parametrize("name", LEARNED)
def test_training_moves_what_is_learned(name: str) -> None:
    """Towards what an encoding with other numbers makes of the same tokens."""
    student, teacher = made(name, seed=None), made(name, seed=5)
    with torch.no_grad():  # near enough to be found
        for mine, theirs in zip(student.parameters(), teacher.parameters(), strict=True):
            theirs.copy_(mine - 0.1 * theirs.abs())
    q, k = normal(2, 4, L, 8), normal(2, 2, L, 8, seed=1)
    before = [p.detach().clone() for p in student.parameters()]
    optimizer = torch.optim.Adam(student.parameters(), lr=0.01)
    losses = []
    for _ in range(60):
        loss = sum(F.mse_loss(a, b) for a, b in zip(turned(student, q, k), turned(teacher, q, k), strict=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.3 * losses[0]
    assert all((p - b).abs().max() > 0.01 for p, b in zip(student.parameters(), before, strict=True))


def test_gradients_of_lieres_generators_are_right() -> None:
    """Through the exponential, at positions apart, near and at zero."""
    liere = made("liere")
    q, pos = normal(1, 1, 3, 8), torch.tensor([[0.0, 0.0], [1e-6, 1.0], [2.0, -3.0]], dtype=torch.float64)

    def run(skew: Tensor) -> Tensor:
        return torch.func.functional_call(Rotation(liere), {"inner.skew": skew}, (q, pos))

    torch.autograd.gradcheck(run, (normal(*liere.skew.shape, seed=3).requires_grad_(),))


class Rotation(torch.nn.Module):
    """The turn of queries as a forward pass."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, q: Tensor, pos: Tensor) -> Tensor:
        return self.inner.rotate_q(q, self.inner.place(pos, dtype=torch.float64))


def test_liere_turns_long_texts_as_it_is_defined() -> None:
    """Exponentials of many positions are taken in parts, each of which has its own positions and its own sign."""
    encoding = posenc.LieRE(head_dim=16, n_axes=1, block=8, init_std=0.05).double()
    pos = torch.arange(600)
    assert pos.numel() * 16 * 8 > 2 * _AT_ONCE  # three parts
    x = normal(1, 1, 600, 16)
    turned_q, turned_k = encoding.rotate(x, 2 * x, encoding.place(pos, dtype=torch.float64))
    for side, got, factor in ((0, turned_q, 1), (1, turned_k, 2)):
        turns = matrices("liere", encoding, pos.numpy(), side, 16)
        wanted = factor * np.einsum("sij,sj->si", turns, x[0, 0].numpy())
        np.testing.assert_allclose(got[0, 0].detach().numpy(), wanted, rtol=0, atol=1e-11)
