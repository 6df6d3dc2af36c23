"""Cached keys at other positions: as if they had been rotated there from the start."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import posenc
import strategies
from posenc import move_keys, positions
from posenc.definitions.rotary import rope as defined
from strategies import check, normal, refuses

ROTARY = ["rope", "xpos", "mrope", "stretched_rope", "mixed_rope", "grape_m", "retnet", "longrope", "dynamic_ntk"]
YARN = posenc.RoPE.from_config(
    {
        "model_type": "qwen3",
        "head_dim": 32,
        "num_hidden_layers": 1,
        "max_position_embeddings": 131_072,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e6,
            "factor": 4.0,
            "original_max_position_embeddings": 32_768,
        },
    }
)


@given(data=st.data(), name=st.sampled_from([*ROTARY, "axial_rope"]))
@check(60)
def test_moved_keys_are_those_of_the_new_positions(data: st.DataObject, name: str) -> None:
    drawn = strategies.draw_encoding(data, name)
    encoding = drawn.resolve(5000).requires_grad_(False)
    pos = data.draw(strategies.sites(encoding))
    along = 1 if encoding.n_axes == 1 else 2
    seq_len = pos.shape[-along]
    order = torch.randperm(seq_len, generator=torch.Generator().manual_seed(0))
    new = pos.flatten(0, -along - 1)[0] if pos.ndim > along else pos
    new = new[order]
    new = new - 3 if new.is_floating_point() else new.long() - 3
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
    gain, inv_freq = YARN.gain(), YARN.frequencies()[0].numpy()
    rope = posenc.RoPE(head_dim=48, rotary_dim=32, rotary_side=side, inv_freq=inv_freq, attention_factor=gain)
    assert gain > 1.1
    k, pos, new = np.random.default_rng(0).normal(size=(64, 48)), 1_000_000 + np.arange(64), np.arange(64) * 7919
    known = {"head_dim": 48, "rotary_dim": 32, "rotary_side": side, "inv_freq": inv_freq, "attention_factor": gain}

    def at(places: Any) -> Any:
        return np.stack([defined(p, **known)[1] @ row for p, row in zip(places, k, strict=True)])

    old = torch.from_numpy(at(pos)).to(dtype)[None, None]
    moved = move_keys(old, *map(torch.from_numpy, (pos, new)), rope)
    error = (moved[0, 0].double().numpy() - at(new)) / np.abs(at(new)).max()
    assert moved.dtype == dtype
    assert np.abs(error).max() < bound
    kept = slice(32, 48) if side == "first" else slice(0, 16)
    assert torch.equal(moved[..., kept], old[..., kept])


def test_keys_left_after_an_eviction_score_as_a_text_without_the_evicted() -> None:
    """Sinks and a window under YaRN: a query sees what it would see had the rest never been there."""
    q, k, v = normal(1, 4, 40, 32), normal(1, 2, 40, 32), normal(1, 2, 40, 8)
    pos = positions.arange(40)
    cached = YARN.rotate_k(k, YARN.place(pos, dtype=torch.float64))
    kept = torch.cat((pos[:4], pos[-12:]))
    new = positions.arange(16)
    moved = move_keys(cached[:, :, kept], YARN.place(kept), YARN.place(new), YARN)
    last = YARN.rotate_q(q[:, :, -1:], YARN.place(new[-1:], dtype=torch.float64))
    got = posenc.attend(last, moved, v[:, :, kept], YARN, new[-1:], new, rotated=True, backend="reference-float64")
    wanted = posenc.attend(q[:, :, -1:], k[:, :, kept], v[:, :, kept], YARN, new[-1:], new, backend="reference-float64")
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)


ROPE, FOPE = posenc.RoPE(head_dim=8), posenc.FoPE(n_kv_heads=2, head_dim=8, original_max_len=99)


@pytest.mark.parametrize(
    ("encoding", "pos", "kind", "words"),
    [
        (FOPE, [0, 1, 2], ValueError, "FoPE does more to keys than rotate them"),
        (posenc.ALiBi(n_heads=2), [0, 1, 2], TypeError, "encoding must be one that rotates pairs of lanes"),
        (posenc.Compose(ROPE, posenc.ALiBi(n_heads=2)), [0, 1, 2], TypeError, "Pass the member of a Compose"),
        (ROPE, [0], ValueError, "each key has one old and one new position; got 3 in pos and 1 in new_pos"),
    ],
)
def test_what_cannot_be_moved_is_refused(encoding: Any, pos: list[int], kind: Any, words: str) -> None:
    with refuses(kind, "move_keys: ", words):
        move_keys(torch.zeros(1, 2, 3, 8), torch.arange(3), torch.tensor(pos), encoding)
