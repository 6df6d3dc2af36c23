"""Cached keys under other frequencies: as if they had been turned by them from the start."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import posenc
import strategies
from posenc import frequencies, positions, rephase
from strategies import check, normal, refuses

YARN = posenc.RoPE(
    head_dim=16,
    inv_freq=frequencies.yarn(width=16, base=1e4, factor=8.0, original_max_len=4096),
    attention_factor=frequencies.mscale(8.0),
)


@given(data=st.data(), name=st.sampled_from(["rope", "axial_rope"]))
@check(40)
def test_rephased_keys_are_those_of_the_new_frequencies(data: st.DataObject, name: str) -> None:
    old = strategies.draw_encoding(data, name)
    options = old.options() | {"base": 300.0, "inv_freq": None, "trainable": False}
    new = type(old)(**options | ({"attention_factor": 0.8} if name == "rope" else {}))
    pos = data.draw(strategies.sites(old, low=-10_000, high=10_000))
    batched = pos.ndim == 2 + (old.n_axes > 1)
    k = normal(pos.shape[0] if batched else 2, 3, pos.shape[1 if batched else 0], old.head_dim)
    turned, wanted = (e.rotate_k(k, e.place(pos, dtype=torch.float64)) for e in (old, new))
    torch.testing.assert_close(rephase(turned, pos, old, new), wanted, rtol=0, atol=1e-9)


@given(
    data=st.data(),
    name=st.sampled_from(["dynamic_ntk", "longrope", "stretched_rope"]),
    lengths=st.tuples(st.integers(1, 100), st.integers(101, 10_000)).flatmap(st.permutations),
)
@check(60)
def test_keys_cached_for_one_length_are_those_of_another(
    data: st.DataObject, name: str, lengths: tuple[int, int]
) -> None:
    """From short to long, where a text outgrows its training, and back."""
    drawn = strategies.draw_encoding(data, name)
    if name == "stretched_rope":
        old, new = drawn, strategies.randomise(type(drawn)(**drawn.options()), seed=1)
    else:
        open_ = type(drawn)(**drawn.options() | {"length": None, "original_max_len": 100})
        old, new = map(open_.resolve, lengths)
    pos = data.draw(strategies.sites(old, low=-10_000, high=10_000))
    k = normal(pos.shape[0] if pos.ndim == 2 else 2, 3, pos.shape[-1], old.head_dim)
    turned, wanted = (e.rotate_k(k, e.place(pos, dtype=torch.float64)) for e in (old, new))
    torch.testing.assert_close(rephase(turned, pos, old, new), wanted, rtol=0, atol=1e-8)


PLAIN = posenc.RoPE(head_dim=16)
DYNAMIC = posenc.DynamicNTK(head_dim=16, factor=4.0, original_max_len=4096)
LISTS = {"short_factors": [1.0 + k / 8 for k in range(8)], "long_factors": [1.5**k for k in range(8)]}
LONG = posenc.LongRoPE(
    head_dim=16, rotary_dim=16, **LISTS, original_max_len=4096, attention_factor=1.1, long_attention_factor=1.4
)
PAIRS = {
    "a scaling": (PLAIN, YARN),
    "dynamic NTK": (DYNAMIC.resolve(4096), DYNAMIC.resolve(131_072)),
    "LongRoPE": (LONG.resolve(4096), LONG.resolve(4097)),
}


@pytest.mark.parametrize(("dtype", "once"), [(torch.float32, 3e-7), (torch.bfloat16, 4e-3), (torch.float16, 5e-4)])
@pytest.mark.parametrize("switches", [1, 100])
@pytest.mark.parametrize("pair", PAIRS)
def test_errors_of_many_switches_grow_as_their_root(pair: str, dtype: torch.dtype, once: float, switches: int) -> None:
    """Each switch rounds once; a hundred of them are a random walk of a hundred such steps, not a drift."""
    first, second = PAIRS[pair]
    pos = positions.arange(64, start=100_000)
    there, back = (first, second), (second, first)
    k = normal(2, 4, 64, 16)
    turned = first.rotate_k(k, first.place(pos, dtype=torch.float64)).to(dtype)
    for i in range(switches):
        turned = rephase(turned, pos, *(there if i % 2 == 0 else back))
    last = second if switches % 2 else first
    wanted = last.rotate_k(k, last.place(pos, dtype=torch.float64))
    error = (turned.double() - wanted).square().mean().sqrt() / wanted.square().mean().sqrt()
    assert turned.dtype == dtype
    assert float(error) < once * switches**0.5


@pytest.mark.parametrize("pair", PAIRS)
def test_scores_after_a_switch_are_those_of_a_fresh_run(pair: str) -> None:
    (old, new), pos, q, k = PAIRS[pair], positions.arange(40), normal(1, 2, 40, 16), normal(1, 2, 40, 16)
    fresh = posenc.attend(q, k, k, new, pos, backend="reference-float64")
    stale = posenc.attend(q, k, k, old, pos, backend="reference-float64")
    assert not torch.allclose(fresh, stale, atol=1e-3)
    turned_q = new.rotate_q(q, new.place(pos, dtype=torch.float64))
    cached = rephase(old.rotate_k(k, old.place(pos, dtype=torch.float64)), pos, old, new)
    again = posenc.attend(turned_q, cached, k, new, pos, rotated=True, backend="reference-float64")
    torch.testing.assert_close(again, fresh, rtol=0, atol=1e-12)


ROPE = {"head_dim": 8}
HEADS: dict[str, Any] = {"n_kv_heads": 2, "head_dim": 8}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (posenc.RoPE(**ROPE), posenc.RoPE(**ROPE, pairing="interleaved"), "pairing is 'half' in the old RoPE"),
        (posenc.RoPE(**ROPE), posenc.RoPE(**ROPE, rotary_dim=4), "rotary_dim is 8"),
        (posenc.RoPE(**ROPE), posenc.RoPE(head_dim=16), "head_dim is 8 in the old RoPE and 16 in the new RoPE"),
        (posenc.RoPE(**ROPE), posenc.XPos(**ROPE, pairing="half"), "XPos changes the size of lanes by position"),
        (posenc.XPos(**ROPE, pairing="half"), posenc.RoPE(**ROPE), "Compute the keys anew"),
        (posenc.RetNet(**HEADS, pairing="half"), posenc.RoPE(**ROPE), "RetNet changes the size of lanes by position"),
        (posenc.RoPE(**ROPE), posenc.FoPE(**HEADS, original_max_len=99), "FoPE changes the size of lanes by position"),
        (posenc.MixedRoPE(**HEADS), posenc.MixedRoPE(**HEADS), "or turns each head otherwise"),
        (posenc.GRAPEM(**HEADS), posenc.RoPE(**ROPE, pairing="interleaved"), "GRAPEM changes"),
        (posenc.RoPE(**ROPE), posenc.AxialRoPE(**ROPE), "n_axes is 1 in the old RoPE and 2 in the new AxialRoPE"),
    ],
)
def test_what_cannot_be_turned_on_is_refused(old: Any, new: Any, words: str) -> None:
    pos = positions.arange(3) if old.n_axes == 1 else positions.grid(1, 3)
    with refuses(ValueError, "rephase: ", words):
        rephase(torch.zeros(1, 2, 3, 8), pos, old, new)


def test_what_is_no_rotation_or_does_not_fit_is_refused() -> None:
    rope, pos, pope = posenc.RoPE(head_dim=8), positions.arange(3), posenc.PoPE(n_kv_heads=1, head_dim=8)
    with refuses(TypeError, "rephase: old and new must be encodings that turn pairs of lanes", "PoPE"):
        rephase(torch.zeros(1, 2, 3, 8), pos, rope, pope)
    with refuses(ValueError, "rephase: q and k must have head_dim=8 lanes", "(1, 2, 3, 16)"):
        rephase(torch.zeros(1, 2, 3, 16), pos, rope, rope)
    with refuses(ValueError, "rephase: q and k must have a token for each", "(1, 2, 4, 8)"):
        rephase(torch.zeros(1, 2, 4, 8), pos, rope, rope)


def test_lengths_that_nobody_has_given_are_asked_for() -> None:
    with refuses(ValueError, "LongRoPE: depends on the length of the sequence", "Call resolve(seq_len)"):
        rephase(torch.zeros(1, 2, 3, 16), positions.arange(3), LONG, LONG.resolve(5))


@pytest.mark.parametrize("gain", [0.0, -1.0, float("nan"), float("inf")])
def test_a_gain_that_is_no_size_is_refused(gain: float) -> None:
    with refuses(
        ValueError, "RoPE: attention_factor must be a finite number above zero", f"got attention_factor={gain}"
    ):
        posenc.RoPE(head_dim=4, attention_factor=gain)
