"""Gradients of what was cast to half precision: summed in float32, over as many pairs as share a row of a table."""

import copy

import pytest
import torch

import posenc
from posenc import positions
from strategies import normal, randomise

N = 256
ON_A_LINE = positions.arange(N)
ON_A_GRID = positions.grid(16, 16)
GRAPH = (ON_A_LINE[:, None] - ON_A_LINE).abs().clamp(max=5)
BIASES = {
    "t5": (posenc.T5(n_heads=2, n_buckets=8, max_distance=16), ON_A_LINE),
    "relative_bias": (posenc.RelativeBias(n_heads=2, max_distance=5), ON_A_LINE),
    "kerple": (posenc.KERPLE(n_heads=2), ON_A_LINE),
    "alibi": (posenc.ALiBi(n_heads=2, slopes="learned"), ON_A_LINE),
    "tupe": (posenc.TUPE(n_heads=2, head_dim=4, max_len=N), ON_A_LINE),
    "swin": (posenc.Swin(n_heads=2, window=(16, 16)), ON_A_GRID),
    "swin_v2": (posenc.SwinV2(n_heads=2, window=(16, 16), width=8), ON_A_GRID),
    "beit": (posenc.BEiT(n_heads=2, window=(16, 16)), ON_A_GRID),
    "graphormer": (posenc.Graphormer(n_heads=2, max_distance=5).on(GRAPH), ON_A_LINE),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", BIASES)
def test_a_cast_model_learns_what_a_wide_one_does(name, dtype):
    """A sum of 65,000 numbers in bfloat16 is wrong in its first digit."""
    encoding, pos = BIASES[name]
    cast = randomise(copy.deepcopy(encoding), 1).to(dtype)
    wide = copy.deepcopy(cast).double()
    weight = normal(2, N, N, seed=3).abs()

    def gradients(one, kind):
        bias = one.dense(pos, dtype=kind)[0].double()
        return torch.autograd.grad((bias * weight).sum() / weight.sum(), list(one.parameters()))

    for mine, exact in zip(gradients(cast, torch.float32), gradients(wide, torch.float64), strict=True):
        assert exact.abs().max() > 0
        assert (mine - exact).norm() < 3 * torch.finfo(dtype).eps * exact.norm()
