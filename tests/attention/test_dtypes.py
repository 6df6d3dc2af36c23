"""Results and gradients in each dtype, of every way in which scores are joined, against float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from attention.subjects import HEADS, IDS, LANES, NAMES, N, made, places, small_blocks
from posenc import Encoding, attend, explain
from strategies import normal

# of the norm of what is right, and of a twentieth of all, where a gradient is little or none
ERRORS = {torch.float32: 2e-5, torch.bfloat16: 0.05, torch.float16: 4e-3}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch)


def run(encoding: Encoding, given: list[Tensor], pos: Tensor, backend: str, options: dict[str, Any]) -> list[Tensor]:
    """Return a result and the gradients of q, k, v and all that is learned."""
    q, k, v = (t.detach().requires_grad_() for t in given)
    placed = encoding.place(pos, dtype=torch.float64 if q.dtype == torch.float64 else torch.float32)
    out = attend(q, k, v, encoding, placed, backend=backend, **options)
    grad = normal(*out.shape, seed=8).to(given[0].dtype).to(out.dtype)
    wanted = [q, k, v, *encoding.parameters()]
    found = torch.autograd.grad(out, wanted, grad, allow_unused=True)
    return [out, *(torch.zeros_like(t) if g is None else g for t, g in zip(wanted, found, strict=True))]


@pytest.mark.parametrize("options", [{}, {"document_ids": IDS}], ids=["causal", "documents"])
@pytest.mark.parametrize("dtype", ERRORS, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_every_backend_is_near_float64(name: str, dtype: torch.dtype, options: dict[str, Any]) -> None:
    encoding = made(name).float()
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter *= 0.5
    exactly = made(name)
    exactly.load_state_dict(encoding.state_dict())
    pos = places(name, encoding)["in order"]
    given = [normal(2, heads, N, LANES, seed=seed).to(dtype) for seed, heads in enumerate((HEADS, 2, 2))]
    exact = run(exactly, [t.double() for t in given], pos, "reference", options)
    learned = torch.stack([t.norm() for t in exact]).norm()
    ran = set()
    for verdict in explain(*given, encoding, encoding.place(pos), **options):
        if verdict.verdict not in ("taken", "would run") or verdict.backend in ("flex", "reference-float64"):
            continue
        ran.add(verdict.backend)
        for i, (one, right) in enumerate(zip(run(encoding, given, pos, verdict.backend, options), exact, strict=True)):
            if not one.ndim:  # the gradient of one frequency, a sum whose terms cancel
                continue
            error, size = (one.double() - right).norm(), right.norm() + 0.05 * learned
            assert error <= ERRORS[dtype] * size + 1e-6, (verdict.backend, i, float(error / size))
    assert "reference" in ran
    assert len(ran) > 1
