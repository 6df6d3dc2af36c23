"""VO-RoPE: forwards and backwards against its definition, in caches and layers, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import defined
import posenc
import strategies
from posenc import Compose, attend, explain, laws, positions
from posenc.attention.checked import make_call
from posenc.nn import Cache, LanguageModel
from strategies import normal, refuses

POS, K_POS = torch.tensor([40, 41, 42, 47]), torch.tensor([3, 0, 40, 41, 42, 47])


def slack(*pos: Tensor) -> float:
    """What float64 leaves of an angle."""
    return 1e-13 * max(1.0, *(float(p.double().abs().max()) for p in pos))


@given(data=st.data())
@strategies.check(60)
def test_each_side_is_its_definition_s_matrix(data: st.DataObject) -> None:
    encoding = strategies.draw_encoding(data, "vo_rope")
    pos = data.draw(strategies.sites(encoding, batch=False))
    x, placed = normal(1, 3, len(pos), encoding.head_dim), encoding.place(pos, dtype=torch.float64)
    for side, got in enumerate((encoding.rotate_v(x, placed), encoding.unrotate_out(x, placed))):
        matrices = defined.matrices("vo_rope", encoding, pos.double().numpy(), side, encoding.head_dim)
        wanted = np.einsum("nde,hne->hnd", matrices, x[0].numpy())
        np.testing.assert_allclose(got[0].numpy(), wanted, rtol=0, atol=8 * slack(pos))


def literally(q: Tensor, k: Tensor, v: Tensor, encoding: Any, seen: Tensor) -> Tensor:
    """The definition's matrices around a softmax of plain scores, in steps that autograd follows."""
    of_v, of_out = (
        torch.from_numpy(defined.matrices("vo_rope", encoding, p.double().numpy(), side, v.shape[-1]))
        for side, p in enumerate((K_POS, POS))
    )
    rotated = torch.einsum("nde,bhne->bhnd", of_v, v).repeat_interleave(2, 1)
    scores = q @ k.repeat_interleave(2, 1).mT / q.shape[-1] ** 0.5
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return torch.einsum("nde,bhne->bhnd", of_out, weights @ rotated)


@pytest.mark.parametrize("masks", [{}, {"causal": False}, {"window": 3}])
def test_forwards_and_backwards_on_every_backend(masks: dict[str, Any]) -> None:
    """Four queries against a cache of six keys, whose values are narrower than keys."""
    encoding = posenc.VORoPE(head_dim=6, rotary_dim=4, rotary_side="last")
    shapes = ((2, 4, 4, 8), (2, 2, 6, 8), (2, 2, 6, 6))
    q, k, v = (normal(*shape, seed=i).requires_grad_() for i, shape in enumerate(shapes))
    here, there = torch.arange(2, 6)[:, None], torch.arange(6)
    seen = {
        "": there <= here,
        "causal": torch.ones(4, 6, dtype=torch.bool),
        "window": (there <= here) & (there > here - 3),
    }["".join(masks)]
    wanted, pull = literally(q, k, v, encoding, seen), normal(2, 4, 4, 6, seed=9)
    exact = torch.autograd.grad(wanted, (q, k, v), pull)
    call = q, k, v, encoding, *(encoding.place(p, dtype=torch.float64) for p in (POS, K_POS))
    ran = []
    for verdict in explain(*call, **masks):
        if verdict.verdict not in ("taken", "would run"):
            continue
        ran.append(verdict.backend)
        got = attend(*call, backend=verdict.backend, **masks)
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-13)
        for mine, theirs in zip(torch.autograd.grad(got, (q, k, v), pull), exact, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)
        cached = call[:2], encoding.rotate_v(v, call[-1]), call[3:]
        again = attend(*cached[0], cached[1], *cached[2], rotated=True, backend=verdict.backend, **masks)
        torch.testing.assert_close(again, wanted, rtol=0, atol=1e-13)
    assert {"sdpa", "blocked", "reference", "reference-float64"} <= set(ran)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_exact_reference_rounds_half_precision_once(dtype: torch.dtype) -> None:
    encoding = posenc.VORoPE(head_dim=8)
    q, k, v = (normal(1, 2, 9, 8, seed=i).to(dtype) for i in range(3))
    pos = positions.arange(9, start=1000)
    got = attend(q, k, v, encoding, pos, backend="reference-float64")
    wide = attend(q.double(), k.double(), v.double(), encoding, pos, backend="reference-float64")
    assert torch.equal(got, wide.to(dtype))


def test_neutral_hooks_pass_the_same_tensors() -> None:
    """Nothing is copied, and no operation is added, for what does not rotate values."""
    q, v = normal(1, 4, 3, 8).float(), normal(1, 4, 3, 5).float()
    rope, alibi = posenc.RoPE(head_dim=8), posenc.ALiBi(n_heads=4)
    for encoding in (posenc.NoPE(), rope, Compose(rope, alibi), posenc.Mapped(rope, lambda pos: pos / 2)):
        call = make_call(q, q, v, encoding, positions.arange(3), None, False, True, None, None, None, None, 0.0, "auto")
        assert call.with_rotated_v() is call
        assert encoding.unrotate_out(v, call.placed) is v


def test_members_rotate_in_order_and_back_in_reverse() -> None:
    """Pairs that share a lane do not commute, so that another order would not undo them."""
    half, pairs = posenc.VORoPE(head_dim=4), posenc.VORoPE(head_dim=4, pairing="interleaved")
    both, v, pos = Compose(half, pairs), normal(1, 1, 5, 4), torch.arange(5)
    placed, of_half, of_pairs = (e.place(pos, dtype=torch.float64) for e in (both, half, pairs))
    rotated = both.rotate_v(v, placed)
    assert torch.equal(rotated, pairs.rotate_v(half.rotate_v(v, of_half), of_pairs))
    assert not torch.allclose(rotated, half.rotate_v(pairs.rotate_v(v, of_pairs), of_half))
    torch.testing.assert_close(both.unrotate_out(rotated, placed), v, rtol=0, atol=1e-14)
    for other in (posenc.Mapped(half, lambda pos: 2 * pos), posenc.PerLayer([posenc.NoPE(), half])):
        inner, at = other.layer(1, other.place(pos, dtype=torch.float64))
        wanted = half.rotate_v(v, half.place(pos * (2 if inner is other else 1), dtype=torch.float64))
        assert torch.equal(inner.rotate_v(v, at), wanted)
    with refuses(ValueError, "PerLayer: each layer has its own encoding"):
        posenc.PerLayer([half]).rotate_v(v, of_half)


@pytest.mark.parametrize("other", ["rerope", "cope", "t5"])
def test_next_to_what_maps_distances_scores_or_adds_a_bias(other: str) -> None:
    """Values rotate by their own positions whatever is done to scores: as if rotated outside of attention."""
    torch.manual_seed(0)
    dims = posenc.Dims(n_heads=4, head_dim=8, d_model=32)
    member = posenc.create(other, dims=dims, **{"rerope": {"window": 3}, "cope": {"max_count": 5}}.get(other, {}))
    q, k, v = (normal(1, 4, 9, 8, seed=i).float() for i in range(3))
    pos, vo = positions.arange(9, start=5), posenc.VORoPE(head_dim=8)
    placed = vo.place(pos)
    wanted = vo.unrotate_out(attend(q, k, vo.rotate_v(v, placed), member, pos), placed)
    torch.testing.assert_close(attend(q, k, v, Compose(member, vo), pos), wanted, rtol=0, atol=2e-6)


def test_a_language_model_decodes_with_rotated_values_in_its_cache() -> None:
    """One layer of NoPE scores sees a set, so that what order adds came by the values."""
    torch.manual_seed(0)
    model = LanguageModel(
        vocab_size=20, d_model=16, n_layers=2, n_heads=2, n_kv_heads=1, encoding=posenc.VORoPE(head_dim=8)
    ).eval()
    text = torch.randint(20, (1, 11), generator=torch.Generator().manual_seed(1))
    cache, whole = Cache(), model(text)
    parts = [model(text[:, a:b], cache=cache) for a, b in ((0, 4), (4, 5), (5, 11))]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=2e-6)
    vo, kept = posenc.VORoPE(head_dim=8), cache.values[0]
    x = model.blocks[0].norm(model.embedding(text, vo, vo.place(positions.arange(11))))
    raw = model.blocks[0].attention.project(x, x)[2]
    torch.testing.assert_close(kept, vo.rotate_v(raw, vo.place(positions.arange(11))), rtol=0, atol=2e-6)


def test_moving_a_text_changes_nothing() -> None:
    q, k, v = (normal(1, 2, 7, 8, seed=i) for i in range(3))
    both = Compose(posenc.RoPE(head_dim=8), posenc.VORoPE(head_dim=8))
    first, moved = (attend(q, k, v, both, positions.arange(7, start=start)) for start in (0, 5000))
    torch.testing.assert_close(first, moved, rtol=0, atol=1e-11)
    alone = attend(q, k, v, posenc.RoPE(head_dim=8), positions.arange(7))
    assert not torch.allclose(first, alone)


def test_what_is_refused() -> None:
    vo = posenc.VORoPE(head_dim=8)
    placed = vo.place(positions.arange(3))
    with refuses(ValueError, "VORoPE: v must have head_dim=8 dimensions", "(1, 2, 3, 6)"):
        vo.rotate_v(normal(1, 2, 3, 6), placed)
    with refuses(ValueError, "VORoPE: out must have a token for each", "(1, 2, 2, 8)"):
        vo.unrotate_out(normal(1, 2, 2, 8), placed)
    with refuses(TypeError, "VORoPE: v must be floating"):
        vo.rotate_v(torch.ones(1, 2, 3, 8, dtype=torch.int64), placed)
    with refuses(ValueError, "head_dim must be even", "got head_dim=7"):
        posenc.VORoPE(head_dim=7)


def test_cached_values_move_with_their_keys() -> None:
    vo, v = posenc.VORoPE(head_dim=8), normal(1, 2, 4, 8)
    before, after = positions.arange(4, start=9), torch.tensor([0, 5, 6, 7])
    rotated, wanted = (vo.rotate_v(v, vo.place(p, dtype=torch.float64)) for p in (before, after))
    torch.testing.assert_close(posenc.move_keys(rotated, before, after, vo.rope), wanted, rtol=0, atol=1e-13)


OWN = [
    posenc.ValueRotary(posenc.AxialRoPE(head_dim=8)),
    posenc.ValueRotary(posenc.MixedRoPE(n_kv_heads=2, head_dim=8)),
    posenc.ValueRotary(posenc.RoPE(head_dim=8, trainable=True)),
]


@pytest.mark.parametrize("encoding", OWN, ids=lambda e: e.rope.name)
def test_any_rotation_may_rotate_values(encoding: posenc.ValueRotary) -> None:
    """On several axes, with frequencies of each key head, and learned ones."""
    wanted = ["values", "inverse", "cache", "backends", "padding in gradients", "gradients", "sincere errors"]
    assert laws.run(encoding, wanted) == []


def test_a_rotation_that_changes_lengths_is_refused() -> None:
    for rope in (posenc.RoPE(head_dim=8, attention_factor=1.2), posenc.XPos(head_dim=8)):
        with refuses(ValueError, "ValueRotary: the rotation must keep the length of vectors", rope.name):
            posenc.ValueRotary(rope)
