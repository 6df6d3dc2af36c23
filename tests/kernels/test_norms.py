"""Norms of heads before they rotate: against float64, and against those of transformers' models and of torch."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm, apply_rotary_pos_emb
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

import posenc
from kernels.rotations import BACKENDS, HALVES, LAYOUTS, exact, kind_name, memory, tables
from posenc import Norm, positions
from strategies import normal, refuses

N, B = 9, 2
KINDS = [(torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float32, torch.float64)]


def normalised(x: Tensor, norm: Norm | None) -> Tensor:
    """Write a norm out in float64."""
    wide = x.detach().double()
    if norm is None:
        return wide
    factors = norm.weight.detach().double() + (1 if norm.plus_one else 0)
    return wide / (wide.square().mean(-1, keepdim=True) + norm.eps).sqrt() * factors


@pytest.mark.parametrize("way", ["fresh", "out", "in place"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kinds", KINDS, ids=kind_name)
def test_norms_before_the_rotation(kinds: tuple[torch.dtype, torch.dtype], backend: str, way: str) -> None:
    """Of one, the other or both; over all head dimensions, also those that do not rotate; rounded once, in the end."""
    dtype, table = kinds
    rope = posenc.RoPE(head_dim=46, rotary_dim=30, rotary_side="last", pairing="interleaved")
    placed = rope.place(positions.arange(N, start=3), dtype=table)
    norms = Norm(normal(46, seed=1).float(), eps=1e-3), Norm(normal(92, seed=2).bfloat16()[::2], plus_one=True)
    values = normal(B, 4, N, 46, dtype=dtype), normal(B, 2, N, 46, seed=1, dtype=dtype)
    for i, pair in enumerate((norms, (norms[0], None), (None, norms[1]))):
        given = [memory(x, LAYOUTS[i + j]) for j, x in enumerate(values)]
        puts = given if way == "in place" else [memory(torch.zeros_like(x), LAYOUTS[i]) for x in values]
        out = None if way == "fresh" else (puts[0].tensor, puts[1].tensor)
        q, k = (g.tensor for g in given)
        got = rope.rotate(q, k, placed, out=out, q_norm=pair[0], k_norm=pair[1], backend=backend)
        for x, y, put, norm in zip(values, got, puts, pair, strict=True):
            wide = torch.finfo(torch.promote_types(dtype, table))
            wanted = exact(normalised(x, norm), *tables(placed), pairing="interleaved", side="last")
            once = torch.finfo(dtype).eps / 2 * wanted.turn.abs() * (dtype != wide.dtype)
            slack = once + 8 * max(wide.eps, torch.finfo(dtype).eps * (dtype == torch.float32)) * wanted.size.clamp(1)
            assert y.dtype == dtype
            assert bool(((y.double() - wanted.turn).abs() <= slack).all())
            assert put.untouched_around()


def rotary(head_dim: int, n: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines as transformers' models hand them around."""
    inv_freq = 1e6 ** -(torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angles = (torch.arange(n, dtype=torch.float64)[:, None] * inv_freq).repeat(1, 2)[None]
    return angles.cos().to(dtype), angles.sin().to(dtype)


@pytest.mark.parametrize(("kind", "plus_one"), [(Qwen3RMSNorm, False), (Gemma3RMSNorm, True)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=kind_name)
def test_as_in_transformers(dtype: torch.dtype, kind: Any, plus_one: bool) -> None:
    """Values, and gradients of queries, keys and both weights."""
    rope = posenc.RoPE(head_dim=64, base=1e6)
    placed = rope.place(positions.arange(N), dtype=torch.promote_types(dtype, torch.float32))
    theirs = [kind(64, eps=1e-6).to(dtype) for _ in "qk"]
    for i, module in enumerate(theirs):
        module.weight.data = normal(64, seed=i, dtype=dtype)
    q, k = (normal(B, N, h, 64, seed=h, dtype=dtype).transpose(1, 2).requires_grad_() for h in (4, 2))
    wanted = apply_rotary_pos_emb(theirs[0](q), theirs[1](k), *rotary(64, N, dtype))
    weights = [m.weight.detach().clone().requires_grad_() for m in theirs]
    norms = [Norm(w, 1e-6, plus_one=plus_one) for w in weights]
    got = rope.rotate(q, k, placed, q_norm=norms[0], k_norm=norms[1])
    above = [normal(*t.shape, seed=3, dtype=dtype) for t in wanted]
    of_ours = torch.autograd.grad(got, (q, k, *weights), above)
    of_theirs = torch.autograd.grad(wanted, (q, k, *(m.weight for m in theirs)), above)
    tolerance = {torch.bfloat16: 2e-2, torch.float32: 2e-6, torch.float64: 1e-6}[dtype]  # their norm is of float32
    for a, b in zip((*got, *of_ours), (*wanted, *of_theirs), strict=True):
        assert a.dtype == b.dtype
        size = float(b.detach().abs().max())
        torch.testing.assert_close(a / size, b / size, rtol=0, atol=tolerance)


@pytest.mark.parametrize("eps", [None, 1e-3])
@pytest.mark.parametrize("dtype", [*HALVES, torch.float32, torch.float64], ids=kind_name)
def test_torch_norms(dtype: torch.dtype, eps: float | None) -> None:
    """torch.nn.RMSNorm, with its own idea of eps where none is given: seen on heads that are small."""
    rope = posenc.RoPE(head_dim=32)
    placed = rope.place(positions.arange(N), dtype=torch.promote_types(dtype, torch.float32))
    module = nn.RMSNorm(32, eps=eps, dtype=dtype)
    module.weight.data = normal(32, seed=5, dtype=dtype)
    x = normal(B, 2, N, 32, dtype=dtype) * (2.0**-8 if dtype in HALVES else 2.0**-12)
    with torch.no_grad():
        got, other = rope.rotate(x, x.clone(), placed, q_norm=module)
        wanted = exact(module(x), *tables(placed), pairing="half").turn
    size = float(wanted.abs().max())
    tolerance = 2 * torch.finfo(dtype).eps + 1e-6 * (dtype == torch.float32)
    torch.testing.assert_close(got.double() / size, wanted / size, rtol=0, atol=tolerance)
    exact(x, *tables(placed), pairing="half").holds(other, torch.promote_types(dtype, torch.float32))


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
    words = f"RoPE: {name} must have one factor for each dimension of a head, on its device; got a wei"
    for norm in (Norm(torch.ones(5)), Norm(torch.ones(1)), nn.RMSNorm((2, 6)), Norm(torch.ones(6).to("meta"))):
        with refuses(ValueError, words):
            rope.rotate(x, x.clone(), placed, **{name: norm})
    with refuses(ValueError, "q_norm, k_norm and backend apply only to a plain forward rotation"):
        rope.rotate(x, x.clone(), placed, inverse=True, **{name: Norm(torch.ones(6))})
