"""Norms of heads before they turn: against those of transformers' models, against float64, and their gradients."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm, apply_rotary_pos_emb
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

import posenc
from kernels.rotations import BACKENDS, HALVES, LAYOUTS, PAIRINGS, exact, kind_name, memory, tables
from posenc import positions
from posenc.kernels import Norm
from strategies import normal, refuses

N, B = 9, 2
WITH_NORMS = ("numba", "formula", "auto")
KINDS = [(torch.bfloat16, torch.float32), (torch.float16, torch.float32), (torch.float32, torch.float32)]
KINDS += [(torch.float32, torch.float64), (torch.float64, torch.float32), (torch.float64, torch.float64)]


def normalised(x: Tensor, weight: Tensor, eps: float, *, plus_one: bool = False) -> Tensor:
    """Write a norm out in float64."""
    wide, factors = x.detach().double(), weight.detach().double() + (1 if plus_one else 0)
    return wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt() * factors


def close(got: Tensor, normal: Tensor, placed: posenc.Placed, *, pairing: str, side: str, table: torch.dtype) -> None:
    """Compare with a norm and a turn in float64: one rounding to the dtype, and some in the wide precision."""
    wanted = exact(normal, *tables(placed), pairing=pairing, side=side)
    wide = torch.finfo(torch.promote_types(got.dtype, table))
    largest = torch.maximum(wanted.size, normal.abs())
    slack = torch.finfo(got.dtype).eps / 2 * wanted.turn.abs() * (got.dtype != wide.dtype) + 8 * wide.eps * largest
    wrong = (got.detach().double() - wanted.turn).abs() - slack - torch.finfo(got.dtype).smallest_normal
    assert bool((wrong <= 0).all()), float(wrong.max())


@pytest.mark.sample(4)
@pytest.mark.parametrize("backend", WITH_NORMS)
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("kinds", KINDS, ids=kind_name)
def test_norms_before_the_turn(kinds: tuple[torch.dtype, torch.dtype], pairing: Any, backend: str) -> None:
    """Of one, the other or both; over all lanes, also those that do not turn; in any memory, also in place."""
    dtype, table = kinds
    for i, (head_dim, width) in enumerate([(2, 2), (10, 6), (96, 96), (130, 66), (46, 30)]):
        side: Any = ("first", "last")[i % 2]
        rope = posenc.RoPE(head_dim=head_dim, rotary_dim=width, rotary_side=side, pairing=pairing)
        placed = rope.place(positions.arange(N, start=3), dtype=table)
        norms = (
            Norm(normal(head_dim, seed=1, dtype=torch.float32), eps=1e-3),
            Norm(normal(2 * head_dim, seed=2, dtype=torch.bfloat16)[::2], plus_one=True),
        )
        values = normal(B, 4, N, head_dim, dtype=dtype), normal(B, 2, N, head_dim, seed=1, dtype=dtype)
        for q_norm, k_norm in (norms, (norms[0], None), (None, norms[1])):
            wanted = [
                x.double() if m is None else normalised(x, m.weight, m.eps, plus_one=m.plus_one)
                for x, m in zip(values, (q_norm, k_norm), strict=True)
            ]
            for way in ("fresh", "out", "in place"):
                q, k = (memory(x, LAYOUTS[(i + j) % 5]) for j, x in enumerate(values))
                puts = (q, k) if way == "in place" else tuple(memory(torch.zeros_like(x), LAYOUTS[i]) for x in values)
                got = rope.rotate(
                    q.tensor,
                    k.tensor,
                    placed,
                    out=None if way == "fresh" else (puts[0].tensor, puts[1].tensor),
                    q_norm=q_norm,
                    k_norm=k_norm,
                    backend=backend,
                )
                for given, y, put, w in zip((q, k), got, puts, wanted, strict=True):
                    assert y.dtype == dtype
                    close(y, w, placed, pairing=pairing, side=side, table=table)
                    assert put.untouched_around()
                    assert way == "in place" or given.untouched()


@pytest.mark.parametrize("backend", WITH_NORMS)
def test_heads_with_tables_of_their_own(backend: str) -> None:
    mixed = posenc.MixedRoPE(n_kv_heads=2, head_dim=20).requires_grad_(False)
    placed = mixed.place(positions.grid(3, 3))
    q, k = normal(B, 4, N, 20, dtype=torch.bfloat16), normal(B, 2, N, 20, seed=1, dtype=torch.bfloat16)
    norm = Norm(normal(20, seed=2, dtype=torch.float32))
    got = mixed.rotate(q, k, placed, q_norm=norm, k_norm=norm, backend=backend)
    cos, sin = tables(placed, by_head=True)
    for x, y in zip((q, k), got, strict=True):
        wanted = exact(normalised(x, norm.weight, norm.eps), cos, sin, pairing="half").turn
        torch.testing.assert_close(y.double(), wanted, rtol=2**-8, atol=1e-5)


@pytest.mark.parametrize("backend", WITH_NORMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=kind_name)
def test_zeros_and_what_is_not_finite(dtype: torch.dtype, backend: str) -> None:
    """A head of zeros stays so; one that is not finite harms no other; squares may not overflow."""
    rope = posenc.RoPE(head_dim=32)
    placed, norm = rope.place(positions.arange(4, start=1)), Norm(torch.ones(32))
    x = normal(1, 3, 4, 32, dtype=dtype)
    x[0, 0, 0], x[0, 1, 1, 5], x[0, 2, 2, 7] = 0.0, torch.nan, torch.inf
    got, _ = rope.rotate(x, x[:, :1].clone(), placed, q_norm=norm, backend=backend)
    assert bool((got[0, 0, 0] == 0).all())
    bad = {(int(h), int(s)) for h, s in (~got[0].isfinite()).any(-1).nonzero()}
    assert bad == {(1, 1), (2, 2)}


def rotary(head_dim: int, n: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines as transformers' models hand them around."""
    inv_freq = 1e6 ** -(torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angles = (torch.arange(n, dtype=torch.float64)[:, None] * inv_freq).repeat(1, 2)[None]
    return angles.cos().to(dtype), angles.sin().to(dtype)


MODELS = [(Qwen3RMSNorm, False), (Gemma3RMSNorm, True)]


@pytest.mark.parametrize("backend", WITH_NORMS)
@pytest.mark.parametrize(("kind", "plus_one"), MODELS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=kind_name)
def test_as_in_transformers(dtype: torch.dtype, kind: Any, plus_one: bool, backend: str) -> None:
    """Values, and gradients of queries, keys and both weights."""
    head_dim = 64
    rope = posenc.RoPE(head_dim=head_dim, base=1e6)
    table = torch.promote_types(dtype, torch.float32)
    placed = rope.place(positions.arange(N), dtype=table)
    theirs = [kind(head_dim, eps=1e-6).to(dtype) for _ in "qk"]
    for i, module in enumerate(theirs):
        module.weight.data = normal(head_dim, seed=i, dtype=dtype)
    q, k = (normal(B, N, h, head_dim, seed=h, dtype=dtype).transpose(1, 2).requires_grad_() for h in (4, 2))
    wanted = apply_rotary_pos_emb(theirs[0](q), theirs[1](k), *rotary(head_dim, N, dtype))
    weights = [m.weight.detach().clone().requires_grad_() for m in theirs]
    norms = [Norm(w, 1e-6, plus_one=plus_one) for w in weights]
    got = rope.rotate(q, k, placed, q_norm=norms[0], k_norm=norms[1], backend=backend)
    with torch.no_grad():
        again = rope.rotate(q, k, placed, q_norm=norms[0], k_norm=norms[1], backend=backend)
    above = [normal(*t.shape, seed=3, dtype=dtype) for t in wanted]
    tolerance = {torch.bfloat16: 2e-2, torch.float32: 2e-6, torch.float64: 1e-6}[dtype]  # their norm is of float32

    def near(a: Tensor, b: Tensor) -> None:
        assert a.dtype == b.dtype
        size = float(b.detach().abs().max())
        torch.testing.assert_close(a / size, b / size, rtol=0, atol=tolerance)

    for a, b, c in zip(got, wanted, again, strict=True):
        near(a, b)
        near(c, b)
    of_ours = torch.autograd.grad(got, (q, k, *weights), above)
    of_theirs = torch.autograd.grad(wanted, (q, k, *(m.weight for m in theirs)), above)
    for a, b in zip(of_ours, of_theirs, strict=True):
        near(a, b)


@pytest.mark.parametrize("backend", WITH_NORMS)
@pytest.mark.parametrize("eps", [None, 1e-3])
@pytest.mark.parametrize("dtype", [*HALVES, torch.float32, torch.float64], ids=kind_name)
def test_torch_norms(dtype: torch.dtype, eps: float | None, backend: str) -> None:
    """torch.nn.RMSNorm, with its own idea of eps where none is given: seen on heads that are small."""
    rope = posenc.RoPE(head_dim=32)
    placed = rope.place(positions.arange(N), dtype=torch.promote_types(dtype, torch.float32))
    module = nn.RMSNorm(32, eps=eps, dtype=dtype)
    module.weight.data = normal(32, seed=5, dtype=dtype)
    x = normal(B, 2, N, 32, dtype=dtype) * (2.0**-8 if dtype in HALVES else 2.0**-12)
    with torch.no_grad():
        got, other = rope.rotate(x, x.clone(), placed, q_norm=module, backend=backend)
        wanted = exact(module(x), *tables(placed), pairing="half").turn
    size = float(wanted.abs().max())
    torch.testing.assert_close(
        got.double() / size, wanted / size, rtol=0, atol=2 * torch.finfo(dtype).eps + 1e-6 * (dtype == torch.float32)
    )
    exact(x, *tables(placed), pairing="half").holds(other, torch.promote_types(dtype, torch.float32))


def test_gradients_by_differences() -> None:
    rope = posenc.RoPE(head_dim=6, rotary_dim=4)
    placed = rope.place(positions.arange(2, start=1), dtype=torch.float64)
    inputs = [normal(*s, seed=i).requires_grad_() for i, s in enumerate([(1, 2, 2, 6), (1, 1, 2, 6), (6,), (6,)])]

    def turn(q: Tensor, k: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return rope.rotate(q, k, placed, q_norm=Norm(w), k_norm=Norm(v, 1e-3, plus_one=True))

    assert torch.autograd.gradcheck(turn, inputs)
    assert torch.autograd.gradgradcheck(turn, inputs)


@pytest.mark.parametrize("backend", WITH_NORMS)
def test_a_frozen_part_has_no_gradient(backend: str) -> None:
    """Either weight alone, either of queries and keys alone; of one dtype or of two."""
    rope = posenc.RoPE(head_dim=6)
    placed = rope.place(positions.arange(N))
    for dtype in (torch.bfloat16, torch.float32):
        for learns in range(4):
            q, k = normal(1, 2, N, 6, dtype=dtype), normal(1, 1, N, 6, seed=1, dtype=dtype)
            w, v = torch.ones(6), torch.ones(6)
            all_four = (q, k, w, v)
            all_four[learns].requires_grad_()
            got = rope.rotate(q, k, placed, q_norm=Norm(w), k_norm=Norm(v), backend=backend)
            assert [t.requires_grad for t in got] == [learns in (0, 2), learns in (1, 3)]
            assert [t.dtype for t in got] == [dtype, dtype]
            (got[0].sum() + got[1].sum()).backward()
            assert [t.grad is not None for t in all_four] == [i == learns for i in range(4)]


def test_transforms_of_the_factors() -> None:
    """Factors that torch.func wraps, while queries and keys are plain."""
    rope = posenc.RoPE(head_dim=6)
    placed = rope.place(positions.arange(N), dtype=torch.float64)
    q, k, w = normal(1, 2, N, 6), normal(1, 1, N, 6, seed=1), normal(3, 6, seed=2)
    many = torch.func.vmap(lambda w: rope.rotate(q, k, placed, q_norm=Norm(w))[0])(w)
    for i in range(3):
        wanted = exact(normalised(q, w[i], 1e-6), *tables(placed), pairing="half").turn
        torch.testing.assert_close(many[i], wanted)
    slope = torch.func.grad(lambda w: rope.rotate(q, k, placed, q_norm=Norm(w))[0].square().sum())(w[0])
    unit = normalised(q, torch.ones(6), 1e-6).square().sum((0, 1, 2))
    torch.testing.assert_close(slope, 2 * w[0] * unit)


def test_heads_too_wide_for_the_stack() -> None:
    """Then it is the formula that normalises them, whichever of the two has the norm."""
    rope = posenc.RoPE(head_dim=2048, rotary_dim=64)
    placed = rope.place(positions.arange(2))
    x, norm = normal(1, 2, 2, 2048, dtype=torch.float32), Norm(torch.ones(2048))
    for q_norm, k_norm in ((norm, None), (None, norm), (norm, norm)):
        got = rope.rotate(x, x[:, :1].clone(), placed, q_norm=q_norm, k_norm=k_norm)
        for y, m in zip(got, (q_norm, k_norm), strict=True):
            given = x[:, : y.shape[1]].double() if m is None else normalised(x[:, : y.shape[1]], m.weight, m.eps)
            close(y, given, placed, pairing="half", side="first", table=torch.float32)
        with refuses(ValueError, "rotate: backend 'numba' cannot be used here: normalises heads of at most 1024 lanes"):
            rope.rotate(x, x[:, :1].clone(), placed, q_norm=q_norm, k_norm=k_norm, backend="numba")


@pytest.mark.parametrize("name", ["q_norm", "k_norm"])
def test_what_is_no_norm_of_heads(name: str) -> None:
    rope = posenc.RoPE(head_dim=6)
    placed, x = rope.place(positions.arange(2)), torch.zeros(1, 2, 2, 6)

    class Other(nn.RMSNorm):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + 1

    for junk in (Other(6), nn.LayerNorm(6), nn.RMSNorm(6, elementwise_affine=False), torch.ones(6), Qwen3RMSNorm(6)):
        with refuses(TypeError, f"RoPE: {name} must be a posenc.Norm or a torch.nn.RMSNorm with a weight", "got "):
            rope.rotate(x, x.clone(), placed, **{name: junk})
    wide = Norm(torch.ones(5)), Norm(torch.ones(1)), nn.RMSNorm(12), nn.RMSNorm((2, 6)), Norm(torch.ones(6).to("meta"))
    for norm in wide:
        with refuses(
            ValueError, f"RoPE: {name} must have one factor for each lane of a head, on its device; got a wei"
        ):
            rope.rotate(x, x.clone(), placed, **{name: norm})
    with refuses(ValueError, "rotate: backend 'blocked' cannot be used here: has no norms; got one"):
        rope.rotate(x, x.clone(), placed, **{name: Norm(torch.ones(6))}, backend="blocked")
    for backend in BACKENDS:
        with refuses(ValueError, "q_norm, k_norm and backend are for turning forwards"):
            rope.rotate(x, x.clone(), placed, inverse=True, **{name: Norm(torch.ones(6))}, backend=backend)
