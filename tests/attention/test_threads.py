"""Threads that train with one encoding at once: each gets its gradients, and the encoding keeps its parameters."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import posenc
from posenc import positions
from strategies import randomise

ENCODINGS = [
    posenc.KERPLE(n_heads=4),
    posenc.FIRE(n_heads=4),
    posenc.DynamicPositionBias(n_heads=4, width=8),  # of modules within
    posenc.T5(n_heads=4),
    posenc.Shaw(head_dim=8, max_distance=16),
    posenc.CoPE(head_dim=8, max_count=16),
]


@pytest.fixture
def eager_threads():
    """Let threads take turns in the midst of what others do."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.sample(2)
@pytest.mark.parametrize("encoding", ENCODINGS, ids=lambda e: e.name)
@pytest.mark.usefixtures("eager_threads")
def test_gradients_of_threads_are_those_of_one(encoding):
    encoding = randomise(encoding, 0)
    own = dict(encoding.named_parameters())

    def gradients(seed):
        generator = torch.Generator().manual_seed(seed)
        q, k, v = (torch.randn(1, 4, 64, 8, generator=generator, dtype=torch.float64) for _ in range(3))
        out = posenc.attend(q, k, v, encoding, positions.arange(64), backend="blocked")
        return torch.autograd.grad(out.square().sum(), own.values())

    alone = [gradients(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(gradients, list(range(4)) * 10))
    for seed, got in enumerate(together):
        assert all(torch.allclose(a, b, rtol=1e-9, atol=1e-12) for a, b in zip(got, alone[seed % 4], strict=True))
    assert all(parameter is own[name] for name, parameter in encoding.named_parameters())
