"""What every backend writes, against turns written out in float64."""

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import posenc
from kernels.rotations import (
    BACKENDS,
    HALVES,
    KINDS,
    LAYOUTS,
    PAIRINGS,
    able,
    bits_equal,
    exact,
    kind_name,
    memory,
    tables,
)
from posenc import definitions, kernels, positions
from posenc.kernels import blocked
from strategies import check, normal

# (head_dim, rotary_dim): 16 pairs are a vector, so one less, one more, two and one; and whole heads
WIDTHS = [(2, 2), (6, 6), (10, 2), (10, 6), (80, 80), (96, 96), (96, 30), (96, 32), (96, 34), (130, 66), (256, 256)]


def turned(
    encoding: Any, heads: tuple[int, int], pos: Tensor, kinds: tuple[torch.dtype, torch.dtype], backend: str, batch: int
) -> None:
    """Turn queries and keys and compare."""
    dtype, table = kinds
    n = pos.shape[1] if pos.ndim == 2 + (encoding.n_axes > 1) else pos.shape[0]
    q, k = (normal(batch, h, n, encoding.head_dim, seed=h, dtype=dtype) for h in heads)
    placed = encoding.place(pos, dtype=table)
    got = encoding.rotate(q, k, placed, backend=backend)
    for which, (x, y) in enumerate(zip((q, k), got, strict=True)):
        assert y.dtype == dtype
        cos, sin = tables(placed, which, by_head=encoding.n_kv_heads is not None)
        wanted = exact(x, cos, sin, pairing=encoding.pairing, side=encoding.rotary_side)
        wanted.holds(y, table)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("kinds", KINDS, ids=kind_name)
def test_every_width_in_every_kind(kinds: tuple[torch.dtype, torch.dtype], pairing: Any, backend: str) -> None:
    if not able(backend, *kinds):
        pytest.skip("refused")
    for i, (head_dim, width) in enumerate(WIDTHS):
        for side in ("first", "last") if width < head_dim else ("first",):
            rope = posenc.RoPE(head_dim=head_dim, rotary_dim=width, rotary_side=side, pairing=pairing)
            heads = ((1, 1), (3, 3), (4, 2))[i % 3]
            turned(rope, heads, positions.arange((1, 7, 20)[i % 3], start=5 * i), kinds, backend, 1 + i % 2)


@pytest.mark.sample(4)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=kind_name)
def test_many_heads_and_tokens(dtype: torch.dtype, pairing: Any, backend: str) -> None:
    """More than one block, and more than a thread."""
    rope = posenc.RoPE(head_dim=128, pairing=pairing)
    turned(rope, (32, 8), positions.arange(513), (dtype, torch.float32), backend, 1)
    turned(rope, (32, 8), positions.arange(1, start=1000), (dtype, torch.float32), backend, 64)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=kind_name)
def test_tables_of_other_kinds(dtype: torch.dtype, pairing: Any, backend: str) -> None:
    """Positions of each text, amplitudes of queries and of keys, tables of each head."""
    kinds, random = (dtype, torch.promote_types(dtype, torch.float32)), torch.Generator().manual_seed(0)
    each = torch.randint(-100, 5000, (3, 21), generator=random)
    turned(posenc.RoPE(head_dim=40, rotary_dim=34, pairing=pairing), (6, 2), each, kinds, backend, 3)
    turned(posenc.RoPE(head_dim=40, pairing=pairing), (6, 2), each[:1], kinds, backend, 3)
    turned(posenc.XPos(head_dim=36, pairing=pairing), (6, 2), each, kinds, backend, 3)
    mixed = posenc.MixedRoPE(n_kv_heads=3, head_dim=36, pairing=pairing).requires_grad_(False)
    turned(mixed, (12, 3), positions.grid(3, 7), kinds, backend, 2)
    turned(mixed, (3, 6), torch.rand(2, 21, 2, dtype=torch.float64, generator=random), kinds, backend, 2)
    gained = posenc.RoPE(head_dim=40, attention_factor=1.7, rotary_dim=20, rotary_side="last", pairing=pairing)
    turned(gained, (1, 1), each[0], kinds, backend, 2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_keys_of_another_length(backend: str) -> None:
    """One new token against all keys, each with tables and heads of its own."""
    rope, q, k = posenc.RoPE(head_dim=48), normal(2, 8, 1, 48).bfloat16(), normal(2, 2, 300, 48).bfloat16()
    placed, k_placed = rope.place(positions.arange(1, start=299)), rope.place(positions.arange(300).expand(2, -1))
    got = rope.rotate(q, k, placed, k_placed, backend=backend)
    exact(q, *tables(placed), pairing="half").holds(got[0], torch.float32)
    exact(k, *tables(k_placed), pairing="half").holds(got[1], torch.float32)
    few = rope.rotate(k[:1], q[:1], rope.place(positions.arange(300)), placed, backend=backend)
    exact(q[:1], *tables(placed), pairing="half").holds(few[1], torch.float32)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("which", [0, 1])
def test_a_cosine_that_lies_otherwise_than_its_sine(which: int, backend: str) -> None:
    """A kernel that took one's strides for both would read astray."""
    x, angles = normal(2, 4, 7, 12, dtype=torch.float32), 9 * normal(1, 1, 7, 6, dtype=torch.float32)
    found = [angles.cos().expand(2, -1, -1, -1), angles.sin().expand(2, -1, -1, -1)]
    for other in (found[which].clone(), found[which].mT.contiguous().mT, torch.stack([found[which]] * 2, -1)[..., 0]):
        pair = [other if i == which else found[i] for i in range(2)]
        (got,) = kernels.rotate_all([x], [(pair[0], pair[1])], kernels.Way("half", backend=backend))
        exact(x, pair[0], pair[1], pairing="half").holds(got, torch.float32)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("side", ["first", "last"])
def test_the_turn_is_the_definition(side: Any, pairing: Any, backend: str) -> None:
    options: dict[str, Any] = {"head_dim": 42, "rotary_dim": 34, "rotary_side": side, "pairing": pairing}
    rope, pos = posenc.RoPE(**options), torch.tensor([0, 3, 17, 1000, -5])
    q, k = normal(1, 3, 5, 42), normal(1, 1, 5, 42, seed=1)
    got = rope.rotate(q, k, rope.place(pos, dtype=torch.float64), backend=backend)
    for which, x in enumerate((q, k)):
        matrices = np.stack([definitions.rotary.rope(float(p), **options)[which] for p in pos])
        np.testing.assert_allclose(got[which], np.einsum("sij,bhsj->bhsi", matrices, x), rtol=0, atol=1e-11)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("dtype", HALVES, ids=kind_name)
def test_numbers_are_rounded_once(dtype: torch.dtype, pairing: Any, backend: str) -> None:
    """All but one in a thousand are the nearest to the exact product; those were ties, but for float32."""
    rope, pos = posenc.RoPE(head_dim=128, pairing=pairing), positions.arange(500, start=3)
    q, k = normal(1, 3, 500, 128, dtype=dtype), normal(1, 1, 500, 128, seed=1, dtype=dtype)
    placed = rope.place(pos)
    for x, y in zip((q, k), rope.rotate(q, k, placed, backend=backend), strict=True):
        wanted = exact(x, *tables(placed), pairing=pairing)
        nearest = wanted.turn.to(dtype)
        other = y != nearest
        assert float(other.double().mean()) <= 1e-3
        wanted.holds(y, torch.float32)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", HALVES, ids=kind_name)
def test_halfway_numbers_go_to_the_even_one(dtype: torch.dtype, backend: str) -> None:
    """One and a half times a number is one that is stored, or lies halfway between two."""
    rope = posenc.RoPE(head_dim=64, attention_factor=1.5)
    x = normal(1, 2, 16, 64, dtype=dtype)
    wide = 1.5 * x.double()
    nearest = wide.to(dtype)
    ulp = torch.nextafter(nearest.abs(), torch.full_like(nearest, torch.inf)).double() - nearest.abs().double()
    assert float(((wide - nearest.double()).abs() == ulp / 2).double().mean()) > 0.2
    got, _ = rope.rotate(x, x[:, :1].clone(), rope.place(torch.zeros(16, dtype=torch.int64)), backend=backend)
    assert torch.equal(got, nearest)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("dtype", [*HALVES, torch.float32], ids=kind_name)
def test_what_is_not_finite_stays_in_its_pair(dtype: torch.dtype, pairing: Any, backend: str) -> None:
    rope = posenc.RoPE(head_dim=76, rotary_dim=70, rotary_side="last", pairing=pairing)
    x = normal(1, 2, 9, 76, dtype=dtype)
    x[0, 0, 3, 6 + 4], x[0, 1, 8, 75], x[0, 1, 0, 2] = torch.nan, torch.inf, -torch.inf
    got, _ = rope.rotate(x, x[:, :1].clone(), rope.place(positions.arange(9, start=1)), backend=backend)
    partner = {"half": {10: 45, 75: 40}, "interleaved": {10: 11, 75: 74}}[pairing]
    bad = {(0, 3, 10), (0, 3, partner[10]), (1, 8, 75), (1, 8, partner[75]), (1, 0, 2)}
    assert {tuple(int(i) for i in at) for at in (~got[0].isfinite()).nonzero()} == bad
    assert bool(got[0, 0, 3, [10, partner[10]]].isnan().all())
    assert bool(got[0, 1, 8, [75, partner[75]]].isinf().all())
    assert float(got[0, 1, 0, 2]) == -torch.inf


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [*HALVES, torch.float32], ids=kind_name)
def test_too_large_is_infinite_and_never_nan(dtype: torch.dtype, backend: str) -> None:
    """bfloat16 rounds the largest number up to infinity: adding to its bits must not make another."""
    largest = torch.finfo(dtype).max
    x = torch.full((1, 1, 64, 64), largest, dtype=dtype)
    rope = posenc.RoPE(head_dim=64, attention_factor=1.001)
    got, _ = rope.rotate(x, x.clone(), rope.place(positions.arange(64)), backend=backend)
    assert not bool(got.isnan().any())
    assert float(got[0, 0, 0, 0]) in (torch.inf, largest)
    assert float(got[0, 0, 1, 40]) in (torch.inf, largest)
    assert bool(got.isinf().any())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("dtype", [*HALVES, torch.float32], ids=kind_name)
def test_subnormal_numbers(dtype: torch.dtype, pairing: Any, backend: str) -> None:
    info = torch.finfo(dtype)
    x = (normal(1, 2, 40, 64) * info.smallest_normal / 16).to(dtype)
    assert bool(((x != 0) & (x.abs().double() < info.smallest_normal)).any())
    rope = posenc.RoPE(head_dim=64, pairing=pairing)
    placed = rope.place(positions.arange(40))
    got, _ = rope.rotate(x, x[:, :1].clone(), placed, backend=backend)
    step = info.smallest_normal * info.eps * (0.51 if dtype in HALVES else 2.5)  # two products and a sum, each rounded
    assert bool(((got.double() - exact(x, *tables(placed), pairing=pairing).turn).abs() <= step).all())
    assert bool((got != 0).any())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("side", ["first", "last"])
@pytest.mark.parametrize("in_place", [False, True])
def test_other_lanes_are_the_same_bit_for_bit(in_place: bool, side: Any, backend: str) -> None:
    """Any bits: NaN with a message in it, the negative zero, and all between."""
    random = torch.Generator().manual_seed(0)
    whole = torch.randint(-(2**15), 2**15, (2, 3, 5, 70), generator=random, dtype=torch.int16).view(torch.bfloat16)
    q, k = whole, whole[:, :1].clone()
    lanes = slice(34, None) if side == "first" else slice(0, 36)
    before = q[..., lanes].clone(), k[..., lanes].clone()
    rope = posenc.RoPE(head_dim=70, rotary_dim=34, rotary_side=side)
    got = rope.rotate(q, k, rope.place(positions.arange(5)), out=(q, k) if in_place else None, backend=backend)
    assert bits_equal(got[0][..., lanes], before[0])
    assert bits_equal(got[1][..., lanes], before[1])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(0, 2, 5, 8), (2, 2, 0, 8), (0, 2, 0, 8)])
def test_nothing_at_all(shape: tuple[int, ...], backend: str) -> None:
    rope, x = posenc.RoPE(head_dim=8), torch.empty(shape)
    placed = rope.place(positions.arange(shape[2]))
    q, k = rope.rotate(x, x[:, :1], placed, backend=backend)
    assert (q.shape, k.shape) == (shape, (shape[0], 1, *shape[2:]))
    rope.rotate_(x, x[:, :1].clone(), placed, backend=backend)


@pytest.mark.parametrize("backend", ["formula", "auto"])
@pytest.mark.parametrize("shape", [(5, 16), (3, 5, 16), (2, 2, 3, 5, 16)])
def test_fewer_and_more_dimensions(shape: tuple[int, ...], backend: str) -> None:
    rope, x = posenc.RoPE(head_dim=16), normal(*shape, dtype=torch.float32)
    placed = rope.place(positions.arange(5))
    got = [rope.rotate_q(x, placed), rope.rotate_k(x, placed)]
    if len(shape) > 2:
        got += rope.rotate(x, x.clone(), placed, backend=backend)
    wanted = exact(x.reshape(1, -1, 5, 16), *tables(placed), pairing="half")
    for y in got:
        assert y.shape == x.shape
        wanted.holds(y.reshape(1, -1, 5, 16), torch.float32)


@given(data=st.data())
@check(120)
def test_anything(data: st.DataObject) -> None:
    """Sizes, strides, kinds and places all at once."""
    draw = data.draw
    dtype, table = draw(st.sampled_from(KINDS))
    backend = draw(st.sampled_from([b for b in BACKENDS if able(b, dtype, table)]))
    pairing, side = draw(st.sampled_from(PAIRINGS)), draw(st.sampled_from(["first", "last"]))
    n_pairs, rest = draw(st.sampled_from([1, 3, 15, 16, 17, 32, 33])), draw(st.sampled_from([0, 1, 5, 16, 33]))
    batch, group, kv_heads = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    n, k_len = draw(st.integers(1, 9)), draw(st.sampled_from([None, 1, 12]))
    rope = posenc.RoPE(head_dim=2 * n_pairs + rest, rotary_dim=2 * n_pairs, rotary_side=side, pairing=pairing)
    placed = rope.place(torch.randint(0, 99, (batch, n) if draw(st.booleans()) else (n,)), dtype=table)
    k_placed = placed if k_len is None else rope.place(positions.arange(k_len), dtype=table)
    shapes = (batch, group * kv_heads, n, rope.head_dim), (batch, kv_heads, k_len or n, rope.head_dim)
    ins = [memory(normal(*s, seed=i, dtype=dtype), draw(st.sampled_from(LAYOUTS))) for i, s in enumerate(shapes)]
    how = draw(st.sampled_from(["fresh", "into", "in place"]))
    outs = (
        ins
        if how == "in place"
        else [memory(torch.zeros(s, dtype=dtype), draw(st.sampled_from(LAYOUTS))) for s in shapes]
    )
    wanted = [
        exact(x.tensor, *tables(p), pairing=pairing, side=side) for x, p in zip(ins, (placed, k_placed), strict=True)
    ]
    out = None if how == "fresh" else (outs[0].tensor, outs[1].tensor)
    block, run = draw(st.sampled_from([(blocked.BLOCK, blocked.RUN), (800, 100), (200, 400)]))  # many pieces, too
    with patch.multiple(blocked, BLOCK=block, RUN=run):
        got = rope.rotate(ins[0].tensor, ins[1].tensor, placed, k_placed, out=out, backend=backend)
    for x, y, o, w in zip(ins, got, outs, wanted, strict=True):
        w.holds(y, table)
        assert o.untouched_around()
        assert how == "in place" or x.untouched()
        assert how == "fresh" or y is o.tensor
