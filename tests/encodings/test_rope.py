"""RoPE: the turn in place, the way back, precision far out, and what the constructor refuses."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import posenc
import strategies
from strategies import check, normal, refuses


@given(data=st.data())
@check(30)
def test_in_place_is_the_same_turn(data: st.DataObject) -> None:
    rope = strategies.draw_encoding(data, "rope")
    pos = data.draw(strategies.sites(rope, batch=False))
    q, k = (normal(2, h, len(pos), rope.head_dim, seed=h).float() for h in (4, 2))
    with torch.no_grad():
        placed = rope.place(pos)
        wanted = rope.rotate(q, k, placed)
        slots = [torch.stack((t, t)) for t in (q, k)]
        assert rope.rotate_(slots[0][0], slots[1][1], placed) is None
    assert torch.equal(slots[0], torch.stack((wanted[0], q)))
    assert torch.equal(slots[1], torch.stack((k, wanted[1])))


@given(data=st.data())
@check(30)
def test_lengths_stay_and_lanes_beyond_pass(data: st.DataObject) -> None:
    rope = strategies.draw_encoding(data, "rope")
    pos = data.draw(strategies.sites(rope, batch=False))
    q = normal(1, 1, len(pos), rope.head_dim)
    turned, _ = rope.rotate(q, q, rope.place(pos, dtype=torch.float64))
    first = rope.rotary_side == "first"
    turning = slice(0, rope.rotary_dim) if first else slice(rope.head_dim - rope.rotary_dim, None)
    rest = slice(rope.rotary_dim, None) if first else slice(0, rope.head_dim - rope.rotary_dim)
    longer = rope.attention_factor * q[..., turning].norm(dim=-1)
    torch.testing.assert_close(turned[..., turning].norm(dim=-1), longer, rtol=1e-12, atol=1e-12)
    assert torch.equal(turned[..., rest], q[..., rest])


def test_in_place_is_refused_under_grad() -> None:
    rope, q = posenc.RoPE(head_dim=4), torch.ones(1, 1, 2, 4, requires_grad=True)
    placed = rope.place(torch.arange(2))
    with refuses(ValueError, "RoPE: rotate_ overwrites q and k", "torch.no_grad()"):
        rope.rotate_(q, q, placed)
    rope.rotate_(q.detach().clone(), q.detach().clone(), placed)


def test_angles_far_out_come_from_float64() -> None:
    """At position 2^20 + 1 float32 angles are off by 0.06; typed from exact arithmetic, cos and sin are not."""
    rope = posenc.RoPE(head_dim=2)
    p = 2**20 + 1
    cos, sin = rope.place(torch.tensor([p])).parts
    import mpmath

    assert float(cos) == pytest.approx(float(mpmath.cos(p)), abs=6e-8)
    assert float(sin) == pytest.approx(float(mpmath.sin(p)), abs=6e-8)
    assert cos.dtype == torch.float32


def test_gradients_reach_learned_frequencies_through_what_was_placed() -> None:
    rope = posenc.RoPE(head_dim=2, trainable=True).double()
    q = torch.tensor([1.0, 0.0], dtype=torch.float64).view(1, 1, 1, 2)
    turned, _ = rope.rotate(q, q, rope.place(torch.tensor([3]), dtype=torch.float64))
    turned[..., 0].sum().backward()
    assert rope.inv_freq.grad is not None
    assert float(rope.inv_freq.grad) == pytest.approx(-3 * float(torch.tensor(3.0).double().sin()), rel=1e-14)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"head_dim": 65}, ["RoPE: head_dim must be even", "got head_dim=65", "rotary_dim=64"]),
        ({"head_dim": 8, "rotary_dim": 10}, ["rotary_dim must be even and between 2 and head_dim=8", "10"]),
        ({"head_dim": 8, "rotary_dim": 3}, ["got rotary_dim=3"]),
        ({"head_dim": 8, "rotary_dim": 0}, ["got rotary_dim=0"]),
        ({"head_dim": 8, "pairing": "neox"}, ["pairing must be one of ('half', 'interleaved'); got 'neox'"]),
        ({"head_dim": 8, "rotary_side": "left"}, ["rotary_side must be one of ('first', 'last'); got 'left'"]),
        ({"head_dim": 8, "base": 1.0}, ["base must be a finite number greater than 1", "got base=1.0"]),
        ({"head_dim": 8, "base": float("nan")}, ["got base=nan"]),
        ({"head_dim": 8, "inv_freq": [1.0]}, ["inv_freq must hold 4 frequencies, one per pair; got 1"]),
        ({"head_dim": 2, "inv_freq": [float("inf")]}, ["inv_freq must be finite"]),
    ],
)
def test_what_the_constructor_refuses(options: dict[str, Any], words: list[str]) -> None:
    with refuses(ValueError, *words):
        posenc.RoPE(**options)


def test_other_lanes_are_refused() -> None:
    rope, q = posenc.RoPE(head_dim=8), normal(1, 1, 2, 6)
    with refuses(ValueError, "RoPE: q and k must have head_dim=8 dimensions; got shape (1, 1, 2, 6)", "head_dim=6"):
        rope.rotate(q, q, rope.place(torch.arange(2)))


def test_own_frequencies_as_a_tensor() -> None:
    own = torch.tensor([0.5, 0.25], dtype=torch.float64)
    for trainable in (False, True):
        rope = posenc.RoPE(head_dim=4, inv_freq=own, trainable=trainable)
        assert torch.equal(rope.frequencies()[0], own)
        assert rope.options()["inv_freq"] == (0.5, 0.25)
    own.zero_()
    assert rope.frequencies().all(), "the encoding keeps numbers of its own"


def test_a_model_is_turned_as_its_configuration_says() -> None:
    """DeepSeek-V3: the last 64 of 192 lanes, interleaved, YaRN without gain, and scores times mscale(40) squared."""
    yarn = {
        "type": "yarn",
        "factor": 40,
        "original_max_position_embeddings": 4096,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    }
    config = {"model_type": "deepseek_v3", "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rope_scaling": yarn}
    rope = posenc.RoPE.from_config(config | {"max_position_embeddings": 163840, "rope_theta": 10000})
    assert (rope.head_dim, rope.rotary_dim, rope.rotary_side, rope.pairing) == (192, 64, "last", "interleaved")
    assert rope.gain() == 1.0
    assert rope.score_scale(192) == pytest.approx(192**-0.5 * 1.368888**2, rel=1e-6)
    wanted = posenc.frequencies.yarn(width=64, base=1e4, factor=40.0, original_max_len=4096)
    np.testing.assert_allclose(rope.frequencies()[0].numpy(), wanted, rtol=1e-15)


def test_a_longer_text_takes_the_long_list_and_its_cache_can_be_rephased() -> None:
    lists = {"short_factor": [1.0, 1.5], "long_factor": [2.0, 8.0], "original_max_position_embeddings": 64}
    config = {
        "model_type": "phi3",
        "head_dim": 4,
        "max_position_embeddings": 256,
        "rope_scaling": {"type": "su"} | lists,
    }
    short, long = (posenc.RoPE.from_config(config, seq_len=n) for n in (64, 65))
    torch.testing.assert_close(short.frequencies() / long.frequencies(), torch.tensor([[2.0, 16 / 3]]).double())
    k, pos = normal(1, 1, 9, 4), torch.arange(9)
    again = posenc.rephase(short.rotate_k(k, short.place(pos, dtype=torch.float64)), pos, short, long)
    torch.testing.assert_close(again, long.rotate_k(k, long.place(pos, dtype=torch.float64)))


def test_the_gain_of_a_configuration_is_the_encodings() -> None:
    """YaRN without its two weights: 0.1 ln 40 + 1."""
    yarn = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096}
    config = {"model_type": "llama", "head_dim": 64, "max_position_embeddings": 163840, "rope_theta": 10000.0}
    assert posenc.RoPE.from_config(config | {"rope_scaling": yarn}).gain() == pytest.approx(1.368888, abs=1e-6)


def test_a_model_that_turns_clockwise_is_turned_so() -> None:
    """nanochat: (a cos + b sin, b cos - a sin)."""
    config = {"model_type": "nanochat", "hidden_size": 8, "num_attention_heads": 2, "rope_theta": 10000.0}
    rope = posenc.RoPE.from_config(config)
    turned = rope.rotate_q(torch.ones(1, 1, 1, 4), rope.place(torch.tensor([1])))[0, 0, 0]
    cos, sin = (f(torch.tensor([1.0, 0.01])) for f in (torch.cos, torch.sin))
    torch.testing.assert_close(turned, torch.cat((cos + sin, cos - sin)))


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "dynamic", "factor": 2.0},
        {"rope_type": "longrope", "short_factor": [1.0, 2.0], "long_factor": [3.0, 4.0], "factor": 2.0},
    ],
)
def test_a_clockwise_model_whose_frequencies_depend_on_the_length_stays_clockwise(scaling: dict[str, Any]) -> None:
    config = {"model_type": "nanochat", "hidden_size": 8, "num_attention_heads": 2, "rope_theta": 10000.0}
    config |= {"max_position_embeddings": 64, "rope_scaling": scaling | {"original_max_position_embeddings": 32}}
    turned = posenc.RoPE.from_config(config, seq_len=64).frequencies()[0]
    first = 1 / 3 if scaling["rope_type"] == "longrope" else 1.0
    assert turned[0].item() == pytest.approx(-first)
    assert (turned < 0).all()
    with refuses(ValueError, "RoPE: seq_len must be given, because nanochat rotates clockwise"):
        posenc.RoPE.from_config(config)
