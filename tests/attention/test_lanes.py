"""A bias as lanes of q and k: as exact as a mask, at far positions too, in every dtype that it takes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import posenc
from posenc import attend, positions
from posenc.attention import lanes
from strategies import normal


def far(n_heads: int, head_dim: int, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """One query behind many keys, whose distances no product of lanes may lose."""
    q = normal(1, n_heads, 1, head_dim, seed=1)
    return q.to(dtype), *(normal(1, n_heads, length, head_dim, seed=s).to(dtype) for s in (2, 3))


@pytest.mark.slow
@pytest.mark.parametrize("n_heads", [8, 12], ids=["slopes of one bit", "slopes of many bits"])
@pytest.mark.parametrize("start", [0, 5_000_000])
def test_alibi_over_65536_keys_in_float32(n_heads: int, start: int) -> None:
    encoding, pos = posenc.ALiBi(n_heads=n_heads), positions.arange(65_536, start=start)
    q, k, v = far(n_heads, 64, 65_536, torch.float32)
    got = attend(q, k, v, encoding, pos[-1:], pos, backend="lanes")
    wanted = attend(q, k, v, encoding, pos[-1:], pos, backend="reference-float64")
    assert float((got - wanted).abs().max()) < 2e-6  # a mask in float32 is off by 1e-6 here


@pytest.mark.slow
@pytest.mark.parametrize("n_heads", [8, 12])
def test_alibi_in_bfloat16_is_as_near_as_with_a_mask(n_heads: int) -> None:
    encoding, pos = posenc.ALiBi(n_heads=n_heads, sides="key"), positions.arange(65_536)
    q = normal(1, n_heads, 32, 64, seed=1).bfloat16()
    k, v = far(n_heads, 64, 65_536, torch.bfloat16)[1:]
    exact, as_lanes, mask = (
        attend(*(t.to(kind) for t in (q, k, v)), encoding, pos[-32:], pos, causal=False, backend=backend)
        for kind, backend in ((torch.float64, "blocked"), (torch.bfloat16, "lanes"), (torch.bfloat16, "blocked"))
    )
    errors = [float((out.double() - exact).square().mean().sqrt()) for out in (as_lanes, mask)]
    assert errors[0] <= 1.1 * errors[1]


@pytest.mark.parametrize(("n_heads", "n_kv"), [(8, 8), (8, 2), (6, 1)])
def test_a_short_call_in_half_precision_runs_in_blocks(
    n_heads: int, n_kv: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    n, encoding, pos = 300, posenc.ALiBi(n_heads=n_heads), positions.arange(300, start=100_000)
    q, k, v = (normal(2, heads, n, 64, seed=heads).bfloat16() for heads in (n_heads, n_kv, n_kv))
    shapes: list[torch.Size] = []
    real = lanes.BLOCKS.run
    monkeypatch.setattr(lanes.BLOCKS, "run", lambda call: shapes.append(call.q.shape) or real(call))
    with torch.no_grad():
        blocks, mask = (attend(q, k, v, encoding, pos, backend=backend).double() for backend in ("lanes", "distance"))
        exact = attend(q.double(), k.double(), v.double(), encoding, pos, backend="reference")
    assert [shape[1] for shape in shapes] == [1] * n_heads  # one head after the other
    assert (blocks - exact).square().mean() <= 1.2 * (mask - exact).square().mean()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_learned_slopes(dtype: torch.dtype) -> None:
    n, pos = 300, positions.arange(300)
    encoding = posenc.ALiBi(n_heads=4, slopes="learned")
    q, k, v = (normal(1, 4, n, 16, seed=s).to(dtype) for s in range(3))
    pull = normal(1, 4, n, 16, seed=4)
    found = []
    for backend in ("lanes", "reference-float64"):
        out = attend(q, k, v, encoding, pos, backend=backend)
        found.append(torch.autograd.grad((out.double() * pull).sum(), encoding.log_slope)[0])
    assert float((found[0] - found[1]).norm() / found[1].norm()) < (1e-5 if dtype == torch.float32 else 3e-2)


def test_a_view_is_bit_for_bit_what_the_mask_is() -> None:
    """torch's kernel reads the strided view of a vector as it reads the matrix; queries stand in no order there."""
    pos = positions.arange(1_500)
    for dtype in (torch.float32, torch.bfloat16):
        q, k, v = (normal(1, 4, 1_500, 32, seed=s).to(dtype) for s in range(3))
        for encoding in (posenc.ALiBi(n_heads=4), posenc.T5(n_heads=4), posenc.KERPLE(n_heads=4)):
            with torch.no_grad():
                got = attend(q, k, v, encoding, pos, backend="distance", causal=False)
                mask = encoding.dense(pos)
                wanted = F.scaled_dot_product_attention(q[:, :, 750:], k, v, attn_mask=mask[:, :, 750:])
            assert torch.equal(got[:, :, 750:], wanted)
