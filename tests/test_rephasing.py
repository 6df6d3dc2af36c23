"""Cached keys under other frequencies or at other positions: as if they had been rotated so from the start."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import posenc
import strategies
from posenc import frequencies, move_keys, positions, rephase
from posenc.definitions.rotary import rope as defined
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
        (posenc.RoPE(**ROPE), posenc.RoPE(**ROPE, pairing="interleaved"), "pairing='half' in the old RoPE"),
        (posenc.RoPE(**ROPE), posenc.RoPE(**ROPE, rotary_dim=4), "rotary_dim=8"),
        (posenc.RoPE(**ROPE), posenc.RoPE(head_dim=16), "head_dim=8 in the old RoPE and 16 in the new RoPE"),
        (posenc.RoPE(**ROPE), posenc.XPos(**ROPE, pairing="half"), "XPos scales dimensions by position"),
        (posenc.XPos(**ROPE, pairing="half"), posenc.RoPE(**ROPE), "Compute the keys again"),
        (posenc.RetNet(**HEADS, pairing="half"), posenc.RoPE(**ROPE), "RetNet scales dimensions by position"),
        (posenc.RoPE(**ROPE), posenc.FoPE(**HEADS, original_max_len=99), "FoPE scales dimensions by position"),
        (posenc.MixedRoPE(**HEADS), posenc.MixedRoPE(**HEADS), "or rotates heads differently"),
        (posenc.GRAPEM(**HEADS), posenc.RoPE(**ROPE, pairing="interleaved"), "GRAPEM scales dimensions"),
        (posenc.RoPE(**ROPE), posenc.AxialRoPE(**ROPE), "n_axes=1 in the old RoPE and 2 in the new AxialRoPE"),
    ],
)
def test_what_cannot_be_turned_on_is_refused(old: Any, new: Any, words: str) -> None:
    pos = positions.arange(3) if old.n_axes == 1 else positions.grid(1, 3)
    with refuses(ValueError, "rephase: ", words):
        rephase(torch.zeros(1, 2, 3, 8), pos, old, new)


def test_what_is_no_rotation_or_does_not_fit_is_refused() -> None:
    rope, pos, pope = posenc.RoPE(head_dim=8), positions.arange(3), posenc.PoPE(n_kv_heads=1, head_dim=8)
    with refuses(TypeError, "rephase: old and new must be encodings that rotate pairs of dimensions", "PoPE"):
        rephase(torch.zeros(1, 2, 3, 8), pos, rope, pope)
    with refuses(ValueError, "rephase: q and k must have head_dim=8 dimensions", "(1, 2, 3, 16)"):
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


# ---- other positions

ROTARY = [
    "rope",
    "p_rope",
    "xpos",
    "mrope",
    "mhrope",
    "stretched_rope",
    "mixed_rope",
    "grape_m",
    "retnet",
    "longrope",
    "dynamic_ntk",
]


def _within_reach(encoding: Any, pos: torch.Tensor) -> bool:
    try:
        encoding.place(pos)
    except ValueError:  # xPos ends where its powers leave float32's range
        return False
    return True


@given(data=st.data(), name=st.sampled_from([*ROTARY, "axial_rope"]))
@check(60)
def test_moved_keys_are_those_of_the_new_positions(data: st.DataObject, name: str) -> None:
    drawn = strategies.draw_encoding(data, name)
    encoding = drawn.resolve(5000).requires_grad_(False)
    pos = data.draw(strategies.sites(encoding))
    assume(name != "xpos" or _within_reach(encoding, pos))
    along = 1 if encoding.n_axes == 1 else 2
    seq_len = pos.shape[-along]
    order = torch.randperm(seq_len, generator=torch.Generator().manual_seed(0))
    new = pos.flatten(0, -along - 1)[0] if pos.ndim > along else pos
    new = new[order]
    new = new / 2 if new.is_floating_point() else new.long() // 2  # nearer to 0: xPos ends in float32's range
    k = normal(pos.shape[0] if pos.ndim > along else 2, encoding.n_kv_heads or 3, seq_len, encoding.head_dim)
    old, wanted = (encoding.rotate_k(k, encoding.place(p, dtype=torch.float64)) for p in (pos, new))
    moved = move_keys(old, pos, new, encoding)
    size = float(wanted.abs().max())
    torch.testing.assert_close(moved, wanted, rtol=0, atol=2e-9 * max(size, float(old.abs().max()), 1.0))


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.bfloat16, 2**-8), (torch.float16, 2**-10)])
@pytest.mark.parametrize("side", ["first", "last"])
def test_far_out_the_gain_is_applied_once_and_lanes_that_do_not_rotate_stay(
    dtype: Any, bound: float, side: Any
) -> None:
    """Against the definition in float64, with positions around a million."""
    inv_freq, gain = YARN.frequencies()[0].tolist(), YARN.gain()
    known = {"head_dim": 24, "rotary_dim": 16, "rotary_side": side, "inv_freq": inv_freq, "attention_factor": gain}
    rope = posenc.RoPE(**known)
    k, pos, new = np.random.default_rng(0).normal(size=(64, 24)), 1_000_000 + np.arange(64), np.arange(64) * 7919

    def at(places: Any) -> Any:
        return np.stack([defined(p, **known)[1] @ row for p, row in zip(places, k, strict=True)])

    old = torch.from_numpy(at(pos)).to(dtype)[None, None]
    moved = move_keys(old, *map(torch.from_numpy, (pos, new)), rope)
    error = (moved[0, 0].double().numpy() - at(new)) / np.abs(at(new)).max()
    assert moved.dtype == dtype
    assert np.abs(error).max() < bound
    kept = slice(16, 24) if side == "first" else slice(0, 8)
    assert torch.equal(moved[..., kept], old[..., kept])


@pytest.mark.parametrize(
    ("encoding", "pos", "kind", "words"),
    [
        (posenc.FoPE(**HEADS, original_max_len=99), [0, 1, 2], ValueError, "FoPE does more to keys than rotate them"),
        (posenc.ALiBi(n_heads=2), [0, 1, 2], TypeError, "encoding must rotate pairs of dimensions"),
        (posenc.Compose(PLAIN, posenc.ALiBi(n_heads=2)), [0, 1, 2], TypeError, "Pass the member of a Compose"),
        (PLAIN, [0], ValueError, "each key needs one old and one new position; got 3 in pos and 1 in new_pos"),
    ],
)
def test_what_cannot_be_moved_is_refused(encoding: Any, pos: list[int], kind: Any, words: str) -> None:
    with refuses(kind, "move_keys: ", words):
        move_keys(torch.zeros(1, 2, 3, 16), torch.arange(3), torch.tensor(pos), encoding)


def test_the_examples_of_the_guide_run() -> None:
    """They hold an eviction, and a window behind sinks, against keys that are rotated anew."""
    page = (Path(__file__).parents[1] / "docs" / "cache.md").read_text(encoding="utf-8")
    blocks, known = re.findall(r"```python\n(.*?)```", page, re.DOTALL), dict[str, Any]()
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, "cache.md", "exec"), known)
    assert known["keys"].shape == (1, 2, 76, 32)  # 80 at the 80th step and at each 16th from there, which leave 64
