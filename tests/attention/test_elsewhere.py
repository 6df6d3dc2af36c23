"""Where values are not looked at, as on a GPU: blocks all the same, and the same results."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attention.subjects import (
    HEADS,
    LANES,
    MASKS,
    NAMES,
    PLACES,
    last,
    made,
    nth_place,
    places,
    small_blocks,
    tensors,
)
from bench_calls import look_at_nothing
from posenc import FoX, attend, positions
from strategies import normal
from watch import Largest


@pytest.fixture
def unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    look_at_nothing(monkeypatch.setattr)
    small_blocks(monkeypatch)


@pytest.mark.parametrize("place", range(len(PLACES)))
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("nope", "rope", "rerope")])
def test_blocks_that_look_at_nothing_equal_the_reference(name: str, mask: str, place: int, unseen: None) -> None:
    encoding, options = made(name), dict(MASKS[mask])
    q_len = options.pop("q_len", 70)
    q, k, v = tensors(q_len)
    wanted_of = [q, k, v, *encoding.parameters()]
    pos = nth_place(place, name, encoding)
    call = (q, k, v, encoding, *(encoding.place(p, dtype=torch.float64) for p in (last(pos, q_len, encoding), pos)))
    found = []
    for backend in ("reference", "blocked"):
        out = attend(*call, backend=backend, **options)
        pull = normal(*out.shape, seed=8)
        found.append([out, *torch.autograd.grad(out, wanted_of, pull, allow_unused=True, retain_graph=True)])
        with torch.no_grad():
            found[-1].append(attend(*call, backend=backend, **options))
    for wanted, got in zip(*found, strict=True):
        if wanted is None or got is None:
            assert all(t is None or not t.any() for t in (wanted, got))
            continue
        bound = 1e-10 * max(1.0, float(wanted.detach().abs().max()))
        assert float((got - wanted).detach().abs().max()) <= bound


M = 1200  # tokens: many blocks, and far more scores than any of them, or what is formed at once, has
MORE: dict[str, dict[str, Any]] = {
    "causal": {},
    "bidirectional": {"causal": False},
    "window": {"window": 9},
    "documents": {"document_ids": torch.arange(M) // 300},
    "padding": {"mask": (torch.arange(M) >= 40)[None, None, None]},
}


@pytest.mark.slow
@pytest.mark.parametrize("options", MORE.values(), ids=MORE)
@pytest.mark.parametrize("name", ["t5", "kerple", "shaw", "transformer_xl", "fire", "fox", "deberta", "cope"])
def test_on_another_device_nothing_is_as_large_as_all_scores(
    name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device `meta` keeps no values, so that whoever read one would fail."""
    small_blocks(monkeypatch)
    n = M
    encoding = FoX(d_model=6, n_heads=HEADS) if name == "fox" else made(name).float()
    encoding, pos = encoding.to("meta"), positions.arange(n, device="meta")
    q, k, v = (torch.empty(1, HEADS, n, LANES, device="meta", requires_grad=True) for _ in range(3))
    given = {key: t.to("meta") if isinstance(t, torch.Tensor) else t for key, t in options.items()}
    placed = encoding.place(pos, torch.empty(1, n, 6, device="meta"))
    with Largest() as seen:
        out = attend(q, k, v, encoding, placed, backend="blocked", **given)
        out.sum().backward()
    assert out.shape == (1, HEADS, n, LANES)
    assert seen.numbers < n * n
    assert all(p.grad is not None for p in (q, k, v))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: see benchmarks/gpu_checks.sh")
@pytest.mark.parametrize("mask", ["causal", "window both ways", "documents by row", "left padding", "numbers"])
@pytest.mark.parametrize("name", ["t5", "kerple", "shaw", "tupe", "deberta", "cope"])
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.compiles)])
def test_blocks_on_a_gpu_are_the_reference_on_a_cpu(
    name: str, mask: str, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_blocks(monkeypatch)
    torch.compiler.reset()
    options = dict(MASKS[mask])
    q_len, found = options.pop("q_len", 70), []
    for device, backend in (("cpu", "reference"), ("cuda", "blocked")):
        encoding = made(name).to(device)
        q, k, v = (t.detach().to(device).requires_grad_() for t in tensors(q_len))
        pos = places(name, encoding)["in order"].to(device)
        placed = [encoding.place(p, dtype=torch.float64) for p in (last(pos, q_len, encoding), pos)]
        given = {key: t.to(device) if isinstance(t, torch.Tensor) else t for key, t in options.items()}
        step = torch.compile(attend, fullgraph=True) if compiled and device == "cuda" else attend
        out = step(q, k, v, encoding, *placed, backend=backend, **given)
        out.backward(normal(*out.shape, seed=8).to(device))
        found.append([out.detach(), *(t.grad for t in (q, k, v, *encoding.parameters()) if t.grad is not None)])
    for wanted, got in zip(*found, strict=True):
        torch.testing.assert_close(got.cpu(), wanted, rtol=1e-10, atol=1e-10)
