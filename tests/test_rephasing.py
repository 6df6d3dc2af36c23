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


@pytest.mark.parametrize(("dtype", "once"), [(torch.float32, 3e-7), (torch.bfloat16, 4e-3), (torch.float16, 5e-4)])
@pytest.mark.parametrize("switches", [1, 100])
def test_errors_of_many_switches_grow_as_their_root(dtype: torch.dtype, once: float, switches: int) -> None:
    """Each switch rounds once; a hundred of them are a random walk of a hundred such steps, not a drift."""
    plain, pos = posenc.RoPE(head_dim=16), positions.arange(64, start=100_000)
    there, back = (plain, YARN), (YARN, plain)
    k = normal(2, 4, 64, 16)
    turned = plain.rotate_k(k, plain.place(pos, dtype=torch.float64)).to(dtype)
    for i in range(switches):
        turned = rephase(turned, pos, *(there if i % 2 == 0 else back))
    last = YARN if switches % 2 else plain
    wanted = last.rotate_k(k, last.place(pos, dtype=torch.float64))
    error = (turned.double() - wanted).square().mean().sqrt() / wanted.square().mean().sqrt()
    assert turned.dtype == dtype
    assert float(error) < once * switches**0.5


def test_scores_after_a_switch_are_those_of_a_fresh_run() -> None:
    plain, pos, q, k = posenc.RoPE(head_dim=16), positions.arange(40), normal(1, 2, 40, 16), normal(1, 2, 40, 16)
    fresh = posenc.attend(q, k, k, YARN, pos, backend="reference-float64")
    turned_q = YARN.rotate_q(q, YARN.place(pos, dtype=torch.float64))
    cached = rephase(plain.rotate_k(k, plain.place(pos, dtype=torch.float64)), pos, plain, YARN)
    again = posenc.attend(turned_q, cached, k, YARN, pos, rotated=True, backend="reference-float64")
    torch.testing.assert_close(again, fresh, rtol=0, atol=1e-12)


ROPE = {"head_dim": 8}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (posenc.RoPE(**ROPE), posenc.RoPE(**ROPE, pairing="interleaved"), "pairing is 'half' in the old RoPE"),
        (posenc.RoPE(**ROPE), posenc.RoPE(**ROPE, rotary_dim=4), "rotary_dim is 8"),
        (posenc.RoPE(**ROPE), posenc.RoPE(head_dim=16), "head_dim is 8 in the old RoPE and 16 in the new RoPE"),
        (posenc.RoPE(**ROPE), posenc.XPos(**ROPE, pairing="half"), "XPos changes the size of lanes by position"),
        (posenc.XPos(**ROPE, pairing="half"), posenc.RoPE(**ROPE), "Compute the keys anew"),
    ],
)
def test_what_cannot_be_turned_on_is_refused(old: Any, new: Any, words: str) -> None:
    with refuses(ValueError, "rephase: ", words):
        rephase(torch.zeros(1, 1, 3, 8), positions.arange(3), old, new)


@pytest.mark.parametrize("gain", [0.0, -1.0, float("nan"), float("inf")])
def test_a_gain_that_is_no_size_is_refused(gain: float) -> None:
    with refuses(
        ValueError, "RoPE: attention_factor must be a finite number above zero", f"got attention_factor={gain}"
    ):
        posenc.RoPE(head_dim=4, attention_factor=gain)
